package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// errNotBack is why a drain is incomplete that no deadline has cut short.
var errNotBack = errors.New("user code has not returned in its time")

// parting makes one of the last calls of a run, when after is closed; at once
// when it is nil. The call has ShutdownTimeout, and is waited for that long and
// abandonAfter: then it is named and left behind, and the agent does not start
// again before it has returned. It returns nil when the call has returned, and
// else a channel that is closed when it has.
func (r *run) parting(after <-chan struct{}, where string, f func(ctx context.Context) error) <-chan struct{} {
	r.late.enter() // never refused: the loop closes it when it has ended
	done := make(chan struct{})
	go func() { // one call: ends with it; parting waits, or the next start does
		defer close(done)
		defer r.late.leave() // first: who waits may start the agent
		if after != nil {
			<-after
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), r.shutdownTimeout)
		defer cancel()
		if err := guard.Call(where, func() error { return f(ctx) }); err != nil {
			r.log.Error("last call failed", r.fields("call", where, "err", err)...)
		}
	}()
	if after != nil {
		return done
	}
	limit := time.NewTimer(r.shutdownTimeout + abandonAfter)
	defer limit.Stop()
	select {
	case <-done:
		return nil
	case <-limit.C:
	}
	r.leaveBehind(fmt.Sprintf("%s of queue %s for %s", where, r.queue, r.shutdownTimeout+abandonAfter))
	r.log.Error("call left behind; it has not returned although its context has ended", r.fields("call", where)...)
	return done
}

// endReceiver gives the receiver the last report, and shuts it down, once: it
// flushes the checkpoint first. Errors are logged, not returned (OR-141). One
// that has not returned from an earlier call is called when it has.
func (r *run) endReceiver(job receiverJob) {
	if r.shut {
		return
	}
	r.shut = true
	var after <-chan struct{}
	if r.withReceiver {
		after = r.crew.all.drained
	}
	if job.reports() {
		after = r.parting(after, "receiver (last report)", func(ctx context.Context) error { r.report(ctx, &job); return nil })
	}
	if r.parting(after, "receiver (Shutdown)", r.receiver.Shutdown) == nil {
		r.step("receiver shut down")
	}
}

// unregisterAll tells the registry that this agent produces no more.
func (r *run) unregisterAll() {
	if len(r.streams) == 0 {
		r.step("producers unregistered")
		return
	}
	ids := make([]penstock.StreamID, 0, len(r.streams))
	for id := range r.streams {
		ids = append(ids, id)
	}
	done := r.parting(nil, "registry (UnregisterProducer)", func(ctx context.Context) error {
		failed, first := 0, error(nil)
		for _, id := range ids {
			err := guard.Call("registry", func() error { return r.registry.UnregisterProducer(ctx, r.qualified(id), r.agent) })
			if err != nil {
				failed++
				if first == nil {
					first = fmt.Errorf("stream %s: %w", id, err)
				}
			}
		}
		if failed > 0 {
			return fmt.Errorf("%d streams not unregistered: %w", failed, first)
		}
		return nil
	})
	if done == nil {
		r.step("producers unregistered")
	}
}

// loopLate is how long stop waits, beyond what user code may take, for an event
// loop that may hang in its cache.
const loopLate = 5 * time.Second

// endsInTime waits for the end of a run whose context has ended; false when its
// loop does not come to it.
func (r *run) endsInTime() bool {
	limit := time.NewTimer(abandonAfter + loopLate)
	defer limit.Stop()
	select {
	case <-r.done:
		return true
	case <-r.parted:
	case <-limit.C:
		return false
	}
	last := time.NewTimer(3*(r.shutdownTimeout+abandonAfter) + loopLate) // for each of the last calls
	defer last.Stop()
	select {
	case <-r.done:
		return true
	case <-last.C:
		return false
	}
}
