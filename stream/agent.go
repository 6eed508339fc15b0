package stream

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// agentConfig is what an agent needs to know; all fields are set except trace.
type agentConfig struct {
	provider        string
	queue           QueueID
	newReceiver     func() (Receiver, error)
	newCache        func() (Cache, error)
	registry        Registry
	resolve         func(context.Context, SubscriptionRecord) (Consumer, error)
	attached        func(SubscriptionRecord) *attachment         // what resolve finds, if it lasts; may be nil
	forget          func(SubscriptionRecord)                     // gives up the consumer of one that is no more; nil: nobody does
	implicit        func(penstock.StreamID) []SubscriptionRecord // declared ones, by name; must not be changed
	filter          Filter                                       // nil: none
	filterErrors    FilterPolicy
	onMiss          MissPolicy
	failure         FailureHandler
	deadLetter      func(context.Context, ...penstock.Envelope) error // nil: none
	rewindable      bool
	tokenCheck      func(penstock.Token) error                           // whether the adapter gave it out
	unread          func(read penstock.Token, known bool) (uint64, bool) // nil: the adapter cannot tell
	hub             *hub                                                 // who wants to hear; may be nil
	groupSize       int
	poll            time.Duration
	pollOffset      time.Duration // of the first poll
	initTimeout     time.Duration
	shutdownTimeout time.Duration
	maxDelivery     time.Duration // negative: no limit
	inactivity      time.Duration
	readAttempts    int
	maxAttempts     int          // of an event; 0: no limit
	attempts        AttemptStore // nil: none
	suspects        suspects     // of the provider
	deliveryBackoff Backoff
	readBackoff     Backoff
	log             *slog.Logger
	trace           func(step string) // tests record the order of a shutdown; nil otherwise
}

// agent pulls one queue for one node and never migrates (OR-160). It can be
// started again after it was stopped; each start makes a run with a new cache
// and a new receiver, and waits until the cleanup of the run before it is
// complete (OR-40). Its methods are safe for concurrent use.
//
// Invariants: at most one run is not done; the state of a run is touched by
// the run's own goroutine only.
type agent struct {
	agentConfig

	requests uint64  // last number of a handshake's request, over all runs; of the current run's loop
	ledger   ledger  // attempts, over all runs; of the current run's turn
	places   places  // that were taken, over all runs; of the current run's turn
	silence  silence // what the watchdog has found
	meter    debugpage.Meter

	mu      sync.Mutex
	current *run // the last run; nil before the first start

	making <-chan struct{} // closed when a factory that was left behind has returned; nil for none. Of start
}

func newAgent(c agentConfig) *agent {
	a := &agent{agentConfig: c}
	a.meter.Start(time.Now(), 0, 0)
	return a
}

func (a *agent) last() *run {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current
}

// start begins a run, which outlives ctx but carries its values. It waits for
// the end of a run that is being stopped, and refuses while one is running or
// while work that one has left behind has not returned. It is not called
// concurrently with itself.
func (a *agent) start(ctx context.Context) error {
	if prev := a.last(); prev != nil {
		select {
		case <-prev.drain:
		default:
			return fmt.Errorf("agent of queue %s: %w", a.queue, penstock.ErrExists)
		}
		select {
		case <-prev.done: // also when ctx has ended: then the run begins, and drains
		default:
			if prev.givenUp.Load() {
				return a.busy("the run before")
			}
			select {
			case <-prev.done:
			case <-ctx.Done():
				return penstock.ContextError(ctx)
			}
		}
		for _, back := range []<-chan struct{}{prev.crew.all.drained, prev.late.drained} {
			select {
			case <-back:
			default:
				return a.busy("work of the run before")
			}
		}
	}
	made, err := a.parts(ctx)
	if err != nil {
		return fmt.Errorf("queue %s: %w", a.queue, err)
	}
	if !a.rewindable {
		a.ledger = ledger{} // tokens of another run say nothing
	}
	r := newRun(ctx, a, made.cache, made.receiver, made.marks)
	a.mu.Lock()
	a.current = r
	a.mu.Unlock()
	a.tell(AgentStarted, Diagnostic{})
	// The run's event loop: stop ends it and waits for it on r.done.
	go r.loop()
	return nil
}

// stop drains the current run and returns when its whole cleanup is complete.
// When ctx ends first, the context of the run's work is cancelled; stop goes on
// to wait, but leaves behind what does not return within abandonAfter, and
// returns a *penstock.DrainError if events were left unsettled, or anything was
// left behind.
// Stopping twice, also concurrently, stops once; every caller waits.
func (a *agent) stop(ctx context.Context) error {
	r := a.last()
	if r == nil {
		return nil
	}
	r.beginStop()
	select {
	case <-r.done:
	case <-ctx.Done():
		r.cancel(penstock.ContextError(ctx))
		if !r.endsInTime() {
			r.givenUp.Store(true)
			a.log.Error("agent left behind; its cache has not returned", "provider", a.provider, "queue", a.queue.String())
			return &penstock.DrainError{Busy: []string{"cache of queue " + a.queue.String()}, Err: penstock.ContextError(ctx)}
		}
	}
	return r.err
}

// ended returns the channel that is closed when the current run has ended.
func (a *agent) ended() <-chan struct{} { return a.last().done }

// ProducerID names the agent in the registry.
func (a *agent) ProducerID() string { return a.provider + "/" + a.queue.String() }

// RosterChanged is the registry's notice. It has been applied when this returns:
// no result that comes later is applied before it.
func (a *agent) RosterChanged(s QualifiedStreamID, r Roster) bool {
	return a.ask(func(run *run) { run.rosterChanged(s.StreamID, r) })
}

// pump polls once, or joins the poll that runs, and returns when it has ended:
// whether it read anything.
func (a *agent) pump() bool {
	r := a.last()
	if r == nil {
		return false
	}
	result := make(chan bool, 1)
	if !r.post(func() { r.startPump(result) }) {
		return false
	}
	select {
	case had := <-result:
		return had
	case <-r.done:
		return false
	}
}

// ask runs f on the goroutine of the current run; false when there is none.
func (a *agent) ask(f func(r *run)) bool {
	r := a.last()
	if r == nil {
		return false
	}
	answered := make(chan struct{})
	if !r.post(func() { f(r); close(answered) }) {
		return false
	}
	select {
	case <-answered:
		return true
	case <-r.done: // the agent failed
		return false
	}
}
