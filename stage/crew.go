package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// A crew is a sink that runs a child for every event, each in a goroutine of
// its own, in as many slots per subscription as the subscription's max. It is
// what [Pool] and [Slots] have in common.
//
// The crew's own goroutine takes events, judges children that have ended, asks,
// and calls the hook. A child's goroutine runs user code and reports; it is kept
// for the next child. Others look at the children and tell them to stop.
//
// Invariants: busy holds the children that have not finally ended, each once;
// the sum of the lanes' occupied is len(busy) as the crew's goroutine sees it; a
// seat that is abandoned belongs to its goroutine alone. No lock is held while
// user code runs.
type crew[T any] struct {
	in       inlet[T]
	start    Starter[T]
	restart  Mode
	tol      tolerance
	shutdown time.Duration
	single   bool // children can be told to stop one by one
	onFailed func(event T, err error)

	ctx      context.Context // of all children, but for Origin
	cancel   context.CancelCauseFunc
	lanes    map[*edge[T]]*crewLane[T]
	idle     []*seat[T]   // seats without a child, whose goroutines wait
	down     bool         // all children were told to stop
	alarm    alarm        // rings when the next child is to be abandoned
	left     int          // children that were abandoned when all were to stop
	slots    atomic.Int64 // of all subscriptions
	failures overflowLog

	mu     sync.Mutex
	lastID int64
	busy   []*seat[T]
	back   deque[*seat[T]] // of busy: their run has ended, and nobody has judged it
	told   int             // of busy: told to stop
	last   error           // of the failures that the log will sum up
}

// A seat is a child and its goroutine. What stands above mu's fields of the
// crew belongs to the crew's goroutine, or to the child's while it runs.
type seat[T any] struct {
	lane    *crewLane[T]
	event   T
	runCtx  context.Context
	end     runEnd
	alive   bool          // its goroutine is there
	jobs    chan struct{} // a run to do; closed: the goroutine ends
	gone    chan struct{} // closed when the goroutine has left its loop
	release context.CancelCauseFunc

	// Guarded by crew.mu.
	at        int // in busy
	id        int64
	producer  string
	state     ChildState
	restarts  int
	began     time.Time
	stopBy    time.Time // it was told to stop, and is abandoned then
	ended     bool      // its run has: it is in back, or being judged
	abandoned bool
}

// init makes a crew of c. self is the stage that it is a part of.
func (c *crew[T]) init(name string, self node, start Starter[T], opts []Option) {
	b := newBase(name, KindSink, append([]Option{func(s *settings) { s.crew = true }}, opts...))
	b.fixed = true // it has a tolerance of its own
	b.self = self
	c.in, c.start = newInlet[T](b), start
	c.back.clears = true
	c.in.owned = true
	c.restart, c.tol, c.shutdown = b.children.restart, tolerance{most: b.children.most, within: b.children.within}, b.children.shutdown
	c.lanes = map[*edge[T]]*crewLane[T]{}
	c.alarm.wake = func() { b.wake(ctlWake) }
	c.failures.write = c.logFailures
}

func (c *crew[T]) common() *base { return c.in.base }

func (c *crew[T]) snapshot() Stats {
	st := c.in.snapshot()
	st.Slots = int(c.slots.Load())
	return st
}

func (c *crew[T]) begin() {
	c.ctx, c.cancel = context.WithCancelCause(c.in.base.ctx)
	c.in.begin()
}

func (c *crew[T]) turn(context.Context) (progress bool) {
	b := c.in.base
	ctl := b.ctl.Load()
	if ctl&(ctlQuit|ctlStop) != 0 {
		b.finishWith(nil)
	}
	c.in.rest()
	if ctl&ctlWake != 0 {
		b.ctl.And(^uint32(ctlWake)) // before the look: a later wake sets it again
		progress = true
	}
	for s := c.ended(); s != nil; s = c.ended() {
		c.settle(s)
		progress = true
	}
	if ctl&ctlWake != 0 {
		c.abandonLate()
	}
	progress = c.in.overtaken() || progress
	if b.phase == running {
		progress = c.in.turn(nil, c.hire) || progress
	}
	c.forget()
	if b.phase != ending {
		return progress
	}
	c.in.leave()
	if c.in.stats.held.Load() == 0 {
		c.finish()
		return true
	}
	switch {
	case ctl&(ctlQuit|ctlExpired) != 0 || b.own:
		c.stopAll()
	case b.drains:
		b.expireAfterDrain()
	}
	return progress
}

// hire gives every event of a packet a slot: no more were asked for than there
// are.
func (c *crew[T]) hire(_ int, e *edge[T], p *packet[T]) {
	l := c.laneOf(e)
	n := p.to - p.from - e.at
	now := time.Now()
	for range n {
		l.take()
		s := c.seat(l)
		s.event = e.pass(p)
		c.mu.Lock()
		c.lastID++
		s.id, s.producer, s.state, s.restarts, s.stopBy, s.at = c.lastID, e.sub.Producer(), ChildRunning, 0, time.Time{}, len(c.busy)
		c.busy = append(c.busy, s)
		c.mu.Unlock()
		c.run(s, now)
	}
	add(&c.in.stats.in, n)
	c.occupied(n)
}

func (c *crew[T]) occupied(n int) {
	add(&c.in.stats.held, n)
	c.in.calls.Add(int32(n))
}

// seat returns a seat without a child.
func (c *crew[T]) seat(l *crewLane[T]) *seat[T] {
	n := len(c.idle)
	if n == 0 {
		return &seat[T]{lane: l}
	}
	s := c.idle[n-1]
	c.idle = c.idle[:n-1]
	s.lane = l
	return s
}

// run has the seat's goroutine run the child.
func (c *crew[T]) run(s *seat[T], now time.Time) {
	s.runCtx, s.end = s.lane.ctx, runEnd{}
	var release context.CancelCauseFunc
	if c.single {
		s.runCtx, release = context.WithCancelCause(s.lane.ctx)
	}
	c.mu.Lock()
	s.began, s.release, s.ended = now, release, false
	told := s.state == ChildTerminating // while it was not running
	c.mu.Unlock()
	if told {
		release(ErrTerminated)
	}
	if !s.alive {
		s.alive, s.jobs, s.gone = true, make(chan struct{}, 1), make(chan struct{})
		// The goroutine of a seat: ends when the seat's jobs are closed, and with
		// the child that has left it behind; finish waits for it, unless it was
		// abandoned.
		go c.work(s, s.jobs, s.gone)
	}
	s.jobs <- struct{}{}
}

func (c *crew[T]) work(s *seat[T], jobs <-chan struct{}, gone chan<- struct{}) {
	defer close(gone)
	for range jobs {
		c.call(s)
	}
}

// call runs the child and reports its end, also when it panics or calls Goexit.
func (c *crew[T]) call(s *seat[T]) {
	returned := false
	defer func() {
		alive := true
		if !returned {
			value := recover()
			alive = value != nil // else the goroutine ends here
			s.end.err = &penstock.PanicError{Where: fmt.Sprintf("stage %q", c.in.name), Value: value, Stack: debug.Stack()}
		}
		c.report(s, alive)
	}()
	s.end.err = c.child(s)
	returned = true
}

func (c *crew[T]) child(s *seat[T]) error {
	wait, err := c.start(s.runCtx, s.event)
	if err != nil {
		return err
	}
	s.end.started = true
	if wait == nil {
		return nil
	}
	if c.restart == Transient {
		c.mu.Lock()
		if s.state == ChildRestarting && !s.abandoned {
			s.state = ChildRunning
		}
		c.mu.Unlock()
	}
	return wait()
}

// report hands the seat back, unless it was abandoned.
func (c *crew[T]) report(s *seat[T], alive bool) {
	c.mu.Lock()
	if s.abandoned {
		c.mu.Unlock()
		return
	}
	s.alive, s.ended = alive, true
	c.back.pushBack([]*seat[T]{s})
	c.mu.Unlock()
	c.in.wake(ctlWake)
}

// ended takes a child whose run has ended, nil when there is none.
func (c *crew[T]) ended() *seat[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.back.len() == 0 {
		return nil
	}
	s := c.back.pop()
	s.end.told = s.state == ChildTerminating
	return s
}

// settle decides what becomes of a child whose run has ended.
func (c *crew[T]) settle(s *seat[T]) {
	err, ctx := s.end.err, c.in.base.ctx
	if err != nil && isInterrupt(ctx, err) {
		s.end.told = true // the graph has, by the context
	}
	done := errors.Is(err, Done)
	if done {
		s.end.err, err = nil, nil
	}
	if s.release != nil {
		s.release(nil)
	}
	now := time.Now()
	f := judge(s.end, s.restarts, c.restart, &c.tol, now)
	if f == again {
		c.mu.Lock()
		s.restarts++
		told := s.state == ChildTerminating // this moment
		if !told {
			s.state = ChildRestarting
		}
		c.mu.Unlock()
		if !told {
			add(&c.in.stats.childRestarts, 1)
			c.run(s, now)
			return
		}
		f = stopped
	}
	id, event := s.id, s.event
	c.vacate(s)
	c.keep(s)
	if done {
		c.in.finishWith(nil)
	}
	switch f {
	case stopped:
		c.dropped()
	case gaveUp:
		add(&c.in.stats.failed, 1)
	case tooOften:
		add(&c.in.stats.failed, 1)
		c.in.fail(fmt.Errorf("stage %q: child %d: %w: %w", c.in.name, id, ErrChildTolerance, err))
	}
	if f != fulfilled {
		c.tell(event, err)
	}
}

// dropped counts an event whose child did not come to its end.
func (c *crew[T]) dropped() {
	add(&c.in.stats.dropped, 1)
	if c.down {
		c.in.left++
	}
}

// vacate frees the slot of a child that has finally ended, and asks.
func (c *crew[T]) vacate(s *seat[T]) {
	c.mu.Lock()
	last := len(c.busy) - 1
	c.busy[s.at] = c.busy[last]
	c.busy[s.at].at = s.at
	c.busy[last] = nil
	c.busy = c.busy[:last]
	if s.state == ChildTerminating {
		c.told--
	}
	c.mu.Unlock()
	c.occupied(-1)
	l := s.lane
	l.e.processed.Add(1)
	if ask := l.free(); ask > 0 && c.in.phase == running && !l.e.done {
		c.in.ask(l.e, ask)
	}
}

// keep makes the seat ready for another child.
func (c *crew[T]) keep(s *seat[T]) {
	var none T
	s.event, s.lane, s.runCtx, s.release = none, nil, nil, nil
	c.idle = append(c.idle, s)
}

// tell reports a failure: to the hook, or else in the log.
func (c *crew[T]) tell(event T, err error) {
	if c.onFailed != nil {
		c.in.guard(func() { c.onFailed(event, err) })
		return
	}
	c.mu.Lock()
	c.last = err
	c.mu.Unlock()
	c.failures.add(1)
}

func (c *crew[T]) logFailures(n int) {
	c.mu.Lock()
	err := c.last
	c.mu.Unlock()
	c.in.logger().Warn("events not processed", slog.String("stage", c.in.name), slog.Int("events", n), slog.Any("error", err))
}

// finish ends the crew, which has no children.
func (c *crew[T]) finish() {
	c.alarm.stop()
	c.cancel(nil)
	for _, s := range c.idle {
		if s.alive {
			close(s.jobs)
			<-s.gone
		}
	}
	c.idle = nil
	c.forget()
	c.failures.flush()
	if c.left > 0 {
		c.in.graph().failed(fmt.Errorf("stage %q: %d children: %w", c.in.name, c.left, ErrAbandoned))
	}
	c.in.finish()
}
