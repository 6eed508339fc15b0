package leak

import (
	"bytes"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
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
// It allocates nothing while the tests run, since some of them count that.
func watch() {
	var before []goroutine
	buf := make([]byte, 1<<20)
	for range time.Tick(look) {
		n := runtime.Stack(buf, true)
		if n == len(buf) {
			buf = make([]byte, 2*n)
		}
		if !anyWaits(buf[:n]) {
			before = nil
			continue
		}
		all := parse(buf[:n])
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
)

// waits are how the states begin in which a goroutine waits for another.
var waits = list("chan receive", "chan send", "select", "sync.", "semacquire")

// aside are frames of the goroutines of package testing that wait for tests,
// and of the watch.
var aside = list(
	"testing.(*T).Run(",
	"testing.(*F).",
	"testing.(*T).Parallel(",
	"testing.(*testState).waitParallel(",
	"testing.tRunner.func1(",
	"internal/synctest.Run(",
	"testing/synctest.testingSynctestTest(",
	"internal/leak.watch(",
)

// process are frames of goroutines that wait for a process.
var process = list("os/exec.", "os.(*Process)")

func list(all ...string) (out [][]byte) {
	for _, s := range all {
		out = append(out, []byte(s))
	}
	return out
}

var (
	blank   = []byte("\n\n")
	bracket = []byte("[")
	runner  = []byte("testing.tRunner(")
)

// anyWaits reports whether a test may be blocked. It allocates nothing.
func anyWaits(dump []byte) bool {
	for len(dump) > 0 {
		var text []byte
		text, dump, _ = bytes.Cut(dump, blank)
		if isWaitingTest(text) {
			return true
		}
	}
	return false
}

// isWaitingTest reports whether a goroutine runs a test and waits for another
// goroutine.
func isWaitingTest(text []byte) bool {
	_, state, _ := bytes.Cut(text, bracket)
	for _, w := range waits {
		if bytes.HasPrefix(state, w) {
			return bytes.Contains(text, runner) && !containsAny(text, aside) && !containsAny(text, process)
		}
	}
	return false
}

// parse reads the goroutines of a dump, but for those that stand aside.
func parse(dump []byte) (all []goroutine) {
	for text := range bytes.SplitSeq(dump, blank) {
		head := header.FindSubmatch(text)
		if head == nil || containsAny(text, aside) {
			continue
		}
		g := goroutine{test: isWaitingTest(text), stack: string(bytes.TrimSpace(text[len(head[0]):]))}
		if m := since.FindSubmatch(head[1]); m != nil {
			g.minutes, _ = strconv.Atoi(string(m[1])) // digits
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

func containsAny(text []byte, parts [][]byte) bool {
	for _, p := range parts {
		if bytes.Contains(text, p) {
			return true
		}
	}
	return false
}
