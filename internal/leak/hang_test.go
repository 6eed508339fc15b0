package leak

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// dumpOf returns a dump while f is blocked in a test of its own, once that is
// in one of the states.
func dumpOf(t *testing.T, f func(t *testing.T, release <-chan struct{}), states ...string) string {
	t.Helper()
	release := make(chan struct{})
	dump := make(chan string, 1)
	go func() { // ends when f is blocked; received below
		for {
			s := string(stacks())
			found := true
			for _, state := range states {
				found = found && strings.Contains(s, state)
			}
			if found {
				close(release)
				dump <- s
				return
			}
		}
	}()
	t.Run("blocked", func(t *testing.T) { f(t, release) })
	return <-dump
}

// TestHangIsSeenInRealStacks takes dumps of tests that are blocked, and looks at
// them as they would be minutes later.
func TestHangIsSeenInRealStacks(t *testing.T) {
	for name, test := range map[string]struct {
		f     func(t *testing.T, release <-chan struct{})
		state string
	}{
		"receive": {func(_ *testing.T, release <-chan struct{}) { <-release }, "[chan receive]:\ngithub.com/penstock/penstock/internal/leak.TestHang"},
		"select": {func(_ *testing.T, release <-chan struct{}) {
			select {
			case <-release:
			case <-make(chan int):
			}
		}, "[select]:\ngithub.com/penstock/penstock/internal/leak.TestHang"},
		"mutex in a bubble": {func(t *testing.T, release <-chan struct{}) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				mu.Lock()
				go func() { // ends with the outer test
					<-release // of another bubble: not durable
					mu.Unlock()
				}()
				mu.Lock()
			})
		}, "[sync.Mutex.Lock, synctest bubble"},
	} {
		t.Run(name, func(t *testing.T) {
			dump := dumpOf(t, test.f, test.state)
			if !anyWaits([]byte(dump)) {
				t.Errorf("no test waits in:\n%s", dump)
			}
			if s := hanging(parse([]byte(dump))); s != "" {
				t.Errorf("a test that has just begun to wait hangs:\n%s", s)
			}
			one := strings.NewReplacer("]:", ", 1 minutes]:", ", synctest", ", 1 minutes, synctest", "[running]", "[running]", "[runnable]", "[runnable]")
			late := one.Replace(dump)
			if s := hanging(parse([]byte(late))); s != "" {
				t.Errorf("hangs while another goroutine runs, the one that dumps:\n%s", s)
			}
			late = strings.ReplaceAll(late, "[running]", "[select, 3 minutes]")
			late = strings.ReplaceAll(late, "[runnable]", "[select, 3 minutes]")
			if s := hanging(parse([]byte(late))); !strings.Contains(s, "TestHangIsSeenInRealStacks") {
				t.Errorf("not found in:\n%s\nbut %q", late, s)
			}
			four := strings.ReplaceAll(one.Replace(dump), "1 minutes", "4 minutes")
			if s := hanging(parse([]byte(four))); !strings.Contains(s, "TestHangIsSeenInRealStacks") {
				t.Errorf("not found after four minutes beside a goroutine that runs:\n%s\nbut %q", four, s)
			}
		})
	}
}

// TestLookAtRunningTestsAllocatesNothing: tests count allocations.
func TestLookAtRunningTestsAllocatesNothing(t *testing.T) {
	dump := stacks()
	if n := testing.AllocsPerRun(100, func() {
		if anyWaits(dump) {
			t.Fatalf("a test waits in:\n%s", dump)
		}
	}); n > 0 {
		t.Errorf("%v allocations per look", n)
	}
}

// TestWaitForAProcessIsNoHang, nor is the wait of a test for its subtests.
func TestWaitForAProcessIsNoHang(t *testing.T) {
	for _, frame := range []string{"os/exec.(*Cmd).Wait(0x1)", "testing.(*T).Run(0x1)"} {
		dump := "goroutine 9 [chan receive, 9 minutes]:\n" + frame + "\n\tf.go:1\nx.TestA(0x1)\n\tx_test.go:1\ntesting.tRunner(0x1)\n\tt.go:1"
		if s := hanging(parse([]byte(dump))); s != "" {
			t.Errorf("hangs:\n%s", s)
		}
	}
}
