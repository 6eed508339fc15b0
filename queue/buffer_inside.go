package queue

import (
	"context"
	"sync"
	"time"
)

// A handler that waits for a buffer of its own topic waits for a request that is
// made elsewhere, so the request does not know that it is inside. Whoever waits
// looks for it.

func nothingToEnd() {}

// inside returns a channel that is closed when the caller, in a handler of the
// buffer's topic, waits for a request that waits for room which only the
// handler's return can make; nil outside of handlers. end is called when the
// wait is over. Two looks in a row have to say so: a request whose last slice is
// smaller than the others may be about to be admitted.
func (b *Buffer[T]) inside(ctx context.Context) (stuck <-chan struct{}, end func()) {
	in, _ := ctx.Value(insideKey{}).(*inside[T])
	if in == nil || in.pusher.group.topic != b.topic || b.topic.budget == nil {
		return nil, nothingToEnd
	}
	t, found := b.topic, make(chan struct{})
	w := &insider[T]{pusher: in.pusher, since: time.Now().UnixNano()}
	t.insiders.add(w)
	var mu sync.Mutex // guards the rest; timer is set before the function reads it
	var timer *time.Timer
	suspected, over := false, false
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		n := b.wants()
		stuck := n > 0 && t.pressed() && t.stuck(&insider[T]{pusher: w.pusher, since: w.since, n: n})
		if stuck && suspected {
			over = true
			close(found)
			return
		}
		suspected = stuck
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

// wants returns how many events the request under way may need room for at once;
// 0 without one, or where events are not counted.
func (b *Buffer[T]) wants() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flying == nil {
		return 0
	}
	return min(len(b.flying.events), b.topic.config.Capacity)
}
