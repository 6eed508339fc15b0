package stream

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newsRig is a rig whose receiver says when data comes; what is fed is read when
// news are sent.
func newsRig(t *testing.T) (*rig, *newsReceiver) {
	g := newRig(t)
	w := &newsReceiver{news: make(chan struct{}, 1)}
	inner := g.agent.newReceiver
	g.agent.newReceiver = func() (Receiver, error) {
		rec, err := inner()
		w.scriptReceiver, _ = rec.(*scriptReceiver)
		return w, err
	}
	g.start()
	t.Cleanup(func() {
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
	return g, w
}

// holdTurn keeps the turn of a run until the function that it returns is called.
func (g *rig) holdTurn() (release func()) {
	gate := make(chan struct{})
	go g.agent.ask(func(*run) { <-gate }) // ends when the turn is released
	synctest.Wait()
	return func() {
		close(gate)
		synctest.Wait()
	}
}

// What a wake-up announces is read by who was woken, before it has the turn.
func TestWakeUpIsReadWithoutATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, w := newsRig(t)
		c := g.subscribe("s", "sub")
		before := w.reads()
		release := g.holdTurn()
		g.feed(boxes("s", 1, 3)...)
		w.news <- struct{}{}
		synctest.Wait()
		want(t, "reads during a turn of somebody else", w.reads()-before, 1)
		want(t, "settled meanwhile", c.values(), "")
		release()
		want(t, "settled", c.values(), "1 2 3")
		want(t, "overlapping reads", w.overlap, false)
	})
	synctest.Test(t, func(t *testing.T) { // the cache has no room
		g, w := newsRig(t)
		g.newCache = func() (Cache, error) { return NewSimpleCache(2) }
		if err := g.stop(); err != nil {
			t.Fatal(err)
		}
		g.start()
		c := g.subscribe("s", "sub")
		g.feed(boxes("s", 1, 5)...)
		w.news <- struct{}{}
		synctest.Wait()
		g.pump()
		want(t, "settled", c.values(), "1 2 3 4 5")
		for _, limit := range w.limits {
			if limit < 1 || limit > 2 {
				t.Errorf("read up to %d containers into a cache of 2", limit)
			}
		}
	})
}

// A read that follows a wait and does not return is named, as any other.
func TestReadBehindAWaitIsNamedWhenItHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, w := newsRig(t)
		c := g.subscribe("s", "sub")
		gate := make(chan struct{})
		w.mu.Lock()
		w.block = gate
		w.mu.Unlock()
		g.feed(box("s", 1))
		time.Sleep(time.Minute)
		want(t, "reason while it waits", g.stats().Reason, "")
		w.news <- struct{}{}
		time.Sleep(2 * time.Minute)
		s := g.stats()
		if !strings.Contains(s.Reason, "the receiver's Read has not returned for 2m") {
			t.Errorf("reason %q (%s)", s.Reason, s.Condition)
		}
		want(t, "settled", c.values(), "")
		close(gate)
		synctest.Wait()
		want(t, "settled", c.values(), "1")
		want(t, "reason", g.stats().Reason, "")
	})
}

// A read that follows a wait and fails is tried again like any other, and what
// it could not say for certain is not reported as read.
func TestFailedReadBehindAWaitIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, w := newsRig(t)
		c := g.subscribe("s", "sub")
		before := w.reads()
		g.script = func(call, _ int) ([]Container, error) {
			switch call - before {
			case 1, 2:
				return nil, errBoom
			case 3:
				return boxes("s", 1, 2), nil
			}
			return nil, nil
		}
		w.news <- struct{}{}
		time.Sleep(time.Second)
		want(t, "settled", c.values(), "1 2")
		want(t, "failed reads", g.stats().ReadFailures, 2)
		w.news <- struct{}{} // and it waits again
		synctest.Wait()
		g.feed(box("s", 3))
		g.pump()
		want(t, "settled", c.values(), "1 2 3")
	})
}

// A wait that was asked to end, or that ends when a drain has begun, is not
// followed by a read of its own.
func TestWaitThatIsOverReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, w := newsRig(t)
		before := w.reads()
		want(t, "read something", g.pump(), false)
		want(t, "reads of a poll that ends a wait", w.reads()-before, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		g, w := newsRig(t)
		c := g.subscribe("s", "sub")
		before := w.reads()
		release := g.holdTurn()
		ended := make(chan error, 1)
		go func() { ended <- g.stop() }() // ends with the run; received below
		synctest.Wait()
		g.feed(box("s", 1))
		w.news <- struct{}{}
		synctest.Wait()
		release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want(t, "reads when a drain had begun", w.reads()-before, 0)
		want(t, "settled", c.values(), "")
	})
}
