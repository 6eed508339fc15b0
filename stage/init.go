package stage

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/penstock/penstock"
)

// DefaultStart bounds how long [Graph.Start], and each restart of a stage, waits
// for [Init].
const DefaultStart = 5 * time.Second

// ErrStartTimeout: an [Init] did not return in time. It matches
// context.DeadlineExceeded.
var ErrStartTimeout = fmt.Errorf("start: %w", context.DeadlineExceeded)

// Init sets a function that brings the state of a stage's callbacks into order:
// it opens what they use and sets variables to where they begin. It runs before
// the stage gets anything: when its graph starts, or [Graph.Add] starts the
// stage, and again before each restart. An error, or a panic, fails the start;
// at a restart it counts as a failure of the stage.
//
// ctx carries the values of the graph's context, and ends after [StartWithin]
// or with the graph's start. What lives longer must not hang on it.
func Init(f func(ctx context.Context) error) Option {
	return func(s *settings) {
		s.init = f
		if f == nil {
			s.invalid("Init", "is nil")
		}
	}
}

// StartWithin bounds how long Start waits for the Inits of all stages, which run
// one after the other, in the order of the flow. 0 means [DefaultStart];
// negative is an error at Start.
func StartWithin(d time.Duration) GraphOption {
	return func(g *Graph) {
		if d < 0 {
			g.refuse(&penstock.FieldError{Field: "StartWithin", Reason: fmt.Sprintf("%v is negative", d)})
		}
		if d > 0 {
			g.startWithin = d
		}
	}
}

// AbortOnCancel has the end of the context of Run or Start abort the graph, as
// [Graph.Abort] does with the context's error, in place of draining it.
func AbortOnCancel() GraphOption { return func(g *Graph) { g.abortOnCancel = true } }

// runInits runs the Inits of stages before they start. When they take too long
// it returns at once: an Init that does not heed its context then still runs,
// and the error names its stage.
func (g *Graph) runInits(ctx context.Context, stages []*base) error {
	ctx, cancel := context.WithTimeoutCause(ctx, g.startWithin, ErrStartTimeout)
	defer cancel()
	at := make(chan string, len(stages))
	done := make(chan error, 1)
	// The starter: ends when the Inits have returned, which ctx asks them for;
	// waited for unless they do not heed it.
	go func() {
		err := errors.New("init did not return")
		defer func() { done <- err }()
		for _, b := range stages {
			at <- b.name
			if err = b.runInit(ctx); err != nil {
				return
			}
		}
		err = nil
	}()
	select {
	case err := <-done:
		return g.initFailed(ctx, err)
	case <-ctx.Done():
	}
	select {
	case err := <-done: // it was heeded
		return g.initFailed(ctx, err)
	default:
	}
	name := ""
	for len(at) > 0 {
		name = <-at
	}
	return fmt.Errorf("stage %q: init: %w", name, penstock.ContextError(ctx))
}

// initFailed makes the error say that the time was over, if it was.
func (g *Graph) initFailed(ctx context.Context, err error) error {
	if why := penstock.ContextError(ctx); err != nil && why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// initAll runs the Inits of a graph that starts. The graph's lock is held, but
// not while they run.
func (g *Graph) initAll(ctx context.Context) error {
	var stages []*base
	for _, n := range g.flowOrder() {
		if b := n.common(); b.init != nil {
			stages = append(stages, b)
		}
	}
	if len(stages) == 0 {
		return nil
	}
	g.starting = true
	g.mu.Unlock()
	err := g.runInits(ctx, stages)
	g.mu.Lock()
	g.starting = false
	if err != nil {
		g.refuse(err) // it is not started after that
	}
	return err
}

// runInit runs the Init of a stage that was not started.
func (b *base) runInit(ctx context.Context) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = &penstock.PanicError{Where: fmt.Sprintf("stage %q", b.name), Value: recover(), Stack: debug.Stack()}
		}
	}()
	if err = b.init(ctx); err != nil {
		err = fmt.Errorf("stage %q: init: %w", b.name, err)
	}
	returned = true
	return err
}
