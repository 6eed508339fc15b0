package leak

import (
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A test that waits for what never comes would say nothing until the limit of
// the test binary, minutes later. The watch looks at all stacks every few
// seconds. The runtime tells how long a goroutine has been blocked in one wait,
// in whole minutes and from the first garbage collection on; so when a test
// stands where it stood at the last look, the watch makes one.
//
// A test hangs when it has been blocked for a minute and nothing else has moved
// for that long, or when it has been blocked for four minutes whatever else
// moves. A test that waits for a process is left alone, and one that loops for
// ever is left to the limit of the binary.
const (
	look       = 5 * time.Second // the time between two looks
	stillMax   = 1               // minutes, while nothing moves
	blockedMax = 4               // minutes, whatever moves
)

// watch ends the process when a test hangs. It is for the life of the process.
func watch() {
	var before []goroutine
	for range time.Tick(look) {
		all := parse(stacks())
		if test := hanging(all); test != "" {
			debug.SetTraceback("all")
			panic("leak: a test waits for what does not come: " + test)
		}
		for _, g := range all {
			if g.test && slices.Contains(before, g) {
				runtime.GC()
				break
			}
		}
		before = all
	}
}

// goroutine is one of a dump.
type goroutine struct {
	test    bool   // runs a test and waits for another goroutine
	minutes int    // that it has been blocked
	stack   string // without the first line
}

var (
	// header is a first line: goroutine 7 [select (durable), 2 minutes, synctest bubble 1]:
	header = regexp.MustCompile(`^goroutine \d+ [^\[\n]*\[([^\]\n]*)\].*\n`)
	since  = regexp.MustCompile(`, (\d+) minutes`)
	waits  = regexp.MustCompile(`^(chan receive|chan send|select|sync\.|semacquire)`)
)

// aside are frames of the goroutines of package testing that wait for tests,
// and of the watch.
var aside = []string{
	"testing.(*T).Run(",
	"testing.(*F).",
	"testing.(*T).Parallel(",
	"testing.(*testState).waitParallel(",
	"testing.tRunner.func1(",
	"internal/synctest.Run(",
	"testing/synctest.testingSynctestTest(",
	"internal/leak.watch(",
}

// parse reads the goroutines of a dump, but for those that stand aside.
func parse(dump []byte) (all []goroutine) {
	for text := range strings.SplitSeq(string(dump), "\n\n") {
		head := header.FindStringSubmatch(text)
		if head == nil || containsAny(text, aside) {
			continue
		}
		g := goroutine{stack: strings.TrimSpace(text[len(head[0]):])}
		g.test = waits.MatchString(head[1]) && strings.Contains(text, "testing.tRunner(") &&
			!containsAny(text, []string{"os/exec.", "os.(*Process)"})
		if m := since.FindStringSubmatch(head[1]); m != nil {
			g.minutes, _ = strconv.Atoi(m[1]) // digits
		}
		all = append(all, g)
	}
	return all
}

// hanging returns the stack of a test that hangs, or nothing.
func hanging(all []goroutine) string {
	still := stillMax
	for _, g := range all {
		if g.minutes < stillMax {
			still = blockedMax
		}
	}
	for _, g := range all {
		if g.test && g.minutes >= still {
			return g.stack
		}
	}
	return ""
}

func containsAny(s string, parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(s, p) })
}
