package queue

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// memoryRetry is the retry log of a topic in memory: the values as they are.
type memoryRetry[T any] struct {
	topic  *Topic[T]
	events map[penstock.Offset]*keptEvent[T]
	seq    uint64 // of the last entry
}

type keptEvent[T any] struct {
	entry parkedEntry
	event parkedEvent[T]
}

func newMemoryRetry[T any](t *Topic[T]) *memoryRetry[T] {
	return &memoryRetry[T]{topic: t, events: make(map[penstock.Offset]*keptEvent[T])}
}

func (r *memoryRetry[T]) load() ([]parkedEntry, error) {
	r.seq = 0
	all := make([]parkedEntry, 0, len(r.events))
	for _, k := range r.events {
		all = append(all, k.entry)
	}
	slices.SortFunc(all, func(a, b parkedEntry) int { return cmp.Compare(a.Offset, b.Offset) })
	return all, nil
}

// size is what Config.Size says. The machine asks in the middle of a decision.
func (r *memoryRetry[T]) size(o penstock.Offset, v *view[T]) (penstock.Bytes, error) {
	value, _, ok := v.at(o)
	if !ok {
		return 0, fmt.Errorf("offset %d is to be parked and not in view", o)
	}
	if r.topic.config.Size == nil {
		return 0, nil
	}
	return r.topic.sizeHeld(*value), nil
}

func (r *memoryRetry[T]) append(entries []settle.Entry, v *view[T]) error {
	now := time.Now()
	for _, e := range entries {
		if e.Seq <= r.seq {
			continue
		}
		r.seq = e.Seq
		switch k := r.events[e.Offset]; {
		case e.Gone:
			delete(r.events, e.Offset)
		case k != nil:
			k.entry.Entry = e
		default:
			value, meta, ok := v.at(e.Offset)
			if !ok {
				return fmt.Errorf("offset %d is to be parked and not in view", e.Offset)
			}
			k = &keptEvent[T]{entry: parkedEntry{e, now}, event: parkedEvent[T]{value: *value, unixNano: v.of(e.Offset).time(e.Offset), epoch: v.of(e.Offset).epoch}}
			if meta != nil {
				k.event.meta = *meta
			}
			r.events[e.Offset] = k
		}
	}
	return nil
}

func (r *memoryRetry[T]) logged() (uint64, error) { return r.seq, nil }

func (r *memoryRetry[T]) read(o penstock.Offset) (parkedEvent[T], error) {
	k := r.events[o]
	if k == nil {
		return parkedEvent[T]{}, fmt.Errorf("offset %d is not in the retry log: %w", o, penstock.ErrNotFound)
	}
	return k.event, nil
}

func (r *memoryRetry[T]) retryAt() time.Time           { return time.Time{} }
func (r *memoryRetry[T]) sync() error                  { return nil }
func (r *memoryRetry[T]) grown(int) bool               { return false }
func (r *memoryRetry[T]) rewrite([]settle.Entry) error { return nil }
func (r *memoryRetry[T]) rest()                        {}
func (r *memoryRetry[T]) drain()                       {}
func (r *memoryRetry[T]) close() error                 { return nil }
