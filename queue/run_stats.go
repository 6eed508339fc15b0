package queue

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
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

	Batches uint64 // all of these
	Dropped uint64 // failed, and not delivered again because of AutoCommit

	// HandlerTime is how long calls of the handler took that have returned, all
	// added up, to about a millisecond.
	HandlerTime time.Duration
	// Calls are the calls of the handler, or of DeadLetter, that run now, the
	// oldest first; at most 16.
	Calls []HandlerCall
	// Ended is when the last Run returned an error, and EndedBy what it said, in
	// at most 512 bytes; "" when it returned none, and while the group is run.
	Ended   time.Time
	EndedBy string

	// Unsettled events were taken and are neither settled nor given up: InHand
	// those of Calls, Waiting those that failed and wait to come again.
	Unsettled, InHand, Waiting int
	// BusySince is when the handler call that has run the longest began, to
	// about a millisecond; zero when no handler runs.
	BusySince time.Time
	// Blocked has a line for each partition whose events wait for a failed
	// one.
	Blocked []BlockedPartition
	// Unreadable has a line for each partition that cannot be read on, while the
	// group is run.
	Unreadable []UnreadablePartition
}

// BlockedPartition is a partition that does not go on.
type BlockedPartition struct {
	Partition int
	Offset    penstock.Offset // of the event in the way
	Due       time.Time       // of its next attempt
	Kind      settle.Reason
	Attempts  int    // that it has had
	Reason    string // in words; at most 512 bytes
}

// HandlerCall is a call of user code that has not returned.
type HandlerCall struct {
	Partition int
	Offset    penstock.Offset // of the first event
	Events    int
	Since     time.Time // to about a millisecond
}

// maxCalls bounds the list of calls in a picture.
const maxCalls = 16

// flushReasons is how many there are.
const flushReasons = int(penstock.FlushRetry) + 1

// pushCounts are written by one pusher and read by others.
type pushCounts struct {
	_            [128]byte
	delivered    atomic.Uint64
	failed       atomic.Uint64
	deadLettered atomic.Uint64
	dropped      atomic.Uint64
	flushed      [flushReasons]atomic.Uint64
	busyNanos    atomic.Int64  // of calls that returned
	busySince    atomic.Int64  // in Unix nanoseconds; 0 when no user code runs
	busyAt       atomic.Uint64 // a place: of the call since busySince
	inHand       atomic.Int64  // events; of the call since busySince
	_            [128]byte
}

// ownCounts are what a pusher counts per batch. They are shown to others when
// the topic's coarse clock has moved on, about every millisecond, and before
// the pusher sleeps, so that small batches do not pay for it.
type ownCounts struct {
	delivered uint64
	flushed   [flushReasons]uint64
	busyNanos int64
	stamp     int64 // shown as busySince
	shown     int64 // when a crew's counts were shown
	inHand    int   // shown
}

// place is a partition and an offset in one word: 16 bits and the low 48.
type place uint64

const placeBits = 48

func placeOf(partition int, at penstock.Offset) place {
	return place(partition)<<placeBits | place(at)&(1<<placeBits-1)
}

func (p place) partition() int { return int(p >> placeBits) }

// offset returns the offset, which is not below near and less than 2^48 above.
func (p place) offset(near penstock.Offset) penstock.Offset {
	return near + penstock.Offset((p-place(near))&(1<<placeBits-1))
}

// showBusy says that user code gets n events now, from an offset on.
func (p *pusher[T]) showBusy(partition int, at penstock.Offset, n int) {
	p.counts.busyAt.Store(uint64(placeOf(partition, at)))
	stamp := p.group.topic.clock.UnixNano()
	if stamp == p.own.stamp && n == p.own.inHand {
		return
	}
	p.own.stamp, p.own.inHand = stamp, n
	p.show()
}

// callNote is the call of user code that a worker makes.
type callNote struct {
	since atomic.Int64  // in Unix nanoseconds; 0 when there is none
	at    atomic.Uint64 // a place
	n     atomic.Int64  // events
}

func (n *callNote) clear() {
	n.since.Store(0)
	n.n.Store(0)
}

// showFlying says that a worker gets a job now.
func (p *pusher[T]) showFlying(j *job[T]) {
	stamp := p.group.topic.clock.UnixNano()
	j.note.at.Store(uint64(placeOf(j.lane.cur.part.index, j.span.From)))
	j.note.n.Store(int64(len(j.values)))
	j.note.since.Store(stamp)
	if stamp != p.own.shown {
		p.own.shown = stamp
		p.show()
	}
}

// countCall counts a call of the handler that has returned.
func (p *pusher[T]) countCall(j *job[T]) {
	since := p.own.stamp
	if len(p.crew.jobs) > 0 {
		since = j.note.since.Load()
	}
	if !j.span.DeadLetter {
		p.own.busyNanos += max(0, p.group.topic.clock.UnixNano()-since)
	}
}

// showIdle says that no user code runs.
func (p *pusher[T]) showIdle() {
	if len(p.crew.jobs) > 0 {
		p.show()
		return
	}
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
	c.busyNanos.Store(p.own.busyNanos)
	c.inHand.Store(int64(p.own.inHand))
	c.busySince.Store(p.own.stamp)
}

// waiting returns how many events failed and wait. It is safe for concurrent
// use.
func (p *pusher[T]) waiting() int {
	n := 0
	for _, l := range p.lanes {
		n += int(l.waiting.Load())
	}
	return n
}

// calls appends the calls of user code that run now.
func (p *pusher[T]) calls(out []HandlerCall) []HandlerCall {
	add := func(since int64, at place, n int64) {
		if since == 0 {
			return
		}
		c := HandlerCall{Partition: at.partition(), Events: int(n), Since: time.Unix(0, since)}
		low := penstock.Offset(0)
		if from := p.lanes[0].cur.part.index; c.Partition >= from && c.Partition-from < len(p.lanes) {
			low = p.lanes[c.Partition-from].cur.shown().Low()
		}
		c.Offset = at.offset(low)
		out = append(out, c)
	}
	c := &p.counts
	add(c.busySince.Load(), place(c.busyAt.Load()), c.inHand.Load())
	for _, j := range p.crew.jobs {
		add(j.note.since.Load(), place(j.note.at.Load()), j.note.n.Load())
	}
	return out
}

// noteEnd keeps what ended a run, and returns it.
func (g *Group[T]) noteEnd(err error) error {
	if err == nil || matches(err, penstock.ErrClosed) {
		return err
	}
	g.noteError(KindRun, -1, 0, err)
	g.push.mu.Lock()
	defer g.push.mu.Unlock()
	g.push.ended, g.push.endedBy = time.Now(), debugpage.ErrorText(err)
	return err
}

func (g *Group[T]) runStats() RunStats {
	g.push.mu.Lock()
	s := RunStats{Running: g.push.running, EndedBy: g.push.endedBy}
	if s.EndedBy != "" {
		s.Ended = g.push.ended
	}
	pushers := g.push.pushers
	s.count(&g.push.past)
	g.push.mu.Unlock()
	for _, p := range pushers {
		s.count(&p.counts)
		s.Calls = p.calls(s.Calls)
		s.Waiting += p.waiting()
		if s.Running {
			s.Unreadable = p.unreadablePartitions(s.Unreadable)
		}
		for _, l := range p.lanes {
			if b := l.blocked.Load(); b != nil {
				s.Blocked = append(s.Blocked, BlockedPartition{
					Partition: l.cur.part.index, Offset: b.Offset, Due: b.Due,
					Kind: b.Reason, Attempts: b.Attempt, Reason: debugpage.Bounded(g.whyBlocked(b)),
				})
			}
		}
	}
	for _, c := range s.Calls {
		s.InHand += c.Events
	}
	s.Unsettled = s.InHand + s.Waiting
	s.Batches = s.FlushedByCount + s.FlushedByBytes + s.FlushedByLinger + s.Retries
	slices.SortFunc(s.Calls, func(a, b HandlerCall) int { return a.Since.Compare(b.Since) })
	if len(s.Calls) > 0 {
		s.BusySince = s.Calls[0].Since
	}
	if len(s.Calls) > maxCalls {
		s.Calls = s.Calls[:maxCalls]
	}
	return s
}

// count adds what a pusher has counted.
func (s *RunStats) count(c *pushCounts) {
	s.Delivered += c.delivered.Load()
	s.Failed += c.failed.Load()
	s.DeadLettered += c.deadLettered.Load()
	s.FlushedByCount += c.flushed[penstock.FlushCount].Load()
	s.FlushedByBytes += c.flushed[penstock.FlushBytes].Load()
	s.FlushedByLinger += c.flushed[penstock.FlushLinger].Load()
	s.Retries += c.flushed[penstock.FlushRetry].Load()
	s.Dropped += c.dropped.Load()
	s.HandlerTime += time.Duration(c.busyNanos.Load())
}

func (g *Group[T]) whyBlocked(b *settle.Blocked) string {
	why := b.String()
	if b.Reason == settle.Retrying && g.options.deadLetter == nil {
		why += "; it is retried without end because the group has no DeadLetter"
	}
	return why
}

// noteFailures counts and logs the failures of a job.
func (p *pusher[T]) noteFailures(j *job[T], marked []penstock.Failure, err error) {
	l, span := j.lane, &j.span
	n, at, kind := len(marked), span.From, KindHandler
	if err != nil {
		n = len(j.values)
	} else if n > 0 {
		err, at = marked[0].Err, j.offset(marked[0].Index)
	}
	if n == 0 {
		return
	}
	what := "handler failed events"
	switch {
	case span.DeadLetter:
		what, kind = "dead letters were not taken", KindDeadLetter
	case j.bad != nil:
		what, kind = "an event cannot be decoded", KindDecode
	default:
		p.counts.failed.Add(uint64(n))
		if p.group.config.AutoCommit {
			p.counts.dropped.Add(uint64(n))
		}
	}
	p.group.noteError(kind, l.cur.part.index, at, err)
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
