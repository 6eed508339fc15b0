package queue

import (
	"context"
	"sync/atomic"

	"github.com/penstock/penstock"
)

// debt is capacity that events of a partition hold for others: what was appended
// in their stead without asking for room. Their commit gives that much less
// back.
type debt struct {
	events atomic.Int64
	bytes  atomic.Int64
}

func (d *debt) add(n int, bytes penstock.Bytes) {
	d.events.Add(int64(n))
	d.bytes.Add(int64(bytes))
}

// pay returns what is left of capacity that has become free. It is called under
// the budget's lock; add may run beside it.
func (d *debt) pay(n int, bytes penstock.Bytes) (int, penstock.Bytes) {
	if owed := d.events.Load(); owed != 0 {
		part := min(owed, int64(n))
		d.events.Add(-part)
		n -= int(part)
	}
	if owed := d.bytes.Load(); owed != 0 {
		part := min(owed, int64(bytes))
		d.bytes.Add(-part)
		bytes -= penstock.Bytes(part)
	}
	return n, bytes
}

// produceInStead appends an event in the stead of one that lies in partition p
// and is committed next, whose capacity it takes over: it needs no room. Until
// that commit the topic holds one event more than its capacity. The caller
// knows that nothing but its own commit keeps that event.
func (t *Topic[T]) produceInStead(ctx context.Context, p *partition[T], e penstock.Event[T]) error {
	if err := t.open(ctx); err != nil {
		return err
	}
	values, metas := split([]penstock.Event[T]{e})
	var m *measured
	if t.measured {
		m = t.measures.Get().(*measured)
		defer t.putMeasured(m)
		if err := t.measure(m, values, metas); err != nil {
			return err
		}
	}
	size := penstock.Bytes(0)
	if t.config.CapacityBytes > 0 {
		size = m.bytes(1)
	}
	p.debt.add(1, size)
	appended := false
	defer func() { // also when user code ends the goroutine
		if !appended {
			p.debt.add(-1, -size)
		}
	}()
	if err := t.appendSlice(ctx, values, metas, m, nil); err != nil {
		return err
	}
	appended = true
	return nil
}
