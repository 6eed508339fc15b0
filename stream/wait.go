package stream

import (
	"context"
	"time"
)

// startWait lets the receiver say when data comes.
func (r *run) startWait() {
	p := &r.pumping
	w, ok := r.receiver.(Waiter)
	if !ok || p.waitFailed {
		p.waitFailed = false // once per poll
		return
	}
	if !r.latch.enter() {
		return
	}
	ctx, cancel := context.WithCancel(r.ctx)
	p.wait, r.withReceiver = cancel, true
	r.spawn("receiver", func(context.Context) error { return w.Wait(ctx) }, func(err error) {
		defer r.latch.leave()
		cancelled := ctx.Err() != nil
		cancel()
		p.wait, r.withReceiver = nil, false
		r.calling("", time.Time{})
		again := p.again
		p.again = false
		switch {
		case r.draining:
			r.tellJoined(false)
		case again:
			r.startPump(nil)
		case err == nil:
			p.waitFailed = true // unless the pump reads something
			r.startPump(nil)
		case !cancelled:
			r.log.Warn("waiting for the queue failed; polling goes on", r.fields("err", err)...)
		}
	})
}

// endWait asks the receiver's Wait to return, which it does soon.
func (r *run) endWait() {
	r.calling("Wait", time.Now())
	r.pumping.wait()
}
