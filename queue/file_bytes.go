package queue

import (
	"context"
	"sync"

	"github.com/penstock/penstock"
)

// entry is the sizes of a frame on its way to the ledger of its partition. The
// goroutine that writes enters them when the frame is safe and not yet
// readable, so the ledger has them before a commit can pass them.
type entry struct {
	ledger *ledger
	sizes  []penstock.Bytes
	fn     func() // of done; made once
}

var entries sync.Pool // of *entry

// enter returns what a frame calls when it is appended. A frame that fails
// leaves it to the garbage collector.
func enter(l *ledger, sizes []penstock.Bytes, picked []int32) func() {
	e, _ := entries.Get().(*entry)
	if e == nil {
		e = new(entry)
		e.fn = e.done
	}
	e.ledger, e.sizes = l, e.sizes[:0]
	for _, i := range picked {
		e.sizes = append(e.sizes, sizes[i])
	}
	return e.fn
}

func (e *entry) done() {
	e.ledger.add(e.sizes...)
	if cap(e.sizes) <= measuredMax/8 {
		entries.Put(e)
	}
}

// adoptBytes fills the ledger of a partition with the sizes of what the topic
// holds from before, as far as they fit room, the newest first, and returns
// what they take. What cannot be read takes nothing.
func (e *fileEngine[T]) adoptBytes(ctx context.Context, p *partition[T], room penstock.Bytes) penstock.Bytes {
	l, end := p.ledger, p.file.end()
	l.begin(p.returned)
	r, err := p.file.log.NewReader(p.returned)
	for err == nil && l.end < end && ctx.Err() == nil {
		rec, next := r.Next(int(min(end-l.end, maxSlice)))
		if err = next; err != nil || rec.N == 0 {
			break
		}
		for i := range rec.N {
			l.add(penstock.Bytes(len(rec.At(i))))
			for l.total-l.below > room {
				l.release(l.start + 1)
			}
		}
	}
	if r != nil {
		if closing := r.Close(); err == nil {
			err = closing
		}
	}
	if err != nil {
		e.topic.logger.Warn("the size of what was kept is not known; it does not count against the capacity",
			"partition", p.index, "from", uint64(l.end), "err", err)
	}
	for l.end < end && ctx.Err() == nil { // the open fails when it has ended
		l.add(0)
	}
	return l.total - l.below
}

func (e *fileEngine[T]) close() error {
	e.keeper.end()
	return e.log.Close()
}
