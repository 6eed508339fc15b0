package stream

import (
	"context"
	"errors"
	"time"
)

// startWait lets the receiver say when data comes, and then read it. The pump
// that has just ended has reported everything, and the cache does not fill
// meanwhile, so what may be read then is known now.
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
	if p.wait == nil || p.wait.Err() != nil {
		p.wait, p.endWait = context.WithCancel(r.ctx)
	}
	p.waiting, r.withReceiver = true, true
	r.job = receiverTask{waiter: w, waiting: p.wait}
	if r.refusals.unknown == nil {
		r.job.job.limit = r.readable()
	}
	r.start(&r.job)
}

// waitEnded goes on behind a wait, and the read that has followed it.
func (r *run) waitEnded(t *receiverTask, err error) {
	p := &r.pumping
	again := p.again
	p.waiting, p.again = false, false
	if t.read {
		r.readOutcome(false, err)
	}
	if t.read && !r.draining && (err != nil || len(t.got) > 0) {
		p.waitFailed = true // unless the pump reads something
		r.pumpBegins()      // in the wait's place in the latch
		r.jobEnded(&t.job, t.got, err)
		return
	}
	defer r.latch.leave()
	switch {
	case r.draining:
		r.tellJoined(false)
	case again:
		r.startPump(nil)
	case err == nil:
		p.waitFailed = true
		r.startPump(nil)
	case errors.Is(err, errStopped): // the drain begins
	case t.waiting.Err() == nil:
		r.log.Warn("waiting for the queue failed; polling goes on", r.fields("err", err)...)
	}
}

// endWait asks the receiver's Wait to return, which it does soon.
func (r *run) endWait() {
	r.receiverCall, r.receiverSince = "Wait", time.Now() // within may say more
	r.pumping.endWait()
}
