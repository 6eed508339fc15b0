package stage

import (
	"context"
	"time"
)

// DedupeWithin returns a gate that passes an event only when none with its key
// has passed within d before it. It remembers up to limit keys, each until its d
// is over; when there are more it forgets the oldest, whose next event passes
// then. limit 0 means [DefaultBuffer]; a negative one, or a d that is not positive,
// is an error at Start. What it remembers it forgets at a restart. A key that is
// not equal to itself, such as a NaN, is never known. key gets a pointer that may
// not be kept.
func DedupeWithin[T any, Key comparable](d time.Duration, limit int, key func(*T) Key, opts ...Option) *Gate[T, T] {
	if limit == 0 {
		limit = DefaultBuffer
	}
	m := &memory[Key]{within: d, limit: limit}
	m.forget()
	var keys []Key // scratch
	g := helper("dedupe", key != nil, func(_ context.Context, in []T, out *Output[T]) error {
		keys = keys[:0]
		for i := range in { // user code first: it may panic
			keys = append(keys, key(&in[i]))
		}
		now, n := time.Now(), 0
		for i := range in {
			if m.isNew(keys[i], now) {
				if n != i {
					in[n] = in[i]
				}
				n++
			}
		}
		clear(keys)
		out.lost.filtered = len(in) - n
		out.Forward(in[:n:cap(in)])
		return nil
	}, opts)
	if d <= 0 {
		g.in.invalid("DedupeWithin", "%v is not positive", d)
	}
	if limit < 0 {
		g.in.invalid("DedupeWithin", "a limit of %d is negative", limit)
	}
	g.in.anew(m.forget)
	return g
}

// A memory knows the keys of the last d.
//
// Invariants: seen has the keys of order, each once, with the times at which they
// are forgotten, which do not fall; there are at most limit of them.
type memory[Key comparable] struct {
	within time.Duration
	limit  int
	seen   map[Key]struct{}
	order  deque[keyUntil[Key]]
}

type keyUntil[Key comparable] struct {
	key   Key
	until time.Time
}

// isNew reports whether a key is not known, and remembers it.
func (m *memory[Key]) isNew(k Key, now time.Time) bool {
	for m.order.len() > 0 && !now.Before(m.order.front().until) {
		delete(m.seen, m.order.pop().key)
	}
	if _, known := m.seen[k]; known {
		return false
	}
	if same := k; same != k { // not a number: a map would keep it for good
		return true
	}
	if m.order.len() == m.limit {
		delete(m.seen, m.order.pop().key)
	}
	m.seen[k] = struct{}{}
	m.order.pushBack([]keyUntil[Key]{{k, now.Add(m.within)}})
	return true
}

func (m *memory[Key]) forget() {
	m.seen = map[Key]struct{}{}
	m.order = deque[keyUntil[Key]]{clears: true}
}
