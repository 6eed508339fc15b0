package stage

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

// Defaults of a stage and of a graph.
const (
	// DefaultBuffer is how many events a source keeps that nobody has asked
	// for.
	DefaultBuffer = 10_000
	// DefaultDrain bounds how long a stage that has ended on its own serves
	// what it still holds.
	DefaultDrain = 30 * time.Second
	// DefaultGraphDrain bounds how long a graph drains after the context of
	// Run or Start has ended (ADR 0010).
	DefaultGraphDrain = 25 * time.Second
	// Unbounded is a buffer capacity without a bound. What a source then holds
	// is limited by memory only.
	Unbounded = math.MaxInt
)

// Policy says which events a full source buffer drops.
type Policy uint8

const (
	// KeepLast drops the oldest events. It is the default.
	KeepLast Policy = iota
	// KeepFirst drops the newcomers.
	KeepFirst
)

// String returns the policy's name in logs, for example keep_last.
func (p Policy) String() string {
	names := [...]string{"keep_last", "keep_first", "wait", "drop_all", "fail"}
	if int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// Option is a setting of one stage.
type Option func(*settings)

type settings struct {
	named         string // by Named
	capacity      int
	buffered      bool // Buffer was given
	policy        Policy
	only          string // an option that was given and that sources alone have
	drains        bool   // Drain was given
	untilLeft     bool   // UntilLastLeaves was given
	holds         bool   // AccumulateDemand was given
	owns          bool   // Owned was given
	onDiscard     func(int)
	init          func(context.Context) error
	restarts      *Restarts // nil: the graph's
	onError       Reaction
	onPanic       Reaction
	reacts        bool // OnError was given
	reactsToPanic bool // OnPanic was given
	drain         time.Duration
	crew          bool // the stage runs children
	children      children
	err           error
}

func (s *settings) apply(opts []Option) {
	s.capacity, s.drain, s.children = DefaultBuffer, DefaultDrain, defaultChildren
	for i, o := range opts {
		if o == nil {
			s.fault(nilOption("Option", i, len(opts)))
			continue
		}
		o(s)
	}
}

func nilOption(field string, i, n int) error {
	return &penstock.FieldError{Field: field, Reason: fmt.Sprintf("option %d of %d is nil", i+1, n)}
}

func (s *settings) fault(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *settings) invalid(field, format string, args ...any) {
	s.fault(&penstock.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// Named gives a stage its name where the constructor takes none, as those of
// helpers and operators do; else it takes the place of that one. Without it the
// graph calls them after their kind and their place: map#3. "" changes nothing.
func Named(name string) Option { return func(s *settings) { s.named = name } }

// Buffer sets how many events a source keeps that nobody has asked for, and
// which it drops when there are more. Capacity 0 keeps none;
// [Unbounded] keeps all. A negative capacity is an error at Start, and so is
// Buffer on a gate or a sink.
func Buffer(capacity int, p Policy) Option {
	return func(s *settings) {
		s.only, s.buffered, s.capacity, s.policy = "Buffer", true, capacity, p
		if capacity < 0 {
			s.invalid("Buffer", "capacity %d is negative", capacity)
		}
		if p > KeepFirst {
			s.invalid("Buffer", "policy %d is none of KeepLast and KeepFirst, which a source knows", p)
		}
	}
}

// OnDiscard sets what a source does instead of logging a warning when it drops
// events: f is called with their number, once per overflow, by the goroutine
// that caused it and before that call returns. f must not block. On a
// gate, except a [BufferGate], or a sink it is an error at Start.
func OnDiscard(f func(dropped int)) Option {
	return func(s *settings) { s.only, s.onDiscard = "OnDiscard", f }
}

// Drain bounds how long a source or a gate that has ended serves what it still
// holds; what is left then is discarded and counted. The time of an operator that
// holds events, of [Delay] or [BufferGate] for instance, begins when it has
// emitted them all. 0 means [DefaultDrain]; negative is an error at Start, and so
// is Drain on a sink, except on [Pool] and [Slots], whose children are told to
// stop then.
func Drain(d time.Duration) Option {
	return func(s *settings) {
		s.drains = true
		if d < 0 {
			s.invalid("Drain", "%v is negative", d)
		}
		if d > 0 {
			s.drain = d
		}
	}
}

// UntilLastLeaves has a source end normally when its last subscriber has left,
// by a cancel or because it has ended. Without it a source goes on, and keeps
// what it has for the next subscriber. On a gate or a sink it is an error at
// Start.
func UntilLastLeaves() Option {
	return func(s *settings) { s.only, s.untilLeft = "UntilLastLeaves", true }
}

// Mode says what a consumer does when a subscription of its ends. The end
// takes effect after every event that the producer had sent was processed. A
// cancel counts as a normal end.
//
// A consumer ends in any mode, normally, when its last producer has ended
// normally, or in mode Temporary in any way: nothing could reach it any more. It
// goes on and waits for another [Subscribe] when the last of its subscriptions
// was cancelled, when it was given to [Graph.Add], or when its OnCancelled hook
// says so; then only [Graph.Stop], Abort or the end of Run's context ends it.
type Mode uint8

const (
	// Permanent: the consumer ends as its producer did, normally or with the
	// same error. It is the default. What other producers had sent to the
	// consumer is then not processed, and counted as undelivered.
	Permanent Mode = iota
	// Transient: the consumer ends only when the producer failed.
	Transient
	// Temporary: the consumer goes on.
	Temporary
)

// SubOption is a setting of one subscription.
type SubOption func(*subscription)

func newSubscription(opts []SubOption) *Subscription {
	s := &Subscription{}
	s.life.Store(newLife())
	s.timeout = DefaultSubscribe
	Max(demand.DefaultMax)(&s.subscription)
	s.demand = false
	for i, o := range opts {
		if o != nil {
			o(&s.subscription)
		} else if s.subscription.err == nil {
			s.subscription.err = nilOption("SubOption", i, len(opts))
		}
	}
	return s
}

// Demand sets how many events the consumer accepts at most beyond those it has
// processed (max), and at or below which open demand it asks again (min). The
// consumer's callback gets batches of max - min. Without it a subscription
// has 1000 and 750. Start fails with [ErrInvalidDemand] unless
// 0 <= min < max.
func Demand(demandMax, demandMin int) SubOption {
	return func(s *subscription) {
		s.demand = true
		w, err := demand.NewWindow(demandMax, demandMin)
		if err != nil {
			s.err = fmt.Errorf("%w: %w", ErrInvalidDemand, err)
			return
		}
		s.window = w
	}
}

// Max sets max alone; min becomes three quarters of it, rounded down.
func Max(demandMax int) SubOption {
	return Demand(demandMax, demand.DefaultMin(demandMax))
}

// CancelMode sets what the consumer does when this producer ends.
func CancelMode(m Mode) SubOption {
	return func(s *subscription) {
		s.mode = m
		if m > Temporary && s.err == nil {
			s.err = &penstock.FieldError{Field: "CancelMode", Reason: fmt.Sprintf("%d is unknown", m)}
		}
	}
}

// Manual has the subscription ask for nothing by itself: events come only after
// [Subscription.Ask], and what one delivery brings is one batch. max then only
// bounds how many batches may be on their way.
func Manual() SubOption { return func(s *subscription) { s.manual = true } }

// Timeout bounds how long [SubscribeWait] waits for the producer; 0 means
// [DefaultSubscribe], negative is an error.
func Timeout(d time.Duration) SubOption {
	return func(s *subscription) {
		if d < 0 && s.err == nil {
			s.err = &penstock.FieldError{Field: "Timeout", Reason: fmt.Sprintf("%v is negative", d)}
		}
		if d > 0 {
			s.timeout = d
		}
	}
}

// Async keeps the two sides of a subscription in goroutines of their own, also
// where the producer is a helper that would run in its consumer's.
func Async() SubOption { return func(s *subscription) { s.async = true } }

// GraphOption is a setting of a graph.
type GraphOption func(*Graph)

// Fuse(false) gives every helper a goroutine of its own. Wants and batches are
// the same either way; fused is faster and the default.
func Fuse(on bool) GraphOption { return func(g *Graph) { g.fuse = on } }

// DrainWithin bounds how long the graph drains after the context of Run or
// Start has ended; then the callbacks' context is cancelled and what is left
// is discarded and reported (ADR 0010). 0 means [DefaultGraphDrain]; negative
// is an error at Start.
func DrainWithin(d time.Duration) GraphOption {
	return func(g *Graph) {
		if d < 0 {
			g.refuse(&penstock.FieldError{Field: "DrainWithin", Reason: fmt.Sprintf("%v is negative", d)})
		}
		if d > 0 {
			g.drain = d
		}
	}
}

// Logger sets where the graph and its stages log; nil means [slog.Default].
func Logger(l *slog.Logger) GraphOption { return func(g *Graph) { g.log = l } }
