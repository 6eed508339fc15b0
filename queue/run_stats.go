package queue

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// RunStats is a picture of a group under [Group.Run]. Counts are since the
// group was made, over all its runs, and in events unless said otherwise. The
// zero RunStats is that of a group that was never run.
type RunStats struct {
	Running      bool   // Run has not returned, or left a handler behind
	Delivered    uint64 // given to the handler, retries included
	Failed       uint64 // failed deliveries
	DeadLettered uint64 // taken by DeadLetter

	// How many batches were delivered because BatchMax or BatchBytes was
	// reached, because Linger was over (or there is none), and as retries.
	FlushedByCount, FlushedByBytes, FlushedByLinger, Retries uint64

	// Unsettled events were taken and are neither settled nor given up.
	Unsettled int
	// BusySince is when the handler call that has run the longest began, to
	// about a millisecond; zero when no handler runs.
	BusySince time.Time
	// Blocked has a line for each partition whose events wait for a failed
	// one.
	Blocked []BlockedPartition
}

// BlockedPartition is a partition that does not go on.
type BlockedPartition struct {
	Partition int
	Offset    penstock.Offset // of the event in the way
	Due       time.Time       // of its next attempt
	Reason    string          // in words
}

// pushCounts are written by one pusher and read by others.
type pushCounts struct {
	_            [128]byte
	delivered    atomic.Uint64
	failed       atomic.Uint64
	deadLettered atomic.Uint64
	flushed      [flushReasons]atomic.Uint64
	busySince    atomic.Int64 // in Unix nanoseconds; 0 when no user code runs
	inHand       atomic.Int64 // events; of the call since busySince
	_            [128]byte
}

// ownCounts are what a pusher counts per batch. They are shown to others when
// the topic's coarse clock has moved on, about every millisecond, and before
// the pusher sleeps, so that small batches do not pay for it.
type ownCounts struct {
	delivered uint64
	flushed   [flushReasons]uint64
	stamp     int64 // shown as busySince
	inHand    int   // shown
}

// showBusy says that user code gets n events now.
func (p *pusher[T]) showBusy(n int) {
	stamp := p.group.topic.clock.UnixNano()
	if stamp == p.own.stamp && n == p.own.inHand {
		return
	}
	p.own.stamp, p.own.inHand = stamp, n
	p.show()
}

// showIdle says that no user code runs.
func (p *pusher[T]) showIdle() {
	if p.own.stamp != 0 {
		p.own.stamp, p.own.inHand = 0, 0
		p.show()
	}
}

func (p *pusher[T]) show() {
	c := &p.counts
	c.delivered.Store(p.own.delivered)
	for i := range p.own.flushed {
		c.flushed[i].Store(p.own.flushed[i])
	}
	c.inHand.Store(int64(p.own.inHand))
	c.busySince.Store(p.own.stamp)
}

// unsettled returns how many events were taken and are not settled. It is safe
// for concurrent use.
func (p *pusher[T]) unsettled() int {
	n := int(p.counts.inHand.Load())
	for _, l := range p.lanes {
		n += int(l.waiting.Load())
	}
	return n
}

func (g *Group[T]) runStats() RunStats {
	g.push.mu.Lock()
	s := RunStats{Running: g.push.running}
	pushers := g.push.pushers
	g.push.mu.Unlock()
	for _, p := range pushers {
		c := &p.counts
		s.Delivered += c.delivered.Load()
		s.Failed += c.failed.Load()
		s.DeadLettered += c.deadLettered.Load()
		s.FlushedByCount += c.flushed[flushCount].Load()
		s.FlushedByBytes += c.flushed[flushBytes].Load()
		s.FlushedByLinger += c.flushed[flushLinger].Load()
		s.Retries += c.flushed[flushRetry].Load()
		s.Unsettled += p.unsettled()
		if ns := c.busySince.Load(); ns != 0 {
			if since := time.Unix(0, ns); s.BusySince.IsZero() || since.Before(s.BusySince) {
				s.BusySince = since
			}
		}
		for _, l := range p.lanes {
			if b := l.blocked.Load(); b != nil {
				s.Blocked = append(s.Blocked, BlockedPartition{
					Partition: l.cur.part.index, Offset: b.Offset, Due: b.Due, Reason: g.whyBlocked(b),
				})
			}
		}
	}
	return s
}

func (g *Group[T]) whyBlocked(b *settle.Blocked) string {
	why := b.String()
	if b.Reason == settle.Retrying && g.options.deadLetter == nil {
		why += "; it is retried without end because the group has no DeadLetter"
	}
	return why
}

// noteFailures counts and logs the failures of a delivery.
func (p *pusher[T]) noteFailures(l *lane[T], span settle.Span, marked []penstock.Failure, err error) {
	n := len(marked)
	if err != nil {
		n = span.Len()
	} else if n > 0 {
		err = marked[0].Err
	}
	if n == 0 {
		return
	}
	what := "handler failed events"
	if span.DeadLetter {
		what = "dead letters were not taken"
	} else {
		p.counts.failed.Add(uint64(n))
	}
	quiet, ok := p.noise.pass(time.Now())
	if !ok {
		return
	}
	p.logger.Warn(what, slog.Int("partition", l.cur.part.index), slog.Uint64("offset", uint64(span.From)),
		slog.Int("events", n), slog.Int("attempt", span.Attempt), slog.Any("error", err), slog.Uint64("not_logged", quiet))
}

// noise lets one line per second through, so that a handler that fails at full
// speed does not fill the log.
type noise struct {
	next  time.Time
	quiet uint64
}

// pass reports whether to log now, and how many lines were held back since the
// last one.
func (n *noise) pass(now time.Time) (quiet uint64, ok bool) {
	if now.Before(n.next) {
		n.quiet++
		return 0, false
	}
	quiet, n.quiet, n.next = n.quiet, 0, now.Add(time.Second)
	return quiet, true
}
