package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// errStopped ends a wait that is no longer needed.
var errStopped = errors.New("stopped")

// run is one run of an agent. Every field not marked otherwise belongs to the
// goroutine that has the turn: loop, or a worker that brings a result. Blocking
// work runs on workers, outside of the turn; the function that applies what it
// came to compares the tag it was started under (the attached subscription, its
// request id, its generation) with the present one, and a stale result is
// released and changes nothing (G-1). A result cannot reach another run: a
// worker belongs to one, and the run ends after all its work.
//
// Invariants: every piece of work that can bring a result has entered the
// latch; one job at a time is with the receiver; a container is in the cache or
// not yet read, never both; the checkpoint never passes an event that a
// subscription has neither settled nor, by a verdict, passed over.
type run struct {
	*agent
	cache    Cache
	shelf    *shelf // of the cache, if it is of this package; else nil
	receiver Receiver
	own      *topicReceiver // the receiver, if it is of this package: it needs no report of what was delivered
	marks    Checkpointer   // nil when the queue is not read by position

	turn     *turn         // who may touch the fields below; safe for concurrent use
	mail     chan func()   // notices and questions; taken by loop
	drain    chan struct{} // closed by beginStop; closing is safe for concurrent use
	stopOnce *sync.Once
	deaf     chan struct{} // closed when mail is no longer taken
	done     chan struct{} // closed when the cleanup is complete
	late     *latch        // user code that the end has called; safe for concurrent use
	parted   chan struct{} // closed when the accepted work has ended, or was left behind
	givenUp  atomic.Bool   // stop does not wait for the loop any more
	ctx      context.Context
	cancel   context.CancelCauseFunc // cuts a drain; safe for concurrent use
	err      error                   // result of the run; read it after done

	latch      *latch
	draining   bool
	streams    map[penstock.StreamID]*streamEntry
	woken      []*streamEntry // memory of wake
	busy       busySet        // streams that may hold progress back
	seen       snapshot       // memory of view
	subs       int            // attached subscriptions
	delivering int            // deliveries in flight
	nextSub    uint64
	pumping    pumpState
	retained   map[*subscription]struct{} // deliveries and handshakes to try again at the next poll
	lastTick   time.Time                  // of the inactivity sweep

	initDone     bool
	initErr      error
	withReceiver bool // a worker is with the receiver
	shut         bool // Shutdown was called, or will be when who is with it has returned

	receiverCall  string                 // what the receiver was called for; "" for nothing, or for a Wait that may go on
	receiverSince time.Time              // when
	within        atomic.Pointer[string] // the method of that turn; set by the worker, safe for concurrent use
	readSince     atomic.Int64           // when a Wait was followed by a Read, in Unix nanoseconds; like within
	job           receiverTask           // the turn with the receiver

	readErr    error     // of the last read; nil when it succeeded
	readFailed time.Time // of the first one in a row

	read      penstock.Token // newest container accounted for
	hasRead   bool
	taken     time.Time // when the queue took that one in; zero when it does not say
	uncertain bool      // a registration was pending when the drain began
	refusals  refusals
	stored    map[triedKey]*entries // attempts in the store, of subscriptions that are not attached
	dropped   dropped               // attempts in the store, of subscriptions that are no more
	loaded    bool                  // the run began at a checkpoint
	unloaded  unloaded              // whether it did is not known
	opened    bool                  // the receiver is: its Init, or a Read, has succeeded
	first     time.Time             // when the queue took in the first container read that has a time
	floor     penstock.Token        // nothing at or below it can be asked for again
	hasFloor  bool
	reported  progress // last one given to the cache
	marked    penstock.Token
	hasMarked bool
	left      int      // events unsettled when a drain was cut
	abandoned bool     // work was left behind
	behind    []string // some of it, and of what the end has called, by name

	stats QueueStats
	spare []*delivery // to be used again; at most spareMax
	crew  crew        // does the work; safe for concurrent use
}

func newRun(ctx context.Context, a *agent, c Cache, rec Receiver, marks Checkpointer) *run {
	r := &run{
		agent: a, cache: c, receiver: rec, marks: marks, turn: newTurn(),
		mail: make(chan func()), drain: make(chan struct{}), stopOnce: new(sync.Once),
		deaf: make(chan struct{}), done: make(chan struct{}),
		late:     newLatch(),
		parted:   make(chan struct{}),
		latch:    newLatch(),
		crew:     crew{all: newLatch()},
		streams:  map[penstock.StreamID]*streamEntry{},
		retained: map[*subscription]struct{}{},
		lastTick: time.Now(),
	}
	if r.shelf = shelfOf(c); r.shelf != nil {
		r.shelf.listed = true
	}
	if r.own, _ = rec.(*topicReceiver); r.own != nil {
		r.own.again = r.shelf != nil
	}
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // values of Run's context reach the handlers
	return r
}

func (r *run) beginStop() { r.stopOnce.Do(func() { close(r.drain) }) }

// post hands f to the loop; false when the loop takes no more.
func (r *run) post(f func()) bool {
	select {
	case r.mail <- f:
		return true
	case <-r.deaf:
		return false
	}
}

// name says whose code runs in a turn, for a panic.
func (r *run) name() string { return "agent of queue " + r.queue.String() }

// loop is the life of a run: work until stop, drain, clean up.
func (r *run) loop() {
	defer close(r.done)
	defer r.late.close()
	defer r.cancel(penstock.ErrClosed)
	err := guard.Call(r.name(), func() error {
		if err := r.serve(); err != nil {
			return err
		}
		r.finish()
		r.tell(AgentStopped, Diagnostic{Events: r.left, Err: r.err})
		return nil
	})
	if err != nil { // a cache that panics; the state cannot be trusted
		r.log.Error("agent failed", "provider", r.provider, "queue", r.queue.String(), "err", err)
		r.cancel(err)
		if r.workersEnd() {
			r.withReceiver = false // its result was not taken
		} else {
			r.log.Error("work left behind; its goroutines have not returned", r.fields("after", abandonAfter)...)
		}
		select {
		case <-r.parted:
		default:
			close(r.parted)
		}
		r.endReceiver(receiverJob{})
		r.err = err
		r.tell(AgentFailed, Diagnostic{Err: err})
		r.stats.Queue, r.stats.Condition, r.stats.Reason = r.queue, ConditionFailed, "agent failed: "+err.Error()
	}
}

// workersEnd waits until the run's workers have returned, but not longer than
// abandonAfter. Their context has ended, and they are given no more to do.
func (r *run) workersEnd() bool {
	limit := time.NewTimer(abandonAfter)
	defer limit.Stop()
	select {
	case <-r.crew.all.close():
		return true
	case <-limit.C:
		return false
	}
}

// serve has the turn when it begins and when it ends. The error is the failure
// of a turn on a worker.
func (r *run) serve() error {
	defer r.dismiss()
	defer close(r.deaf)
	r.initReceiver()
	poll := time.NewTimer(r.pollOffset)
	defer poll.Stop()
	drain := r.drain
	var drained, cut <-chan struct{}
	var overdue <-chan time.Time
	for {
		r.giveTurn()
		r.callWorker()
		var f func()
		over := false
		select {
		case f = <-r.mail:
		case <-r.turn.call: // to apply the results that wait
		case <-poll.C:
			poll.Reset(r.poll)
			f = r.pollNow
		case <-drain:
			drain = nil
			poll.Stop()
			f = func() { drained, cut = r.beginDrain(), r.ctx.Done() }
		case <-drained:
			over = true
		case <-cut:
			cut, overdue = nil, time.After(abandonAfter)
		case <-overdue:
			f = func() { r.abandon(); over = true }
		case <-r.turn.broken:
		}
		if !r.turn.take() {
			return r.turn.err
		}
		if f != nil {
			f()
		}
		if over {
			return nil
		}
	}
}

// abandonAfter is how long a run waits for work whose context has ended.
const abandonAfter = time.Second

// sleep waits for d. It returns errStopped when stop is closed, and the
// context's error when that ends.
func sleep(ctx context.Context, d time.Duration, stop <-chan struct{}) error {
	if d <= 0 {
		select {
		case <-stop:
			return errStopped
		default:
			return penstock.ContextError(ctx)
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-stop:
		return errStopped
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}

// initReceiver connects the receiver in the background and loads the
// checkpoint; reads wait for it (OR-43, OR-44).
func (r *run) initReceiver() {
	r.latch.enter() // never refused: the loop has just begun
	r.withReceiver = true
	r.calling("Init", time.Now())
	var at begunAt
	var tried map[triedKey]*entries
	var forgot error // of the stored attempts: they count anew, and nothing waits for that
	r.spawn("receiver", func(ctx context.Context) error {
		var err error
		at, err = r.openReceiver(ctx)
		if r.attempts != nil { // whatever has failed: reading goes on
			ctx, cancel := context.WithTimeout(ctx, r.initTimeout)
			defer cancel()
			tried, forgot = r.storedAttempts(ctx, at.pos, at.ok)
		}
		return err
	}, func(err error) {
		defer r.latch.leave()
		r.initDone, r.initErr, r.withReceiver = true, err, false
		r.calling("", time.Time{})
		r.step("receiver init ended")
		if err != nil {
			r.tell(ReceiverFailed, Diagnostic{Err: err})
			r.log.Error("receiver init failed; reading goes on at the next poll", r.fields("err", err)...)
			if r.marks != nil {
				r.notBegun(at)
			}
		} else {
			r.begun(at)
		}
		r.opened = err == nil || at.asked
		if forgot != nil {
			r.log.Warn("stored attempts not loaded; their events count anew", r.fields("err", forgot)...)
		}
		r.loadAttempts(tried)
		if err == nil {
			r.tell(ReceiverOpened, Diagnostic{})
		}
		if r.pumping.active {
			r.pumpAfterInit()
		} else if _, ok := r.receiver.(Waiter); ok {
			r.startPump(nil) // polls are spread, wake-ups need not be
		}
	})
}

// openReceiver is what of it runs on a worker.
func (r *run) openReceiver(ctx context.Context) (at begunAt, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.initTimeout)
	defer cancel()
	if err = r.receiver.Init(ctx); err != nil {
		return at, fmt.Errorf("init: %w", err)
	}
	if r.marks == nil {
		return at, nil
	}
	return r.load(ctx)
}

func (r *run) raiseFloor(t penstock.Token) {
	t = containerToken(t)
	if !r.hasFloor || t.Compare(r.floor) > 0 {
		r.floor, r.hasFloor = t, true
	}
}

func (r *run) step(name string) {
	if r.trace != nil {
		r.trace(name)
	}
}

// fields adds who is speaking to the fields of a log line.
func (r *run) fields(more ...any) []any {
	return append([]any{"provider", r.provider, "queue", r.queue.String()}, more...)
}
