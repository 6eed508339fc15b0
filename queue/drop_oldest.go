package queue

import (
	"context"
	"errors"
	"math"

	"github.com/penstock/penstock"
)

// errNothingToDrop: what takes the capacity is not appended yet.
var errNothingToDrop = errors.New("nothing to drop")

// dropPart is the part of the capacity that is dropped at a time at the least:
// each time costs a write, and at level synced a sync, per group.
const dropPart = 64

// dropOldest moves groups past the oldest events until there is capacity for n
// events, and takes it. The strict part of admission has been entered.
func (t *Topic[T]) dropOldest(ctx context.Context, n int, bytes penstock.Bytes) error {
	defer t.disk.tellSkips()
	for !t.budget.TryAcquire(n, bytes) {
		if err := t.open(ctx); err != nil {
			return err
		}
		if !t.disk.drop(max(n, t.config.Capacity/dropPart)) {
			return errNothingToDrop
		}
		t.budget.Poke()
	}
	return nil
}

// drop moves all groups past the oldest n events of the partition that holds
// the oldest one, fewer when it has not so many. It returns false when no
// partition holds any.
func (e *fileEngine[T]) drop(n int) bool {
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
	to := min(from+penstock.Offset(n), p.end())
	if err := e.expire(p, to, true); err != nil {
		t.logger.Warn("where a group was moved to is not stored", "partition", p.index, "err", err)
	}
	p.sweep()
	return true
}
