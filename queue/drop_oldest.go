package queue

import (
	"context"
	"math"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

const (
	// dropPart is the part of Capacity that is dropped at a time at the least:
	// each time costs a write, and at level synced a sync, per group.
	dropPart = 64
	// dropAgain is how often a producer in line looks for something to drop.
	dropAgain = 10 * time.Millisecond
)

// dropOldest moves groups past the oldest events until there is capacity for n
// events, and takes it. The strict part of admission has been entered.
func (t *Topic[T]) dropOldest(ctx context.Context, n int, bytes penstock.Bytes) error {
	defer t.disk.tellSkips()
	least := max(n, t.config.Capacity/dropPart)
	for !t.budget.TryAcquire(n, bytes) {
		if err := t.open(ctx); err != nil {
			return err
		}
		if !t.disk.drop(least) {
			return t.acquireDropping(ctx, n, bytes, least)
		}
		t.budget.Poke()
	}
	return nil
}

// acquireDropping waits in line for capacity that is taken by what is not
// appended yet. When that is there it can be dropped, and nobody else may come
// who would do it.
func (t *Topic[T]) acquireDropping(ctx context.Context, n int, bytes penstock.Bytes, least int) error {
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
			for t.budget.Waiting() > 0 && t.disk.drop(least) {
				t.budget.Poke()
			}
		}
	}()
	err := t.budget.Acquire(ctx, n, bytes)
	close(over)
	<-ended
	return err
}

// drop moves all groups past the oldest n events of the partition that holds
// the oldest one, fewer when it has not so many. It returns false when no
// partition holds any.
func (e *fileEngine[T]) drop(n int) bool {
	return e.dropTo(func(_ *segfile.Partition, from penstock.Offset) penstock.Offset { return from + penstock.Offset(n) })
}

// dropTo is drop up to the offset that end gives for the partition and its
// oldest event.
func (e *fileEngine[T]) dropTo(end func(p *segfile.Partition, from penstock.Offset) penstock.Offset) bool {
	t := e.topic
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	p, since := (*partition[T])(nil), int64(math.MaxInt64)
	for _, q := range t.parts {
		at := max(q.marks.Committed(), q.file.earliest())
		if at >= q.end() {
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
	to := min(end(p.file.log, from), p.end())
	if to <= from {
		return false
	}
	if err := e.expire(p, to, true); err != nil {
		t.logger.Warn("where a group was moved to is not stored", "partition", p.index, "err", err)
	}
	p.sweep()
	return true
}
