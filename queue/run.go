package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

const (
	// commitEvery is how often Run stores what is settled of a topic on disk.
	// In memory every batch is committed at once.
	commitEvery = 100 * time.Millisecond
	// abandonAfter is how long Run waits for handlers after it has cancelled
	// their context.
	abandonAfter = time.Second
)

var errNoHandler = errors.New("the factory returned no handler")

var errDrainOver = fmt.Errorf("the drain is over: %w", context.DeadlineExceeded)

// push is what a group keeps of Run between two runs of it.
type push[T any] struct {
	mu      sync.Mutex
	pushers []*pusher[T] // one per consumer; made by the first Run, and by Resize
	past    pushCounts   // of pushers that Resize has replaced
	running bool         // a Run, or a handler that one left behind
	stopped bool         // Stop was called
	run     *run[T]      // the last one
	ended   time.Time    // when the last Run returned an error
	endedBy string       // that error, bounded; "" when there is none
}

// Steps of a run.
const (
	delivering int32 = iota
	yields           // for Resize: nothing is taken, and loops end after their calls; then delivering again
	finishing        // nothing new is taken
	over             // nothing is tried again
)

// run is one call of Run.
//
// It ends in steps, each of which has happened before the next: intake is
// cancelled, and nothing new is taken; until drainUntil, what was taken is
// finished; handlers is cancelled, and nothing is tried again.
type run[T any] struct {
	group      *Group[T]
	handle     penstock.Handler[T]                  // nil with a factory
	factory    func() (penstock.Handler[T], func()) // nil with a handler
	intake     context.Context
	handlers   context.Context
	step       atomic.Int32 // of the end: what intake and handlers say, at the cost of a load
	drainUntil atomic.Int64 // in Unix nanoseconds; set before intake ends

	left      atomic.Int32 // pushers that have not ended
	done      chan struct{}
	failed    chan struct{} // closed when the run ends by err
	failOnce  sync.Once
	noteOnce  sync.Once
	noted     atomic.Bool  // err is set
	err       error        // the first cause
	sound     atomic.Int32 // partitions that the run goes on with
	stopTake  context.CancelFunc
	endHandle context.CancelCauseFunc
	stop      stopping

	resize   chan *resizing // taken while the run delivers
	yielding yielding[T]
}

// Run hands the events of the group's partitions to h, in batches, until ctx
// ends or something fails. Each consumer of the group has one goroutine, which
// calls h for one batch at a time, unless GroupConfig.Workers says otherwise;
// events of one partition come in order.
//
// A batch holds at most BatchMax events (4,096 at the most) and BatchBytes, and
// is delivered when it is full or when Linger has passed since its first event
// was seen. When h returns nil, every event is settled that was not marked with
// [penstock.Batch.Fail]; an error, a panic ([penstock.PanicError]) or
// runtime.Goexit fails all. A failed event comes again after a backoff (see
// [GroupConfig.Retry]). A short one is waited for in its place: later events of
// its partition wait, those of other partitions do not. When it is longer than
// ParkAfter, the key is parked ([GroupConfig.OnFail]): the event and all later
// ones of its key move to the retry log of the group, and come from there one
// at a time, in order; the commit passes them and other keys go on. An event
// without a key, which is one without Meta.Key in a topic without Config.Key,
// is parked alone, and so loses its place among the others. The retry log of a
// group holds 10,000 events or 64 MiB; when it is full, partitions with further
// events of a parked key wait, and Stats says so. See [Group.Parked].
//
// After its last attempt an event goes to [DeadLetter],
// which must take it before it is committed; if that fails, it is tried again.
// Without DeadLetter an event is retried until it succeeds. [Redrive] sends dead
// letters back. What a group with
// AutoCommit delivers is committed before h is called; failures are then
// logged and counted, and not retried.
//
// With GroupConfig.Workers above one, a consumer calls h for several batches at
// a time, and h must be safe for that. Events of one key and partition are
// handled in their order and by one call at a time; the key is the one given
// with the event, else what Config.Key says. Events without a key have no
// order among themselves. A failed event holds later ones of its key back, and
// nobody else. A batch is then not always contiguous: Offset(i), Meta(i) and
// Fail(i) are those of each event. Without Linger, the events that are there
// are shared evenly among the workers that are free; a key with more than its
// share of the events keeps one worker busy and can be no faster. At most 4,096
// offsets above the lowest that is not settled are handled.
//
// The commit is the lowest offset that is not settled. It moves after each
// batch in memory; on disk it is stored every 100 ms between two calls of h,
// at once when producers wait for capacity, and at the end. Delivery is at
// least once, with AutoCommit at most once.
//
// Stop Run by ending ctx, in a service with signal.NotifyContext, or from
// elsewhere with [Group.Stop].
//
// When ctx ends, Run takes no further events (ADR 0010). Calls of h that run
// are waited for, and failed events are retried, until everything that was
// taken is settled or until GroupConfig.Drain has passed. The context that h gets
// has the values of ctx and lives on; it is cancelled when Drain has passed,
// with a cause that matches context.DeadlineExceeded. Run returns nil after a
// full drain and a [*penstock.DrainError] with the number of events that are
// left otherwise; they come again. What is parked stays so, and is not among
// them. A handler that does not return within one second of that is left
// behind: its group cannot be run again until it does.
//
// Run returns an error at once that matches [penstock.ErrExists] when the group
// is being run or is used in another way, and, after the drain, the first cause
// when committing failed or a partition was stopped, or one that matches
// [penstock.ErrClosed] when group or topic were closed.
//
// A partition on disk that the file system refuses to read is tried again, after
// 100 ms and then twice as long, up to 10 s. Damage stops it: what comes before
// is settled, and other partitions go on. So does an event that cannot be
// decoded, unless it goes to DeadLetter or is dropped (see
// [GroupConfig.OnUndecodable]). A seek, or the next Run, reads again. When no
// partition is left, Run ends. Stats names such partitions (RunStats.Unreadable).
func (g *Group[T]) Run(ctx context.Context, h penstock.Handler[T]) error {
	if h == nil {
		return g.named(&penstock.FieldError{Field: "handler", Reason: "is nil"})
	}
	return g.named(g.run(ctx, &run[T]{handle: h}))
}

// RunFactory is [Group.Run] with a fresh handler for each batch. open is called
// for each batch and returns the handler for it and, unless there is nothing to
// dispose of, a function that is called once when the handler has ended,
// whether it returned, panicked or called runtime.Goexit. A handler is called
// once and never after that function. A panic of open or of that function, and
// a handler that is nil, fail the batch like a panic of the handler. Several
// consumers and workers call open at the same time.
func (g *Group[T]) RunFactory(ctx context.Context, open func() (h penstock.Handler[T], dispose func())) error {
	if open == nil {
		return g.named(&penstock.FieldError{Field: "open", Reason: "is nil"})
	}
	return g.named(g.run(ctx, &run[T]{factory: open}))
}

// named says which group of which topic an error is about.
func (g *Group[T]) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("topic %q: group %q: %w", g.topic.config.Name, g.name, err)
}

func (g *Group[T]) run(ctx context.Context, r *run[T]) error {
	if g.closed.Load() {
		return penstock.ErrClosed
	}
	if err := g.claim(pushed); err != nil {
		return err
	}
	r.group, r.done, r.failed, r.stop = g, make(chan struct{}), make(chan struct{}), newStopping()
	r.resize = make(chan *resizing)
	live := context.WithoutCancel(ctx) // panics when ctx is nil; nothing has begun yet
	pushers, err := g.startPushing(r)
	if err != nil {
		if !errors.Is(err, penstock.ErrExists) { // then another run goes on
			g.noteEnd(err)
		}
		return err
	}
	r.intake, r.stopTake = context.WithCancel(live)
	r.handlers, r.endHandle = context.WithCancelCause(live)
	defer r.stopTake()
	defer r.endHandle(nil)
	r.left.Store(int32(len(pushers)))
	r.sound.Store(int32(len(g.topic.parts)))
	for _, p := range pushers {
		p.run = r
		p.setInside(r.handlers)
		// One per consumer. Ended by r.intake and r.handlers; drain waits for
		// it, on r.done.
		go p.loop()
	}
	for r.goesOn(ctx) {
	}
	r.drain()
	return g.noteEnd(r.end(g.pushers()))
}

// goesOn waits until the run is to end, and returns false, or until it has
// answered a Resize.
func (r *run[T]) goesOn(ctx context.Context) bool {
	select {
	case <-ctx.Done():
	case <-r.failed:
	case <-r.stop.asked:
	case q := <-r.resize:
		q.done <- r.resizeTo(ctx, q)
		return true
	}
	return false
}

// startPushing marks the group as running and prepares its pushers.
func (g *Group[T]) startPushing(r *run[T]) ([]*pusher[T], error) {
	s := &g.push
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, errStopped
	}
	if s.running {
		return nil, fmt.Errorf("the group is being run, or a handler of an earlier run has not returned: %w", penstock.ErrExists)
	}
	if s.pushers == nil {
		for _, c := range g.shares.Load().consumers {
			s.pushers = append(s.pushers, newPusher(g, c, g.newLanes(c.cursors)))
		}
	}
	for _, p := range s.pushers {
		if err := p.begin(); err != nil {
			return nil, err
		}
	}
	s.running, s.endedBy, s.run = true, "", r
	return s.pushers, nil
}

// addNano returns at+d, or the latest time there is when d is as good as
// endless.
func addNano(at int64, d time.Duration) int64 {
	if at > math.MaxInt64-int64(d) {
		return math.MaxInt64
	}
	return at + int64(d)
}

// note records the first cause.
func (r *run[T]) note(err error) {
	r.noteOnce.Do(func() {
		r.err = err
		r.noted.Store(true)
	})
}

// fail records the first cause and ends the run.
func (r *run[T]) fail(err error) {
	r.note(err)
	r.failOnce.Do(func() { close(r.failed) })
}

// leave is called by each pusher as its last act.
func (r *run[T]) leave() {
	if r.left.Add(-1) > 0 {
		return
	}
	s := &r.group.push
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
	close(r.done)
}

// stopping reports whether nothing new is to be taken, for good.
func (r *run[T]) stopping() bool { return r.step.Load() >= finishing }

// halts reports whether nothing is to be delivered, not even again.
func (r *run[T]) halts() bool {
	step := r.step.Load()
	return step == over || step == yields
}

// yielded reports whether the loops are to end after their calls, for Resize.
func (r *run[T]) yielded() bool { return r.step.Load() == yields }

// where names the run in a PanicError.
func (r *run[T]) where() string { return "group " + r.group.name }

// policy is the group's retry policy for Run. Without a place for dead letters
// there is no last attempt.
func (g *Group[T]) policy() settle.Policy {
	p := g.config.Retry
	if g.options.deadLetter == nil {
		p.Attempts = -1
	}
	return p
}

// validatePush fills the defaults of the fields that only Run uses, and names
// the first bad one.
func (c *GroupConfig) validatePush() error {
	switch {
	case c.Drain < 0:
		return &penstock.FieldError{Field: "Drain", Reason: c.Drain.String() + " is negative"}
	case c.Drain == 0:
		c.Drain = defaultDrain
	}
	if err := c.validateParking(); err != nil {
		return err
	}
	if err := c.Retry.Validate(); err != nil {
		var f *penstock.FieldError
		if errors.As(err, &f) {
			return &penstock.FieldError{Field: "Retry." + f.Field, Reason: f.Reason}
		}
		return err
	}
	return nil
}
