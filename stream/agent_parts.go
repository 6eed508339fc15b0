package stream

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// parts are what a run is made of.
type parts struct {
	cache    Cache
	receiver Receiver
	marks    Checkpointer // nil for a receiver that keeps no checkpoints
	err      error
}

// parts has the cache and the receiver of a run made. A factory that has not
// returned abandonAfter after the end of ctx is left behind: what it makes is
// given back, and until then nothing else is made.
func (a *agent) parts(ctx context.Context) (parts, error) {
	if a.making != nil {
		select {
		case <-a.making:
			a.making = nil
		default:
			return parts{}, a.busy("the factory")
		}
	}
	var p parts
	var taken atomic.Bool // by who returns, or by who was left behind
	done := make(chan struct{})
	go func() { // calls the factory, and ends with it; parts waits, or the next start refuses
		defer close(done)
		if p = a.makeParts(); p.err != nil {
			a.discard(ctx, p.receiver)
		}
		if !taken.CompareAndSwap(false, true) && p.err == nil {
			a.discard(ctx, p.receiver)
		}
	}()
	var late <-chan time.Time
	ended := ctx.Done()
	for {
		select {
		case <-done:
			return p, p.err
		case <-ended:
			ended, late = nil, time.After(abandonAfter)
		case <-late:
			if !taken.CompareAndSwap(false, true) {
				<-done // about to be closed
				return p, p.err
			}
			a.making = done
			return parts{}, fmt.Errorf("the factory has not returned: %w", penstock.ContextError(ctx))
		}
	}
}

func (a *agent) makeParts() (p parts) {
	p.err = guard.Call("factory", func() (err error) {
		if p.cache, err = a.newCache(); err != nil {
			return fmt.Errorf("cache: %w", err)
		}
		if p.receiver, err = a.newReceiver(); err != nil {
			return fmt.Errorf("receiver: %w", err)
		}
		if p.cache == nil || p.receiver == nil {
			return &penstock.FieldError{Field: "Factory", Reason: "makes no cache or no receiver"}
		}
		if c, ok := p.receiver.(Checkpointed); ok {
			p.marks = c.Checkpointer()
		}
		return nil
	})
	return p
}

// discard shuts a receiver down that no run uses.
func (a *agent) discard(ctx context.Context, r Receiver) {
	if r == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.shutdownTimeout)
	defer cancel()
	if err := guard.Call("receiver", func() error { return r.Shutdown(ctx) }); err != nil {
		a.log.Error("receiver shutdown failed", "provider", a.provider, "queue", a.queue.String(), "err", err)
	}
}

// busy refuses a start beside something that has not returned.
func (a *agent) busy(what string) error {
	return fmt.Errorf("agent of queue %s: %s has not returned: %w", a.queue, what, penstock.ErrExists)
}
