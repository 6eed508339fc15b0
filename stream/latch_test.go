package stream

import (
	"sync"
	"testing"
)

func open(c <-chan struct{}) bool {
	select {
	case <-c:
		return false
	default:
		return true
	}
}

func TestLatchClosesAdmissionAndWaits_G10(t *testing.T) {
	l := newLatch()
	want(t, "first entry", l.enter(), true)
	want(t, "second entry", l.enter(), true)
	drained := l.close()
	want(t, "entry after close", l.enter(), false)
	l.leave()
	want(t, "waiting for the second", open(drained), true)
	l.leave()
	want(t, "drained", open(drained), false)
	want(t, "closed again", open(l.close()), false)
	defer func() {
		if recover() == nil {
			t.Error("leaving an empty latch did not panic")
		}
	}()
	l.leave()
}

func TestLatchOfNothingIsDrainedAtOnce(t *testing.T) {
	want(t, "drained", open(newLatch().close()), false)
}

// Entries that race with close either got in, and are waited for, or did not.
func TestLatchRace(t *testing.T) {
	for range 200 {
		l := newLatch()
		var wg sync.WaitGroup
		var mu sync.Mutex
		inside := 0
		for range 4 {
			wg.Go(func() {
				for l.enter() {
					mu.Lock()
					inside++
					mu.Unlock()
					mu.Lock()
					inside--
					mu.Unlock()
					l.leave()
				}
			})
		}
		<-l.close()
		mu.Lock()
		if inside != 0 {
			t.Errorf("drained with %d inside", inside)
		}
		mu.Unlock()
		wg.Wait()
	}
}
