package leak

import (
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func TestWaitNamesGoroutineThatOutlives(t *testing.T) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ended by close(stop) below, waited for on done
		defer close(done)
		<-stop
	}()
	left := wait(50 * time.Millisecond)
	close(stop)
	<-done
	found := false
	for _, s := range left {
		found = found || strings.Contains(s, "TestWaitNamesGoroutineThatOutlives")
	}
	if !found {
		t.Fatalf("the running goroutine was not reported; got %d stacks: %q", len(left), left)
	}
}

func TestWaitIsEmptyWhenAllEnded(t *testing.T) {
	for _, s := range wait(grace) {
		if !strings.Contains(s, "testing.tRunner") {
			t.Errorf("unexpected goroutine:\n%s", s)
		}
	}
}
