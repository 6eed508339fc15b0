// Package leak fails a package's tests when a goroutine outlives them, and ends
// them when a test hangs.
//
// Every package with tests has a TestMain that calls [Main]:
//
//	func TestMain(m *testing.M) { leak.Main(m) }
package leak

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// grace is how long a goroutine may take to end after the last test.
const grace = 5 * time.Second

// Main runs the tests and exits. It exits with 1 when the tests passed but a
// goroutine that they started still lives after a grace time; the stacks of
// those goroutines go to standard error. A test that hangs ends the process by
// a panic with all stacks, a minute later (hang.go).
func Main(m *testing.M) {
	// Looks for tests that hang; ends with the process.
	go watch()
	code := m.Run()
	if code == 0 {
		if left := wait(grace); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leak: %d goroutines outlived the tests:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// wait polls until no foreign goroutine is left or the limit has passed, and
// returns the stacks that are left.
func wait(limit time.Duration) []string {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		left := foreign(stacks())
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

func stacks() []byte {
	for buf := make([]byte, 1<<16); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return buf[:n]
		}
	}
}

// known are functions of goroutines that the Go runtime, the testing package
// and the standard library keep for the life of the process.
var known = []string{
	"internal/leak.stacks(",
	"internal/leak.watch(",
	"testing.(*M).",
	"testing.runFuzz",
	"testing.tRunner.func",
	"os/signal.signal_recv",
	"os/signal.loop",
	"runtime.ensureSigM",
	"runtime/trace.",
	"internal/synctest",
}

func foreign(dump []byte) []string {
	var left []string
	for _, g := range bytes.Split(dump, []byte("\n\n")) {
		stack := string(bytes.TrimSpace(g))
		if stack == "" || isKnown(stack) {
			continue
		}
		left = append(left, stack)
	}
	return left
}

func isKnown(stack string) bool {
	for _, k := range known {
		if strings.Contains(stack, k) {
			return true
		}
	}
	return false
}
