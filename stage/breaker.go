package stage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// ErrBreakerOpen is what a call behind a [Breaker] returns that is open and does
// not have it wait.
var ErrBreakerOpen = errors.New("circuit breaker is open")

// Defaults of [BreakerConfig].
const (
	DefaultBreakerFailures = 5
	DefaultBreakerCooldown = 10 * time.Second
)

// BreakerConfig says when a [Breaker] opens, and what it does then.
type BreakerConfig struct {
	// Failures in a row open the breaker; 0 means [DefaultBreakerFailures].
	Failures int
	// Cooldown is how long it is open before one call tries again; 0 means
	// [DefaultBreakerCooldown].
	Cooldown time.Duration
	// Wait has calls wait while it is open, so that the gate takes no more and its
	// producers wait, instead of failing with [ErrBreakerOpen].
	Wait bool
	// Counts says which errors are failures of what is called; nil: all, but
	// [Done] and the end of the call's context, which never count.
	Counts func(error) bool
	// OnChange is told of every change of the state, by the goroutine of the call
	// that caused it, before that call goes on; nil: nobody is. Calls run side by
	// side, so it must be safe for concurrent use, and may be told of two changes
	// in another order than they came in. A panic of it is one of the call.
	OnChange func(BreakerState)
}

// BreakerState says what a [Breaker] does with the next call.
type BreakerState uint8

const (
	// BreakerClosed: it goes through.
	BreakerClosed BreakerState = iota
	// BreakerOpen: it does not, until the cooldown is over.
	BreakerOpen
	// BreakerHalfOpen: one call is trying; the others are treated as when it is
	// open.
	BreakerHalfOpen
)

// String returns closed, open or half_open.
func (s BreakerState) String() string {
	if s <= BreakerHalfOpen {
		return [...]string{"closed", "open", "half_open"}[s]
	}
	return fmt.Sprintf("breaker_state(%d)", uint8(s))
}

// Breaker keeps calls from something that fails anyway: after some failures in a
// row it opens, and lets one call at a time try after each cooldown, until one
// has succeeded. Make one with [NewBreaker]; functions that call the same thing
// share one. All methods are safe for concurrent use.
type Breaker struct {
	c BreakerConfig

	mu      sync.Mutex
	circuit circuit
	changed chan struct{} // closed at the next change of the state
	opened  int64
}

// NewBreaker returns a breaker that is closed. A negative number in c is an error
// that matches [penstock.ErrInvalid] and names the field.
func NewBreaker(c BreakerConfig) (*Breaker, error) {
	switch {
	case c.Failures < 0:
		return nil, &penstock.FieldError{Field: "BreakerConfig.Failures", Reason: fmt.Sprintf("%d is negative", c.Failures)}
	case c.Cooldown < 0:
		return nil, &penstock.FieldError{Field: "BreakerConfig.Cooldown", Reason: fmt.Sprintf("%v is negative", c.Cooldown)}
	}
	if c.Failures == 0 {
		c.Failures = DefaultBreakerFailures
	}
	if c.Cooldown == 0 {
		c.Cooldown = DefaultBreakerCooldown
	}
	return &Breaker{c: c, changed: make(chan struct{})}, nil
}

// State returns the state. It is open, too, when the cooldown is over and nobody
// has called since.
func (b *Breaker) State() BreakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.circuit.state
}

// Opened returns how often the breaker has opened, a try that has failed
// included.
func (b *Breaker) Opened() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

// WithBreaker returns a function for [MapConcurrent] and its like that calls f as
// b lets it. A panic of f counts as a failure. Inside of [WithRetry] every attempt
// counts. With a nil b or f it returns nil, which is an error at Start.
func WithBreaker[In, Out any](b *Breaker, f func(ctx context.Context, v In) (Out, error)) func(ctx context.Context, v In) (Out, error) {
	if b == nil || f == nil {
		return nil
	}
	return func(ctx context.Context, v In) (out Out, err error) {
		turn, err := b.enter(ctx)
		if err != nil {
			return out, err
		}
		how := failure // unless f returns
		defer func() { b.leave(turn, how) }()
		out, err = f(ctx, v)
		how = b.judge(ctx, err)
		return out, err
	}
}

// enter waits, or not, until a call may go through.
func (b *Breaker) enter(ctx context.Context) (turn int64, err error) {
	for {
		b.mu.Lock()
		before := b.circuit.state
		wait, ok := b.circuit.admit(time.Now())
		turn = b.circuit.turn
		changed := b.note(before)
		next := b.changed
		b.mu.Unlock()
		if changed != nil {
			b.announceTry(turn, changed)
		}
		switch {
		case ok:
			return turn, nil
		case !b.c.Wait:
			return 0, ErrBreakerOpen
		}
		if err := await(ctx, next, wait); err != nil {
			return 0, err
		}
	}
}

// announceTry tells that a call is going to try. When the hook does not return
// there is no call, and the next one may try.
func (b *Breaker) announceTry(turn int64, changed *BreakerState) {
	told := false
	defer func() {
		if !told {
			b.leave(turn, unknown)
		}
	}()
	b.tell(changed)
	told = true
}

// await waits for a change, or for a time if that is not 0.
func await(ctx context.Context, change <-chan struct{}, d time.Duration) error {
	var due <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-change:
	case <-due:
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
	return nil
}

func (b *Breaker) leave(turn int64, how result) {
	b.mu.Lock()
	before := b.circuit.state
	b.circuit.settle(turn, how, b.c.Failures, time.Now().Add(b.c.Cooldown))
	changed := b.note(before)
	b.mu.Unlock()
	b.tell(changed)
}

// note wakes who waits if the state has changed, and returns the new one.
func (b *Breaker) note(before BreakerState) (changed *BreakerState) {
	now := b.circuit.state
	if now == before {
		return nil
	}
	if now == BreakerOpen && !b.circuit.until.IsZero() {
		b.opened++
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return &now
}

func (b *Breaker) tell(changed *BreakerState) {
	if changed != nil && b.c.OnChange != nil {
		b.c.OnChange(*changed)
	}
}

func (b *Breaker) judge(ctx context.Context, err error) result {
	switch {
	case err == nil:
		return success
	case errors.Is(err, Done) || isInterrupt(ctx, err):
		return unknown
	case b.c.Counts == nil || b.c.Counts(err):
		return failure
	}
	return success // it has answered
}

// What a call has told about what it called.
type result uint8

const (
	success result = iota
	failure
	unknown
)

// A circuit is what decides. It has no clock and no lock.
//
// Invariants: failures < the limit while it is closed; turn counts the changes of
// state, so that a call that began before one is not taken for one after it.
type circuit struct {
	state    BreakerState
	failures int       // in a row
	until    time.Time // when it is open: of the cooldown
	turn     int64
}

func (c *circuit) become(s BreakerState) {
	c.state, c.failures = s, 0
	c.turn++
}

// admit reports whether a call may go through, and if not, how long it is until
// another try may be made; 0: until the state has changed.
func (c *circuit) admit(now time.Time) (wait time.Duration, ok bool) {
	switch {
	case c.state == BreakerClosed:
		return 0, true
	case c.state == BreakerHalfOpen:
		return 0, false
	case now.Before(c.until):
		return c.until.Sub(now), false
	}
	c.become(BreakerHalfOpen)
	return 0, true
}

// settle takes the result of a call that was admitted in turn. until is the end
// of a cooldown that begins now.
func (c *circuit) settle(turn int64, how result, limit int, until time.Time) {
	if turn != c.turn {
		return
	}
	switch {
	case c.state == BreakerHalfOpen && how == unknown: // the next call may try at once
		c.become(BreakerOpen)
		c.until = time.Time{}
	case how == unknown:
	case how == success && c.state == BreakerHalfOpen:
		c.become(BreakerClosed)
	case how == success:
		c.failures = 0
	default:
		if c.failures++; c.failures >= limit || c.state == BreakerHalfOpen {
			c.become(BreakerOpen)
			c.until = until
		}
	}
}
