package stage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// A Starter starts the child of an event. It sets up what may fail to be set up,
// and returns wait, which runs until the child has ended and returns how: the
// child's work itself, or what waits for it, such as the Wait of a process. A
// nil wait says that the child has done its work already.
//
// Both run in the child's goroutine, so that a start that blocks keeps nobody.
// ctx is the child's: it has the values of the graph's context, [Origin] tells
// its subscription, and it ends when the child is told to stop, with the cause
// [ErrTerminated], or the graph is aborted. A child must end soon then.
type Starter[T any] func(ctx context.Context, event T) (wait func() error, err error)

// Task makes a Starter of a function that does all the work of a child: nothing
// of it counts as the start, so that it is run again wherever it fails.
func Task[T any](f func(ctx context.Context, event T) error) Starter[T] {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, event T) (func() error, error) {
		return func() error { return f(ctx, event) }, nil
	}
}

// Slots is a sink that supervises a child for every event; others call it a
// consumer supervisor. Make one with [NewSlots].
type Slots[T any] struct{ crew[T] }

// NewSlots returns a sink that starts a child for every event: something that
// lives for a while, a session, a process, a job, each in a goroutine of its own.
// A subscription has max slots, see [Demand]; its events begin in their order. A
// slot is occupied until its child has finally ended, and no more events are
// asked for than there are free slots. When no more than min slots are occupied,
// the subscription asks for all that were freed since the last ask: with min 0
// when all children have ended, with max-1 whenever one has. [Manual] is refused
// with [ErrUnsupportedDemandMode].
//
// A child that fails, by an error, a panic or runtime.Goexit, is not started
// again ([ChildRestart] of Temporary, the default): its event is counted in
// [Stats].Failed and given to [Slots.OnFailed] or else logged. With Transient it
// is started again for the same event, in its slot, at once; when more than 3
// restarts fall into 5 s ([ChildTolerance]), the stage fails with
// [ErrChildTolerance]. A start that fails the first time is the failure of its
// event in any case; a restart that fails is tried again, and counts. A child
// that returns [Done] ends the stage normally.
//
// Children outlive the end of the subscription that their events came by. A
// stage that ends normally waits for them, without a limit unless [Drain] sets
// one. When it fails, the graph is aborted, or a drain deadline has passed, they
// are told to stop by their contexts. Go cannot end a goroutine: a child that
// has not ended within [ChildShutdown], 5 s, is abandoned, which is counted,
// logged, and an [ErrAbandoned] in what Run returns.
func NewSlots[T any](name string, start Starter[T], opts ...Option) *Slots[T] {
	s := &Slots[T]{}
	s.single = true
	s.init(name, s, start, opts)
	s.in.callback(start != nil)
	return s
}

// Defaults of the children of [Slots], and of the calls of a [Pool].
const (
	// DefaultChildTolerance is how many restarts are allowed within
	// [DefaultChildWithin].
	DefaultChildTolerance = 3
	// DefaultChildWithin is the time that restarts are counted in.
	DefaultChildWithin = 5 * time.Second
	// DefaultChildShutdown is how long children that were told to stop are
	// waited for.
	DefaultChildShutdown = 5 * time.Second
)

// children are the settings of a stage that has some.
type children struct {
	restart  Mode
	most     int
	within   time.Duration
	shutdown time.Duration
	restarts string // an option about restarts that was given
	given    string // an option about children that was given
}

var defaultChildren = children{
	restart: Temporary, most: DefaultChildTolerance, within: DefaultChildWithin, shutdown: DefaultChildShutdown,
}

// ChildRestart says whether [Slots] start a child again that has failed:
// Temporary (the default) never, Transient always. A child that ends normally
// is done, so Permanent is an error at Start.
func ChildRestart(m Mode) Option {
	return func(s *settings) {
		s.children.restart, s.children.restarts, s.children.given = m, "ChildRestart", "ChildRestart"
		if m != Temporary && m != Transient {
			s.invalid("ChildRestart", "%v: a child that has ended normally is done", m)
		}
	}
}

// ChildTolerance bounds restarts: when more than n fall into a span of within,
// the stage fails with [ErrChildTolerance] and all children are told to stop. n
// may be 0: the first child that would have to be started again ends the stage.
// A negative n, or a span that is not positive, is an error at Start.
func ChildTolerance(n int, within time.Duration) Option {
	return func(s *settings) {
		s.children.most, s.children.within = n, within
		s.children.restarts, s.children.given = "ChildTolerance", "ChildTolerance"
		if n < 0 || within <= 0 {
			s.invalid("ChildTolerance", "%d within %v", n, within)
		}
	}
}

// ChildShutdown bounds how long children of [Slots], or calls of a [Pool], that
// were told to stop are waited for; then they are abandoned. 0 means
// [DefaultChildShutdown]; negative is an error at Start.
func ChildShutdown(d time.Duration) Option {
	return func(s *settings) {
		s.children.given = "ChildShutdown"
		if d < 0 {
			s.invalid("ChildShutdown", "%v is negative", d)
		}
		if d > 0 {
			s.children.shutdown = d
		}
	}
}

// checkChildren refuses options about children of a stage that has none.
func (b *base) checkChildren() {
	if b.children.given != "" && !b.crew {
		b.invalid(b.children.given, "is for Slots and pools, not for a %s", b.kind)
	}
}

// ChildState says what a child does.
type ChildState uint8

const (
	// ChildRunning: it runs, or is being started.
	ChildRunning ChildState = iota
	// ChildRestarting: it has failed and is being started again.
	ChildRestarting
	// ChildTerminating: it was told to stop.
	ChildTerminating
)

// String returns running, restarting or terminating.
func (s ChildState) String() string {
	if s <= ChildTerminating {
		return [...]string{"running", "restarting", "terminating"}[s]
	}
	return fmt.Sprintf("child_state(%d)", uint8(s))
}

// Child is a picture of one child.
type Child[T any] struct {
	ID       int64 // counts the children of the stage from 1, in the order of their events
	Event    T     // a copy
	State    ChildState
	Restarts int       // how often it was started again
	Began    time.Time // of the run that goes on
	Producer string    // name of the stage that its event came from
}

// ChildCounts are numbers of children. Total is the sum of the others.
type ChildCounts struct {
	Active      int // running, or being started
	Restarting  int
	Terminating int
	Total       int
}

// Children returns the children that have not finally ended, in the order of
// their IDs. Safe for concurrent use.
func (s *Slots[T]) Children() []Child[T] {
	s.mu.Lock()
	all := make([]Child[T], 0, len(s.busy))
	for _, k := range s.busy {
		all = append(all, Child[T]{k.id, k.event, k.state, k.restarts, k.began, k.producer})
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b Child[T]) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Counts returns how many children there are. Safe for concurrent use.
func (s *Slots[T]) Counts() (n ChildCounts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.busy {
		switch k.state {
		case ChildRestarting:
			n.Restarting++
		case ChildTerminating:
			n.Terminating++
		default:
			n.Active++
		}
	}
	n.Total = len(s.busy)
	return n
}

// Terminate tells one child to stop, by its context, and does not wait. Its slot
// is free when it has ended, or is abandoned after [ChildShutdown]; it is not
// started again, and unless it ends without an error its event counts in
// [Stats].Dropped. A second call changes nothing. The error matches
// [ErrChildNotFound] when there is no such child any more. Safe for concurrent
// use.
func (s *Slots[T]) Terminate(id int64) error { return s.terminate(id) }

// OnFailed sets what the stage does instead of logging when a child has failed
// for good, or was stopped before its end: f is called with the event and why,
// on the stage's goroutine; err matches [ErrAbandoned] when the child did not
// end in time. f must not block. A panic of f fails the stage. It returns s.
// Call it before the graph starts.
func (s *Slots[T]) OnFailed(f func(event T, err error)) *Slots[T] {
	s.onFailed = f
	return s
}

// OnSubscribed sets a function that is told of every subscription of the stage;
// it is [Sink.OnSubscribed].
func (s *Slots[T]) OnSubscribed(f func(*Subscription)) *Slots[T] {
	s.in.onSubscribed = f
	return s
}

// OnCancelled sets a function that decides what becomes of the stage when a
// subscription of its has ended; it is [Sink.OnCancelled]. Children may go on
// when it runs.
func (s *Slots[T]) OnCancelled(f func(sub *Subscription, reason error) error) *Slots[T] {
	s.in.onCancelled = f
	return s
}

// In returns the stage's inlet.
func (s *Slots[T]) In() Inlet[T] { return Inlet[T]{i: &s.in} }

// Name returns the name of the stage.
func (s *Slots[T]) Name() string { return s.in.Name() }

// Done returns a channel that is closed when the stage has ended.
func (s *Slots[T]) Done() <-chan struct{} { return s.in.Done() }

// Wait blocks until the stage has ended and returns why, nil for a normal end.
// It returns an error at once when the stage belongs to no graph.
func (s *Slots[T]) Wait() error { return s.in.Wait() }

// Stop has the stage take no more events and end normally when its children
// have ended. It does not wait, and tells no child to stop.
func (s *Slots[T]) Stop() { s.in.Stop() }
