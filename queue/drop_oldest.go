package queue

import (
	"context"
	"math"
	"time"

	"github.com/penstock/penstock"
)

const (
	// dropPart is the part of Capacity that is dropped at a time at the least:
	// each time costs a write, and at level synced a sync, per group.
	dropPart = 64
	// dropAgain is how often a producer in line looks for something to drop.
	dropAgain = 10 * time.Millisecond
	// dropAgainMax is how rarely at the most a request that waits for disk space
	// tries to delete what could not be deleted.
	dropAgainMax = time.Second
)

// dropOldest moves groups past the oldest events until there is capacity for n
// events, and takes it. The strict part of admission has been entered. One
// producer at a time does so, first come, first served: of two, each would drop
// what both of them lack.
func (t *Topic[T]) dropOldest(ctx context.Context, n int, bytes penstock.Bytes) error {
	defer t.disk.tellSkips() // user code, so when the next one may have its turn
	select {
	case t.disk.dropping <- struct{}{}:
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
	defer func() { <-t.disk.dropping }()
	for !t.budget.TryAcquire(n, bytes) {
		if err := t.open(ctx); err != nil {
			return err
		}
		if !t.disk.dropFor(n, bytes) {
			return t.acquireDropping(ctx, n, bytes)
		}
		t.budget.Poke()
	}
	return nil
}

// acquireDropping waits in line for capacity that is taken by what is not
// appended yet. When that is there it can be dropped, and nobody else may come
// who would do it.
func (t *Topic[T]) acquireDropping(ctx context.Context, n int, bytes penstock.Bytes) error {
	over, ended := make(chan struct{}), make(chan struct{})
	// Drops what becomes readable while its producer is in line, which ends it
	// and waits for it.
	go func() {
		defer close(ended)
		again := time.NewTicker(dropAgain)
		defer again.Stop()
		for {
			select {
			case <-over:
				return
			case <-again.C:
			}
			for t.budget.Waiting() > 0 && t.disk.dropFor(n, bytes) {
				t.budget.Poke()
			}
		}
	}()
	err := t.budget.Acquire(ctx, n, bytes)
	close(over)
	<-ended
	return err
}

// dropFor moves all groups past what a request lacks, in the partition that holds
// the oldest event: fewer when it has not so many, and more when that is less
// than a part of the capacity. It returns false when no partition holds any.
func (e *fileEngine[T]) dropFor(n int, bytes penstock.Bytes) bool {
	c, events, size := &e.topic.config, 0, penstock.Bytes(0)
	free, freeBytes := e.topic.budget.Available()
	if c.Capacity > 0 && n > free {
		events = max(n-free, c.Capacity/dropPart)
	}
	if c.CapacityBytes > 0 && bytes > freeBytes {
		size = max(bytes-freeBytes, c.CapacityBytes/dropPart)
	}
	if events == 0 && size == 0 {
		return true // a commit has made room since
	}
	return e.dropTo(func(p *partition[T], from penstock.Offset) penstock.Offset {
		to := from + penstock.Offset(events)
		if size > 0 {
			to = max(to, p.ledger.reach(from, size))
		}
		return to
	})
}

// dropTo moves all groups past the oldest events of the partition that holds the
// oldest one, up to the offset that end gives for the two; that offset itself says
// that nothing can go.
func (e *fileEngine[T]) dropTo(end func(p *partition[T], from penstock.Offset) penstock.Offset) bool {
	t := e.topic
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	p, since := (*partition[T])(nil), int64(math.MaxInt64)
	for _, q := range t.parts {
		at := max(q.marks.Committed(), q.file.earliest())
		if at >= q.end() || end(q, at) <= at { // the latter where damage keeps the oldest segment
			continue
		}
		var times [1]int64
		if q.file.log.TimesAt([]penstock.Offset{at}, times[:]); p == nil || times[0] < since {
			p, since = q, times[0]
		}
	}
	if p == nil || t.groups == nil {
		return false
	}
	from := max(p.marks.Committed(), p.file.earliest())
	to := min(end(p, from), p.end())
	if to <= from {
		return false
	}
	if err := e.expire(p, to, true); err != nil {
		t.logger.Warn("where a group was moved to is not stored", "partition", p.index, "err", err)
	}
	p.sweep()
	return true
}
