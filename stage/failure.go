package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/penstock/penstock"
)

// Reaction says what becomes of a stage whose callback returns an error, other
// than [Done], or panics. See [OnError].
type Reaction uint8

const (
	// Stop ends the stage with the error. It is the default, but in graphs made
	// with [OneForOne] or [RestForOne].
	Stop Reaction = iota
	// Resume goes on: what the callback was given counts as failed, and what it
	// had emitted before it returned the error goes out.
	Resume
	// Restart goes on anew: as Resume, and the stage waits, by its [Restarts],
	// and runs its [Init] before it takes more.
	Restart
	// Repanic lets a panic end the process, so that its trace shows where it
	// came from. For [OnPanic] only.
	Repanic
)

// OnError sets what the stage does when one of its callbacks fails: what takes
// or makes events, handles messages, or is its Init at a restart. Hooks and
// selectors end the stage when they panic, and so do [Emitter.Fail] and, when
// its input is over, OnEnd.
//
// Where a part of a batch can be told from the rest, as in [MapConcurrent], that
// alone has failed. In a source made with [Func], whose function can only be
// called again, Resume counts as Restart; in a stage whose input is over, and
// which works on what it was given before, Restart counts as Resume. Failures are logged, the first at once
// and then once per second with their number.
func OnError(r Reaction) Option {
	return func(s *settings) {
		s.onError, s.reacts = r, true
		if r > Restart {
			s.invalid("OnError", "reaction %d is unknown, or for panics only", r)
		}
	}
}

// OnPanic is [OnError] for callbacks that panic; without it they count like
// those that return an error. A call of runtime.Goexit always ends the stage.
func OnPanic(r Reaction) Option {
	return func(s *settings) {
		s.onPanic, s.reactsToPanic = r, true
		if r > Repanic {
			s.invalid("OnPanic", "reaction %d is unknown", r)
		}
	}
}

// RestartBy is [OnError] with Restart, by r instead of the graph's restarts.
func RestartBy(r Restarts) Option {
	return func(s *settings) {
		s.onError, s.reacts, s.restarts = Restart, true, &r
		if r.err != nil && s.err == nil {
			s.err = r.err
		}
	}
}

// RestartError says that a stage was given up: it failed again when its budget
// of restarts was used up. It matches First and Last.
type RestartError struct {
	Stage    string
	Restarts int           // without a quiet window between them
	Window   time.Duration // what would have been one
	First    error         // the failure that began it
	Last     error         // the one that ended it
}

func (e *RestartError) Error() string {
	return fmt.Sprintf("stage %q: given up after %d restarts without %v of quiet: %v; at first: %v", e.Stage, e.Restarts, e.Window, e.Last, e.First)
}

// Unwrap returns both failures.
func (e *RestartError) Unwrap() []error { return []error{e.First, e.Last} }

// reaction says what the stage does about err.
func (b *base) reaction(err error) Reaction {
	r := Stop
	var p *penstock.PanicError
	panicked := errors.As(err, &p)
	switch {
	case b.fixed, panicked && p.Value == nil: // runtime.Goexit
		return Stop
	case b.reacts:
		r = b.onError
	case b.graph().supervises != alone:
		r = Restart
	}
	if b.reactsToPanic && panicked {
		r = b.onPanic
	}
	return r
}

// goesOn reports whether err does not end the stage.
func (b *base) goesOn(err error) bool {
	r := b.reaction(err)
	return r == Resume || r == Restart
}

// react does what the stage is to do about a failure of a callback, and reports
// whether it goes on.
func (b *base) react(err error) bool {
	switch b.reaction(err) {
	case Resume:
		b.resume(err)
		return true
	case Restart:
		return b.restartLater(err)
	}
	return false
}

// resume counts a failure after which the stage goes on.
func (b *base) resume(err error) {
	add(&b.stats.resumed, 1)
	b.noteFailure(err)
}

// noteFailure keeps and logs a failure that does not end the stage.
func (b *base) noteFailure(err error) {
	b.lastFailure.Store(&err)
	if b.failures == nil {
		b.failures = &overflowLog{write: func(n int) {
			last := b.lastFailure.Load()
			b.logger().Warn("stage goes on after failures", withStack(*last, slog.String("stage", b.name), slog.Int("failures", n), slog.Any("last", *last))...)
		}}
	}
	b.failures.add(1)
}

// withStack adds the stack of a panic to what is logged about it: where the stage
// goes on nobody else tells of it.
func withStack(err error, args ...any) []any {
	var p *penstock.PanicError
	if errors.As(err, &p) {
		args = append(args, slog.String("stack", string(p.Stack)))
	}
	return args
}

// isInterrupt reports whether a callback returned because the graph has
// cancelled its context.
func isInterrupt(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (matches(err, ctx.Err()) || matches(err, context.Cause(ctx)))
}

// matches is errors.Is for errors of users, which may be such that comparing
// them panics: those match nothing.
func matches(err, target error) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	return errors.Is(err, target)
}
