package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A handler that waits for a buffer of its own topic waits for a request that is
// made elsewhere, so the request does not know that it is inside. Whoever waits
// looks for it: the request notes what it waits in line for.

// ask is what a request waits in line for: capacity, or room on the disk.
type ask struct {
	n     int
	bytes penstock.Bytes
	disk  bool
}

// askNote holds what a buffer's request waits in line for; nil while it does not.
type askNote struct{ atomic.Pointer[ask] }

type askKey struct{}

// noteAsk notes in the context of a buffer's request that it begins to wait in
// line. end is called when it does not any more.
func noteAsk(ctx context.Context, a ask) (end func()) {
	note, _ := ctx.Value(askKey{}).(*askNote)
	if note == nil {
		return nothingToEnd
	}
	note.Store(&a)
	return func() { note.Store(nil) }
}

func nothingToEnd() {}

// inside returns a channel that is closed when the caller, in a handler of the
// buffer's topic, waits for a request that waits for room which only the
// handler's return can make; nil outside of handlers. end is called when the
// wait is over. Two looks in a row have to say so of the same ask: one may be
// about to be admitted.
func (b *Buffer[T]) inside(ctx context.Context) (stuck <-chan struct{}, end func()) {
	in, _ := ctx.Value(insideKey{}).(*inside[T])
	if in == nil || in.pusher.group.topic != b.topic || b.topic.budget == nil && !b.topic.boundedOnDisk() {
		return nil, nothingToEnd
	}
	t, found := b.topic, make(chan struct{})
	w := &insider[T]{inside: in, since: time.Now().UnixNano()}
	t.insiders.add(w)
	var mu sync.Mutex // guards the rest; timer is set before the function reads it
	var timer *time.Timer
	var suspected *ask
	over := false
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		a := b.waitsFor.Load()
		if a == nil || !t.stuckAt(a, &insider[T]{inside: in, since: w.since, n: a.n, bytes: a.bytes}) {
			a = nil
		} else if a == suspected {
			over = true
			close(found)
			return
		}
		suspected = a
		timer.Reset(insideEvery)
	}
	mu.Lock()
	timer = time.AfterFunc(insideEvery, look)
	mu.Unlock()
	return found, func() {
		t.insiders.remove(w)
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}

// stuckAt reports whether w, which waits for a, can never have it.
func (t *Topic[T]) stuckAt(a *ask, w *insider[T]) bool {
	if a.disk {
		return t.stuckOnDisk(w)
	}
	return t.stuck(w)
}
