package queue

import (
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// TestCommitTakesNoLock: a pull whose events are in the window, and a commit
// while nobody waits for capacity, take none of the locks of producers, groups
// and marks. All of them are held while it is tried.
func TestCommitTakesNoLock(t *testing.T) {
	for _, auto := range []bool{false, true} {
		topic := openInside(t, Config[int]{Partitions: 2, Capacity: 100})
		g, err := topic.Group("g", GroupConfig{AutoCommit: auto})
		if err != nil {
			t.Fatal(err)
		}
		if err := topic.Produce(t.Context(), make([]int, 20)...); err != nil {
			t.Fatal(err)
		}
		c := g.Consumer(0)
		step := func() error {
			if _, ok, err := c.TryPull(1); !ok || err != nil {
				return err
			}
			if auto {
				return nil
			}
			return c.Commit()
		}
		for range 2 { // each partition gets its window, which looks at the log
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		before := g.cursor(0).hold.Committed() + g.cursor(1).hold.Committed()
		topic.withAllLocks(func() {
			done := make(chan error, 1)
			go func() { done <- step() }() // ends by itself, at the latest when the locks are given back
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second): // a guard: it is a few nanoseconds
				t.Errorf("auto %v: pull and commit wait for a lock", auto)
			}
		})
		if after := g.cursor(0).hold.Committed() + g.cursor(1).hold.Committed(); after != before+1 {
			t.Errorf("auto %v: committed %d, want %d", auto, after, before+1)
		}
	}
}

// withAllLocks calls f with the locks of the topic and of its partitions held.
func (t *Topic[T]) withAllLocks(f func()) {
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	t.turn.Lock()
	defer t.turn.Unlock()
	for i := len(t.parts) - 1; i >= 0; i-- {
		p, inner := t.parts[i], f
		f = func() {
			// The marks call it with their lock held. A hold that is taken out
			// again changes nothing.
			hold := p.marks.Add(func(_, low penstock.Offset) penstock.Offset {
				p.appendMu.Lock()
				defer p.appendMu.Unlock()
				inner()
				return low
			})
			p.marks.Remove(hold)
		}
	}
	f()
}
