package stream

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// NoLimit, as Config.MaxDeliveryTime, repeats a delivery until it succeeds.
const NoLimit time.Duration = -1

// Config describes a provider. Zero fields have the defaults given; a negative
// field is refused with a *penstock.FieldError unless its comment gives it a
// meaning. The defaults are behaviour, not a recommendation.
type Config struct {
	Name    string  // required; names the provider in logs, batches and the registry
	Factory Factory // required; see [OpenTopic]
	Queues  int     // 8; the same on every node, and a migration to change
	// RemapQueues lets the provider open although its registry remembers
	// another mapper ([ErrMapperChanged]): the streams have been migrated.
	RemapQueues bool

	// Startup says whether Run starts the agents by itself; it does by default.
	Startup Startup
	// Registry keeps the subscriptions. Nil means a new [MemoryRegistry], which
	// ends with the process; [OpenStore] has one on disk.
	Registry Registry
	// Failure decides what becomes of failures. Nil means: dead-letter if
	// DeadLetter is set, else skip with an error in the log; a subscription
	// that asks for a lost position is faulted.
	Failure FailureHandler
	// DeadLetter takes events that were given up: with their stream, the
	// number of attempts, and an Origin that holds provider, queue, position,
	// subscription and cause. It is called before the subscription goes on,
	// and again when it fails. It also takes the events of a container that the
	// cache can never keep, because it is too large or out of order; their
	// Origin names no subscription, and nothing more of the queue is read
	// before they are taken. Nil: none; such a container then keeps the
	// checkpoint where it is until the provider is run again.
	DeadLetter func(ctx context.Context, events ...penstock.Envelope) error

	// Subscriptions says which kinds of subscriptions there are; both by default.
	Subscriptions SubscriptionKinds
	// Filter decides which events each subscription gets. Nil: all, and nothing
	// is evaluated. FilterErrors says what becomes of an event whose filter
	// fails; it is delivered by default.
	Filter       Filter
	FilterErrors FilterPolicy
	// OnMiss says what becomes of a subscription whose place is no longer in the
	// cache; it stays by default.
	OnMiss MissPolicy
	// Unattached says what becomes of a stored subscription that nobody in this
	// process handles; it is held by default. OnUnattached, unless nil, is called
	// first, each time that the agent looks for its consumer, and may subscribe
	// it; an error is tried again after the delivery backoff.
	Unattached   UnattachedPolicy
	OnUnattached func(ctx context.Context, r SubscriptionRecord) error

	GroupSize       int           // 1; containers per delivery, all of one stream
	Poll            time.Duration // 100 ms; how often a queue is read that does not say when data comes
	InitTimeout     time.Duration // 5 s; for a receiver's Init
	ShutdownTimeout time.Duration // 30 s; for each step of a receiver's end
	// MaxDeliveryTime, 1 minute, bounds the attempts of one delivery and of one
	// handshake: no attempt begins later. NoLimit repeats until success. An
	// attempt under way is not cut.
	MaxDeliveryTime time.Duration
	// MaxAttempts, unless 0, bounds the attempts of one event: one that was
	// offered so often to a subscription and not settled is not offered again,
	// but given to Failure at once, with [ErrAttempts]; Retry allows one more.
	// Attempts count on over rewinds, new handshakes and runs of this process,
	// for up to 4,096 ranges of events of a queue, from what the queue knows
	// (Container.Attempts), and with Attempts set over the end of the process.
	MaxAttempts int
	// Attempts keeps attempts for the next process; nil: none does. Each attempt
	// is then stored before it is made, so an event that ends the process each
	// time is counted. One that was being delivered when a process ended is
	// delivered beside no other such event of the provider. It is refused with
	// an adapter that cannot rewind.
	Attempts        AttemptStore
	Inactivity      time.Duration // 30 min; a stream without new events for so long leaves memory
	ReadAttempts    int           // 6; failed reads in a row until the next poll
	DeliveryBackoff Backoff       // Exponential 1 s to 30 s, step 1 s
	ReadBackoff     Backoff       // Exponential 10 s to 20 s, step 1 s
	Drain           time.Duration // 25 s; how long Run lets accepted work end
	Silence         time.Duration // 10 s; the watchdog names an agent, or its receiver, that does not answer for so long
	Logger          *slog.Logger  // nil means slog.Default()

	// Rand returns a random number in [0, n); it spreads the first polls. Nil
	// means package math/rand/v2.
	Rand func(n int64) int64
}

// validate fills in defaults and names the field that is wrong.
func (c *Config) validate() error {
	if strings.TrimSpace(c.Name) == "" {
		return &penstock.FieldError{Field: "Name", Reason: "is blank"}
	}
	if c.Factory == nil {
		return &penstock.FieldError{Field: "Factory", Reason: "is missing"}
	}
	for _, f := range []struct {
		name  string
		value *int
		zero  int
	}{{"Queues", &c.Queues, 8}, {"GroupSize", &c.GroupSize, 1}, {"ReadAttempts", &c.ReadAttempts, 6}, {"MaxAttempts", &c.MaxAttempts, 0}} {
		if *f.value < 0 {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", *f.value)}
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"Poll", &c.Poll, 100 * time.Millisecond}, {"InitTimeout", &c.InitTimeout, 5 * time.Second},
		{"ShutdownTimeout", &c.ShutdownTimeout, 30 * time.Second}, {"Inactivity", &c.Inactivity, 30 * time.Minute},
		{"Drain", &c.Drain, 25 * time.Second}, {"Silence", &c.Silence, 10 * time.Second}, {"MaxDeliveryTime", &c.MaxDeliveryTime, time.Minute},
	} {
		if *f.value < 0 && (f.name != "MaxDeliveryTime" || *f.value != NoLimit) {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%v is negative", *f.value)}
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	return c.fillParts()
}

func (c *Config) fillParts() error {
	for _, f := range []struct {
		name   string
		value  uint8
		values []string
	}{
		{"Subscriptions", uint8(c.Subscriptions), []string{"ExplicitAndImplicit", "ExplicitOnly", "ImplicitOnly"}},
		{"FilterErrors", uint8(c.FilterErrors), []string{"DeliverUnfiltered", "DropUnfiltered"}},
		{"OnMiss", uint8(c.OnMiss), []string{"MissStay", "MissEarliest", "MissLatest", "MissFault"}},
		{"Unattached", uint8(c.Unattached), []string{"HoldUnattached", "DropUnattached", "RemoveUnattached"}},
		{"Startup", uint8(c.Startup), []string{"AgentsStarted", "AgentsStopped"}},
	} {
		if int(f.value) >= len(f.values) {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is none of %s", f.value, strings.Join(f.values, ", "))}
		}
	}
	if c.DeliveryBackoff == nil {
		c.DeliveryBackoff = Exponential{Min: time.Second, Max: 30 * time.Second, Step: time.Second}
	}
	if c.ReadBackoff == nil {
		c.ReadBackoff = Exponential{Min: 10 * time.Second, Max: 20 * time.Second, Step: time.Second}
	}
	for name, b := range map[string]Backoff{"DeliveryBackoff": c.DeliveryBackoff, "ReadBackoff": c.ReadBackoff} {
		if p, ok := b.(*Exponential); ok && p != nil {
			b = *p
		}
		if e, ok := b.(Exponential); ok {
			if err := e.validate(name); err != nil {
				return err
			}
		}
	}
	if c.Registry == nil {
		c.Registry = NewMemoryRegistry()
	}
	if c.Failure == nil {
		c.Failure = defaultFailure{deadLetter: c.DeadLetter != nil}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = soundLogger(c.Logger)
	if c.Rand == nil {
		c.Rand = rand.Int64N
	}
	return nil
}
