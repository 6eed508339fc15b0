package queue

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock"
)

// How large a batch is: limits in bytes, and waiting for more (Linger).

// sizing adds up the sizes of the events that the next batch may have. What was
// summed up is kept while the batch waits for more.
type sizing struct {
	from  penstock.Offset // n events from here on have bytes
	n     int
	bytes penstock.Bytes
}

// cut returns how many of the events, the first of which has the offset from,
// have at most limit bytes, at least one, and whether the limit is reached.
func cut[T any](s *sizing, from penstock.Offset, events []T, limit penstock.Bytes, size func(T) penstock.Bytes) (n int, full bool) {
	if s.from != from || s.n > len(events) {
		*s = sizing{from: from}
	}
	for s.n < len(events) {
		size := max(0, size(events[s.n]))
		if s.n > 0 && size > limit-s.bytes {
			return s.n, true
		}
		s.n++
		if size >= limit-s.bytes {
			s.bytes = limit
			return s.n, true
		}
		s.bytes += size
	}
	return len(events), false
}

// validateSize fills the default of BatchMin.
func (c *GroupConfig) validateSize(sized bool) error {
	switch {
	case c.BatchBytes < 0:
		return &penstock.FieldError{Field: "BatchBytes", Reason: fmt.Sprintf("%d is negative", int64(c.BatchBytes))}
	case c.BatchBytes > 0 && !sized:
		return &penstock.FieldError{Field: "BatchBytes", Reason: "the topic's Config.Size, which tells the size of an event, is nil"}
	case c.Linger < 0:
		return &penstock.FieldError{Field: "Linger", Reason: c.Linger.String() + " is negative"}
	case c.BatchMin > 0 && c.Linger == 0:
		return &penstock.FieldError{Field: "BatchMin", Reason: "Linger is 0, so no batch waits for more"}
	}
	if c.BatchMin == 0 {
		c.BatchMin = c.BatchMax
	}
	return inRange("BatchMin", c.BatchMin, c.BatchMax)
}

// shaping is what a consumer keeps for batches that are limited in bytes, or
// that wait for more.
type shaping struct {
	shaped  bool        // BatchBytes or Linger is set; else the rest is not used
	sizes   []sizing    // by place
	lingers []lingering // by place
	timer   *time.Timer // nil before the first batch that waits
}

func newShaping(c *GroupConfig, places int) shaping {
	if c.BatchBytes == 0 && c.Linger == 0 {
		return shaping{}
	}
	return shaping{shaped: true, sizes: make([]sizing, places), lingers: make([]lingering, places)}
}

// lingering is since when the next batch of a partition waits for more.
type lingering struct {
	from  penstock.Offset // its first event
	until time.Time       // zero before one was seen
}

// pullFull is Pull in a group with Linger. All dirty bits are collected before
// each look at all partitions, so what comes after it ends the wait, while the
// partitions that wait for more do not.
func (c *Consumer[T]) pullFull(ctx context.Context, max int) (Batch[T], error) {
	if c.way.Load() != everyStep && c.now.read+penstock.Offset(max) <= c.now.smooth {
		if b, ok, err := c.TryPull(max); ok || err != nil {
			return b, err
		}
	}
	if err := c.enter(true); err != nil { // before it looks at what Run, perhaps, is at work with
		return Batch[T]{}, err
	}
	for {
		if ctx.Err() != nil {
			return Batch[T]{}, penstock.ContextError(ctx)
		}
		c.collect()
		if b, ok, err := c.pull(ctx, max, true); ok || err != nil {
			return b, err
		}
		if err := c.waker.Wait(ctx, c.alarm()); err != nil {
			return Batch[T]{}, err
		}
	}
}

// alarm returns a channel that fires when a partition has waited for more for
// long enough, or when the rate allows more; nil when nothing is to come by
// itself.
func (c *Consumer[T]) alarm() <-chan time.Time {
	at := time.Time{}
	if c.ticket.limited {
		at = c.ticket.at
	}
	for i, cur := range c.cursors {
		l := &c.lingers[i]
		if l.until.IsZero() || l.from != cur.read || c.group.control.held(cur.part.index) {
			continue
		}
		if at.IsZero() || l.until.Before(at) {
			at = l.until
		}
	}
	if at.IsZero() {
		return nil
	}
	if c.timer == nil {
		c.timer = time.NewTimer(time.Until(at))
	} else {
		c.timer.Reset(time.Until(at))
	}
	return c.timer.C
}

// waits reports whether the next batch of partition i, of n events, waits for
// more, and begins to when its first event is seen for the first time.
func (c *Consumer[T]) waits(i, n, max int) bool {
	if n == 0 || n >= min(max, c.group.config.BatchMin) {
		return false
	}
	l, now := &c.lingers[i], time.Now()
	if from := c.cursors[i].read; l.until.IsZero() || l.from != from {
		l.from, l.until = from, now.Add(c.group.config.Linger)
	}
	return now.Before(l.until)
}

// filling reports whether partition i waits for more, as far as that can be
// told without looking at its events: with a limit in bytes it cannot.
func (c *Consumer[T]) filling(i, max int) bool {
	return c.group.config.BatchBytes == 0 && c.waits(i, c.cursors[i].readable(), max)
}

// shape returns how many of the next max events of partition i its next batch
// has, and why: 0 when there is none, or when it waits for more.
func (c *Consumer[T]) shape(i, max int, linger bool) (n int, why penstock.FlushReason, err error) {
	cur, limit := c.cursors[i], c.group.config.BatchBytes
	n = min(int(cur.limit-cur.read), max)
	if limit > 0 && n > 0 {
		full := false
		if n, full, err = c.cut(i, n); err != nil || full {
			return n, penstock.FlushBytes, err
		}
	}
	switch {
	case linger && c.waits(i, cur.readable(), max): // more than the window has, perhaps
		return 0, penstock.FlushUnknown, nil
	case n == max:
		return n, penstock.FlushCount, nil
	}
	return n, penstock.FlushLinger, nil
}

// cut asks for the sizes of the next n events of partition i. A panic becomes a
// [penstock.PanicError], and takes nothing.
func (c *Consumer[T]) cut(i, n int) (fit int, full bool, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &penstock.PanicError{Where: "Size of topic " + c.group.topic.config.Name, Value: r, Stack: debug.Stack()}
		}
	}()
	cur := c.cursors[i]
	at := int(cur.read - cur.win.First)
	fit, full = cut(&c.sizes[i], cur.read, cur.win.Values[at:at+n], c.group.config.BatchBytes, c.group.topic.config.Size)
	return fit, full, nil
}
