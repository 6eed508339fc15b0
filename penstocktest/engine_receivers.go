package penstocktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// engineReceiver is what both families have in common.
type engineReceiver struct {
	engine *Engine
	queue  int
}

func (r *engineReceiver) Init(ctx context.Context) error {
	return r.engine.do(ctx, EngineInit, r.queue, func(*engineQueue, EngineFault) error { return nil })
}

// wait returns when ready says so.
func (r *engineReceiver) wait(ctx context.Context, ready func(q *engineQueue, now time.Time) (ok bool, again time.Time)) error {
	for {
		now := time.Now()
		r.engine.mu.Lock()
		q := r.engine.queues[r.queue]
		ok, again := ready(q, now)
		news := q.news
		r.engine.mu.Unlock()
		if err := penstock.ContextError(ctx); err != nil || ok {
			return err
		}
		var timer <-chan time.Time
		if !again.IsZero() {
			timer = time.After(again.Sub(now))
		}
		select {
		case <-news:
		case <-timer:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
}

// logReceiver reads by position, ahead of its checkpoint.
type logReceiver struct {
	engineReceiver
	marks  stream.Checkpointer
	next   uint64
	placed bool
}

func (r *logReceiver) place(ctx context.Context) error {
	if r.placed {
		return nil
	}
	pos, ok, err := r.marks.Load(ctx)
	if err != nil {
		return err
	}
	if ok {
		r.next = pos.Lo + 1
	}
	r.placed = true
	return nil
}

// Read returns what lies behind the last read. Its error matches
// penstock.ErrOffsetOutOfRange when that was trimmed: nothing is passed over.
func (r *logReceiver) Read(ctx context.Context, limit int) (out []stream.Container, err error) {
	if err := r.place(ctx); err != nil {
		return nil, err
	}
	next := r.next
	err = r.engine.do(ctx, EngineRead, r.queue, func(q *engineQueue, _ EngineFault) error {
		if r.next < q.first {
			return fmt.Errorf("queue %d: offsets %d to %d were trimmed: %w", r.queue, r.next, q.first-1, penstock.ErrOffsetOutOfRange)
		}
		for _, m := range q.entries {
			if m.offset < r.next || limit >= 0 && len(out) == limit {
				continue
			}
			c := m.c
			c.Token = penstock.Token{Lo: m.offset}
			out = append(out, c)
			next = m.offset + 1
		}
		return nil
	})
	if err != nil {
		return nil, err // the place stays: the same comes again
	}
	r.next = next
	return out, nil
}

func (r *logReceiver) Wait(ctx context.Context) error {
	return r.wait(ctx, func(q *engineQueue, _ time.Time) (bool, time.Time) { return r.next < q.next, time.Time{} })
}

func (*logReceiver) Delivered(context.Context, []stream.Container) error { return nil }
func (r *logReceiver) Checkpointer() stream.Checkpointer                 { return r.marks }

func (r *logReceiver) Shutdown(ctx context.Context) error {
	return errors.Join(r.marks.Flush(ctx), r.engine.do(ctx, EngineShutdown, r.queue, func(*engineQueue, EngineFault) error { return nil }))
}

// receiptReceiver takes containers with receipts. It does not renew them.
type receiptReceiver struct{ engineReceiver }

type engineReceipt uint64

func (r *receiptReceiver) Read(ctx context.Context, limit int) (out []stream.Container, err error) {
	err = r.engine.do(ctx, EngineRead, r.queue, func(q *engineQueue, f EngineFault) error {
		now := time.Now()
		var visible []*engineEntry
		for _, m := range q.entries {
			if m.visible(now) && (limit < 0 || len(visible) < limit) {
				visible = append(visible, m)
			}
		}
		if f.Reorder {
			slices.Reverse(visible)
		}
		for _, m := range visible {
			q.tokens++
			q.receipt++
			c := m.c
			c.Token, c.Attempts, c.Raw = penstock.Token{Lo: q.tokens}, m.received, engineReceipt(q.receipt)
			m.received++
			if !f.Duplicate {
				m.receipt, m.until = q.receipt, now.Add(r.engine.visibility)
			}
			out = append(out, c)
		}
		return nil
	})
	if err != nil {
		out = nil // handed out or not: it comes again
	}
	return out, err
}

func (m *engineEntry) visible(now time.Time) bool {
	if m.receipt != 0 && !now.Before(m.until) {
		m.receipt = 0
	}
	return m.receipt == 0
}

func (r *receiptReceiver) Wait(ctx context.Context) error {
	return r.wait(ctx, func(q *engineQueue, now time.Time) (bool, time.Time) {
		var soonest time.Time
		for _, m := range q.entries {
			if m.visible(now) {
				return true, time.Time{}
			}
			if soonest.IsZero() || m.until.Before(soonest) {
				soonest = m.until
			}
		}
		return false, soonest
	})
}

// Delivered acknowledges. The error matches stream.ErrReceiptExpired when a
// receipt was no longer valid; the others count.
func (r *receiptReceiver) Delivered(ctx context.Context, done []stream.Container) error {
	return r.engine.do(ctx, EngineAck, r.queue, func(q *engineQueue, _ EngineFault) error {
		now, late := time.Now(), 0
		for i := range done {
			n := done[i].Raw.(engineReceipt)
			at := slices.IndexFunc(q.entries, func(m *engineEntry) bool { return !m.visible(now) && m.receipt == uint64(n) })
			if at < 0 {
				late++
				continue
			}
			q.entries = slices.Delete(q.entries, at, at+1)
		}
		if late > 0 {
			return fmt.Errorf("%d of %d containers: %w", late, len(done), stream.ErrReceiptExpired)
		}
		return nil
	})
}

// Shutdown gives back everything that the queue has handed out.
func (r *receiptReceiver) Shutdown(ctx context.Context) error {
	return r.engine.do(ctx, EngineShutdown, r.queue, func(q *engineQueue, _ EngineFault) error {
		for _, m := range q.entries {
			m.receipt = 0
		}
		q.wake()
		return nil
	})
}
