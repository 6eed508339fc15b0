package stream

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// receiverJob is one turn with the receiver, in this order.
type receiverJob struct {
	done   []Container    // to report as delivered
	mark   penstock.Token // the checkpoint
	marked bool           // mark has moved, or is told again
	delay  time.Duration  // before the read
	limit  int            // to read; 0 for nothing
	load   bool           // and nothing to read: load the checkpoint, which has failed before
}

// reports reports whether there is something to tell the receiver.
func (j *receiverJob) reports() bool { return len(j.done) > 0 || j.marked }

// call names what the receiver does in the turn, most of the time.
func (j *receiverJob) call() string {
	if j.limit == 0 {
		return "report"
	}
	return "Read"
}

// receiverTask is a turn with the receiver on a worker. At most one is under way
// in a run, which therefore has one and uses it again. It may begin with a wait
// for data: what has come is then read at once, by the goroutine that was woken
// and without a turn of the run between the two (ADR 0083).
type receiverTask struct {
	job     receiverJob
	waiter  Waiter          // asked to wait first; nil: no
	waiting context.Context // of the wait
	unknown bool            // what the last read took is not known: recover first

	read      bool // Read was called
	recovered bool
	got       []Container
	begun     begunAt // with job.load, unless
	unloaded  error   // is not nil
}

func (t *receiverTask) where() string { return "receiver" }

func (t *receiverTask) do(ctx context.Context, w *worker) error {
	r := w.run
	if t.waiter != nil {
		if err := t.waiter.Wait(t.waiting); err != nil || t.job.limit == 0 || t.waiting.Err() != nil {
			return err
		}
		r.readSince.Store(time.Now().UnixNano())
	} else {
		r.report(ctx, &t.job)
	}
	if t.job.load {
		r.within.Store(&callLoad)
		t.begun, t.unloaded = r.loadLate(ctx)
	}
	if t.job.limit == 0 {
		return nil
	}
	if err := sleep(ctx, t.job.delay, r.drain); err != nil {
		return err
	}
	var err error
	if t.unknown {
		r.within.Store(&callRecover)
		if t.recovered, err = r.recoverFirst(ctx); err != nil {
			return fmt.Errorf("recover: %w", err)
		}
	}
	r.within.Store(&callRead)
	t.read = true
	t.got, err = r.receiver.Read(ctx, t.job.limit)
	return err
}

// done takes what the task came to, so that the next one may begin in this turn.
func (t *receiverTask) done(r *run, err error) {
	x := *t
	*t = receiverTask{}
	r.withReceiver = false
	r.opened = r.opened || x.read && err == nil
	r.calling("", time.Time{})
	if x.waiter != nil {
		r.waitEnded(&x, err)
		return
	}
	r.readOutcome(x.recovered, err)
	if x.job.load {
		if err == nil {
			err = x.unloaded
		}
		r.begunLate(x.begun, err)
	}
	r.jobEnded(&x.job, x.got, err)
}
