package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// Kind is one of the three kinds of stage.
type Kind uint8

const (
	// KindSource has an outlet only.
	KindSource Kind = iota
	// KindGate has an inlet and an outlet.
	KindGate
	// KindSink has an inlet only.
	KindSink
)

// String returns source, gate or sink.
func (k Kind) String() string { return [...]string{"source", "gate", "sink"}[k] }

// phase is where a stage stands. It only grows.
type phase uint8

const (
	running phase = iota
	ending        // takes nothing more, serves what it holds
	ended
)

// Control bits: what others tell a stage. The ringer sets the bit and then
// rings; the stage looks at the bits at the start of every turn.
const (
	ctlStop    = 1 << iota // take nothing more, serve what is held, end normally
	ctlQuit                // end now, discard what is left
	ctlExpired             // the drain deadline has passed
	ctlWake                // a pull source: what it waited for may be there
	ctlErrand              // there are errands
	ctlMail                // there are messages
)

// base is what the three kinds of stage share.
//
// The exported counters of a stage are written by its goroutine only, and read
// by anyone. phase and what stands below it belong to the stage's goroutine.
type base struct {
	settings
	name   string
	self   node
	kind   Kind
	helper bool // pure: may run in the goroutine of the stage after it
	auto   bool // the graph gives it its name
	fixed  bool // it cannot begin anew: an error ends it

	owner  atomic.Pointer[Graph]
	bell   atomic.Pointer[doorbell] // nil until the graph starts
	ctl    atomic.Uint32
	since  atomic.Int64 // when the user code that runs now was entered, in Unix nanoseconds; 0: none runs
	calls  atomic.Int32 // of user code in workers of a driver
	over   atomic.Bool  // phase is ended
	added  atomic.Bool  // by Graph.Add: it waits for subscriptions
	origin atomic.Pointer[Subscription]
	ctx    context.Context // of the callbacks; set before the first turn

	errands errands
	mail    mail     // nil: the stage has no mailbox
	claims  []func() // of names: connect what was declared by them again
	named   *Graph   // that the names belong to; nil: none
	life    atomic.Pointer[life]

	stats counters
	seen  seen

	lastFailure atomic.Pointer[error] // that the stage goes on after
	restartAt   atomic.Int64          // when its backoff is over, in Unix nanoseconds; 0: it waits for none

	_         [64]byte
	phase     phase
	paused    uint8 // not 0: its callbacks wait; see restart
	inputOver bool  // ending because of its producers; what a gate gathered is still to come
	cause     error // why it ends; nil for a normal end
	own       bool  // cause arose here, not in a stage before
	left      int   // events that it held and nobody has settled
	timer     *time.Timer
	back      comeback
	failures  *overflowLog // nil: none yet
}

// counters of one stage, in events.
type counters struct {
	in, failed, emitted, sent, dispatched, waiting, discarded, undelivered atomic.Int64
	letters, messages, messagesLost                                        atomic.Int64 // in messages
	filtered, dropped, held                                                atomic.Int64 // of a gate's operator, or of children
	childRestarts, abandoned                                               atomic.Int64 // of children
	resumed, restarts                                                      atomic.Int64 // failures that did not end it, and times it began anew
	filteredOut, cutOff                                                    atomic.Int64 // by a dispatcher

	userNanos atomic.Int64 // in user code that has returned
}

func newBase(name string, kind Kind, opts []Option) *base {
	b := &base{name: name, kind: kind}
	b.life.Store(newLife())
	b.apply(opts)
	if b.settings.named != "" {
		b.name = b.settings.named
	}
	if b.only != "" && kind != KindSource {
		b.invalid(b.only, "is for sources, not for a %s", kind)
	}
	if b.drains && kind == KindSink && !b.crew {
		b.invalid("Drain", "is not for a sink, which holds nothing")
	}
	if b.owns && (kind != KindSink || b.crew) {
		b.invalid("Owned", "is for sinks, and not for pools and slots")
	}
	if b.crew && (b.reacts || b.reactsToPanic) {
		b.invalid("OnError", "is not for pools and slots: a failure is that of its event alone")
	}
	b.checkChildren()
	return b
}

// callback refuses a stage that has nothing to run.
func (b *base) callback(given bool) {
	if !given {
		b.invalid("callback", "is nil")
	}
}

func add(c *atomic.Int64, n int) { c.Store(c.Load() + int64(n)) } // for counters with one writer

func (b *base) graph() *Graph { return b.owner.Load() }

// wake sets control bits and rings, if the stage has started.
func (b *base) wake(bits uint32) {
	if bits != 0 {
		b.ctl.Or(bits)
	}
	if bell := b.bell.Load(); bell != nil {
		bell.ring()
	}
}

// finishWith begins the end of the stage: with nil a normal one, else with the
// error of a stage before it.
func (b *base) finishWith(err error) {
	if b.phase == running {
		b.phase, b.cause = ending, err
	}
}

// fail says that a callback of the stage has failed: the stage goes on, if that
// is its way to react, and else it ends with the error. So the phase says
// afterwards which it is.
func (b *base) fail(err error) {
	switch {
	case b.phase == running && b.react(err):
	case b.atRest() && b.goesOn(err): // nothing comes for which it could begin anew
		b.resume(err)
	default:
		b.failForGood(err)
	}
}

// atRest reports whether the stage is ending normally and works on what it was
// given before its input was over. OnEnd comes later.
func (b *base) atRest() bool { return b.phase == ending && b.inputOver && b.cause == nil && !b.own }

// failForGood ends the stage with an error of its own. The graph hears of it now, in
// the order in which stages fail: the stage may serve what it holds for a while
// yet. A second failure, of a hook while the stage ends, the graph alone hears.
func (b *base) failForGood(err error) {
	b.graph().failed(err)
	if !b.own {
		b.phase, b.cause, b.own = ending, err, true
	}
}

// returned takes what a callback returned, if it did. It reports whether the
// call counts as interrupted: the graph had cancelled the callback's context,
// and that is what the callback returned, so it is no failure (ST-83).
func (b *base) returned(ctx context.Context, panicked bool, err error) (interrupted bool) {
	switch {
	case err == nil, panicked: // after a panic the stage has failed already
	case errors.Is(err, Done):
		b.finishWith(nil)
	case isInterrupt(ctx, err):
		b.finishWith(nil)
		return true
	default:
		where := fmt.Sprintf("stage %q", b.name)
		if p, ok := err.(*penstock.PanicError); !ok || p.Where != where { // else of a worker of the stage
			err = fmt.Errorf("%s: %w", where, err)
		}
		b.fail(err)
	}
	return false
}

// panicked makes an error of what recover returned in a callback that did not
// return; nil stands for runtime.Goexit. The stage fails at once: after Goexit
// nobody is left to take the error.
func (b *base) panicked(value any) error {
	err := &penstock.PanicError{Where: fmt.Sprintf("stage %q", b.name), Value: value, Stack: debug.Stack()}
	switch {
	case value == nil: // the frames that would account for the call are gone
		b.failForGood(err)
	case b.reaction(err) == Repanic:
		panic(err)
	default:
		b.fail(err)
	}
	return err
}

// guard runs user code that is not a callback: a hook, a selector. A panic or
// a runtime.Goexit in it ends the stage.
func (b *base) guard(f func()) (panicked bool) { return b.shield(f, false) }

// shield is guard, and treats a panic as one of a callback if callback says so.
func (b *base) shield(f func(), callback bool) (panicked bool) {
	panicked = true
	b.enter()
	defer func() {
		b.exit()
		switch value := recover(); {
		case !panicked:
		case callback:
			b.panicked(value)
		default:
			b.failForGood(&penstock.PanicError{Where: fmt.Sprintf("stage %q", b.name), Value: value, Stack: debug.Stack()})
		}
	}()
	f()
	panicked = false
	return false
}

// hook runs a hook inside of a callback of the package's own, which goes on. A
// panic in it ends the stage; runtime.Goexit leaves the callback too, and is
// noticed there.
func (b *base) hook(f func()) {
	defer func() {
		if value := recover(); value != nil {
			b.failForGood(&penstock.PanicError{Where: fmt.Sprintf("stage %q", b.name), Value: value, Stack: debug.Stack()})
		}
	}()
	f()
}

// lost counts n events that were sent over a subscription which both sides
// have left, and that nobody has processed.
func (b *base) lost(n int) {
	add(&b.stats.undelivered, n)
	b.left += n
}

// settled counts n events that a callback was given.
func (b *base) settled(n int, err error, interrupted bool) {
	if interrupted {
		b.lost(n)
		return
	}
	add(&b.stats.in, n)
	if err != nil && !errors.Is(err, Done) {
		add(&b.stats.failed, n)
	}
}

// expireAfterDrain starts the drain deadline, once.
func (b *base) expireAfterDrain() {
	if b.timer == nil {
		b.timer = time.AfterFunc(b.drain, func() { b.wake(ctlExpired) })
	}
}

// finish ends the stage for good.
func (b *base) finish() {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.endRest()
	if b.failures != nil {
		b.failures.flush()
	}
	b.phase = ended
	b.over.Store(true)
	b.closeErrands()
	if b.mail != nil {
		b.mail.end()
	}
	b.graph().stageEnded(b)
	b.life.Load().end(b.cause)
}

// discardedAtEnd counts and logs what the stage could not deliver any more.
func (b *base) discardedAtEnd(left int) { b.discarded(left, b.endReason()) }

func (b *base) discarded(n int, reason string) {
	b.stats.discarded.Add(int64(n))
	b.logger().Warn("events discarded", slog.String("stage", b.name), slog.Int("events", n), slog.String("reason", reason))
}

// endReason says why a stage that ends could not deliver what it held.
func (b *base) endReason() string {
	switch ctl := b.ctl.Load(); {
	case ctl&ctlQuit != 0:
		return "graph_ended"
	case ctl&ctlExpired != 0:
		return "drain_timeout"
	}
	return "no_consumer"
}
