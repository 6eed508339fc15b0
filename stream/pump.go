package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// pumpState is the read loop of a run. At most one pump is active; a poll
// during one joins it (OR-45).
type pumpState struct {
	active     bool
	hadData    bool
	failures   int           // failed reads in this pump
	joined     []chan<- bool // told when the pump ends
	again      bool          // a pump was asked for while the waiter had the receiver
	stalled    bool          // the last turn did not read for want of room in the cache
	freed      bool          // a delivery ended while a stalled pump was active
	unreported int           // deliveries ended since progress was computed
	force      bool          // compute progress in any case: a poll, or asked for
	computed   time.Time     // when progress was computed last
	purged     []Container   // dropped from the cache, to be reported
	backlog    []Container   // read, but not yet added: more than was asked for

	waiting    bool               // the receiver waits for data, or reads what has come
	wait       context.Context    // of its Wait; used again until it has ended
	endWait    context.CancelFunc // ends it
	waitFailed bool               // the last Wait failed, or ended without data: leave it to the poll
}

// pollNow is the poll, which computes progress in any case.
func (r *run) pollNow() {
	r.pumping.force = true
	r.startPump(nil)
}

// startPump begins a pump, or joins the active one. The result, if wanted, is
// sent when it ends.
func (r *run) startPump(result chan<- bool) {
	p := &r.pumping
	if result != nil {
		p.joined = append(p.joined, result)
		p.force = true
	}
	if p.active {
		return
	}
	if r.draining {
		r.tellJoined(false)
		return
	}
	if p.waiting { // Read must not overlap Wait: end the wait first
		p.again = true
		r.endWait()
		return
	}
	r.latch.enter() // not draining, so never refused
	r.pumpBegins()
	if r.initDone {
		r.pumpAfterInit()
	}
}

// pumpBegins makes the pump active; it has a place in the latch.
func (r *run) pumpBegins() {
	p := &r.pumping
	p.active, p.hadData, p.failures, p.stalled, p.freed = true, false, 0, false, false
	r.resumeRetained()
	r.handOver()
	if p.force {
		r.dropNext()
	}
}

// pumpAfterInit goes on when the receiver's Init has ended. A failed one costs
// this poll; later ones read (OR-44).
func (r *run) pumpAfterInit() {
	if err := r.initErr; err != nil {
		r.initErr = nil
		r.log.Warn("poll given up: receiver init failed", r.fields("err", err)...)
		r.endPump()
		return
	}
	r.pumpOnce(0)
}

// pumpOnce is one read in the order of OR-49: progress, sweep, purge and
// report, then read as much as the cache has room for.
func (r *run) pumpOnce(delay time.Duration) {
	if r.draining {
		r.endPump()
		return
	}
	r.sweep(time.Now())
	polled := r.pumping.force
	job := receiverJob{delay: delay, load: polled && delay == 0 && r.loadDue()}
	if r.progressDue() {
		job.mark, job.marked = r.reportProgress(false)
	}
	if polled && !job.marked && r.hasMarked {
		job.mark, job.marked = r.marked, true // again, for a checkpointer that holds back
	}
	job.marked = job.marked && !time.Now().Before(r.unloaded.marks)
	r.purge()
	job.done, r.pumping.purged = r.pumping.purged, nil
	if len(r.pumping.backlog) > 0 {
		r.take(nil)
	}
	job.limit = r.readable()
	r.pumping.stalled = job.limit == 0
	switch {
	case job.load: // the next turn reads
		job.limit = 0
	case job.limit == 0 && !job.reports():
		r.endPump()
		return
	}
	r.runJob(job)
}

// readable returns how many containers may be read now: as many as the cache has
// room for, and none while what was read before is not in it.
func (r *run) readable() int {
	if len(r.pumping.backlog) == 0 && len(r.refusals.waiting) == 0 && !r.refusals.crowded() && !r.cache.UnderPressure() {
		return r.room()
	}
	return 0
}

// room returns how many containers the cache has room for; a number below -1 is
// a fault of the cache (OR-47).
func (r *run) room() int {
	n := r.cache.MaxAdd()
	if n < -1 {
		panic(fmt.Sprintf("stream: Cache.MaxAdd returned %d", n))
	}
	return n
}

// purge drops what the cache lets go; the next turn reports it.
func (r *run) purge() {
	if c, ok := r.cache.(*SimpleCache); ok && r.own != nil {
		if _, newest, any := c.purge(false); any {
			r.raiseFloor(newest)
		}
		r.refusals.finished = nil
		return
	}
	done := r.cache.Purge()
	if n := len(done); n > 0 {
		r.raiseFloor(done[n-1].Token)
	}
	r.pumping.purged = append(r.pumping.purged, r.refusals.inOrder(done, r.cache.Len() == 0)...)
	if early := r.refusals.passed(r.reported); len(early) > 0 {
		r.pumping.purged = append(r.pumping.purged, early...)
		slices.SortStableFunc(r.pumping.purged, byToken)
	}
}

// progressDue keeps the cost of computing progress, which grows with the
// number of busy streams, in proportion to the deliveries that ended.
func (r *run) progressDue() bool {
	p := &r.pumping
	return p.force || r.busy.len() <= 8*p.unreported || time.Since(p.computed) >= r.poll
}

// runJob gives the receiver to a worker for a turn.
func (r *run) runJob(job receiverJob) {
	r.withReceiver = true
	r.calling(job.call(), time.Now().Add(job.delay))
	r.job = receiverTask{job: job, unknown: r.refusals.unknown != nil}
	r.start(&r.job)
}

// report gives finished containers and the checkpoint to the receiver. It runs
// on a worker; errors are logged: the queue delivers again (OR-51).
func (r *run) report(ctx context.Context, job *receiverJob) {
	if len(job.done) > 0 {
		r.within.Store(&callDelivered)
		if err := guard.Call("receiver", func() error { return r.receiver.Delivered(ctx, job.done) }); err != nil {
			r.log.Warn("containers not acknowledged; the queue will deliver them again", r.fields("containers", len(job.done), "err", err)...)
		}
	}
	if job.marked {
		r.within.Store(&callUpdate)
		if err := r.update(ctx, job.mark); err != nil {
			r.log.Warn("checkpoint not stored", r.fields("token", job.mark.String(), "err", err)...)
		}
	}
}

// update stores the checkpoint. A panic is an error like any other: the read of
// the turn goes on.
func (r *run) update(ctx context.Context, mark penstock.Token) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &penstock.PanicError{Where: "checkpointer", Value: v, Stack: debug.Stack()}
		}
	}()
	return r.marks.Update(ctx, mark, time.Now())
}

func (r *run) jobEnded(job *receiverJob, got []Container, err error) {
	p := &r.pumping
	switch {
	case job.load:
		r.pumpOnce(0)
	case job.limit == 0 || errors.Is(err, errStopped):
		if job.limit == 0 && err != nil { // a panic: reports have no error
			r.log.Error("report to the receiver failed", r.fields("err", err)...)
		}
		r.endPump()
	case r.draining: // what was read now is read again by the next run
		r.endPump()
	case err != nil:
		if len(got) > 0 { // the receiver has them from the queue, and will not read them again
			p.hadData = true
			r.take(got)
			r.haveTaken(got)
		}
		p.failures++
		r.stats.ReadFailures++
		r.tell(ReadFailed, Diagnostic{Err: err})
		if r.readErr == nil {
			r.readFailed = time.Now()
		}
		r.readErr = err
		if p.failures >= r.readAttempts {
			r.log.Error("reading the queue failed; the next poll tries again", r.fields("attempts", p.failures, "err", err)...)
			r.endPump()
			return
		}
		var pause time.Duration
		n := p.failures - 1
		r.spawn("ReadBackoff", func(context.Context) error {
			pause = r.pause("ReadBackoff", r.readBackoff, n)
			return nil
		}, func(error) { r.pumpOnce(pause) })
	case len(got) == 0:
		r.readErr = nil
		r.endPump()
	default:
		r.readErr = nil
		p.failures, p.hadData = 0, true
		r.take(got)
		r.haveTaken(got)
		r.pumpOnce(0)
	}
}

// haveTaken lets the memory of what was read be used again, unless it is still
// needed.
func (r *run) haveTaken(got []Container) {
	switch {
	case r.own == nil || !r.own.again:
	case len(r.pumping.backlog) > 0:
		r.own.kept = nil
	default:
		clear(got)
	}
}

// take accounts for containers that were read: into the cache as far as it has
// room, the rest stays in the backlog and is accounted for before the next
// read (OR-58).
func (r *run) take(got []Container) {
	p := &r.pumping
	if len(p.backlog) == 0 {
		p.backlog = got
	} else {
		p.backlog = append(p.backlog, got...)
	}
	for len(p.backlog) > 0 {
		n := r.room()
		if n == 0 {
			return
		}
		if n < 0 || n > len(p.backlog) {
			n = len(p.backlog)
		}
		batch := p.backlog[:n]
		p.backlog = p.backlog[n:]
		if refused := r.accept(batch); len(refused) > 0 {
			p.backlog = append(refused[:len(refused):len(refused)], p.backlog...)
			return // the next turn, or the next poll, tries again
		}
	}
	p.backlog = nil
}

// add puts containers into the cache and wakes their streams. When the cache
// refuses them it adds them one by one, so that one cannot keep the others out.
// It returns those from the first one on that may be accepted later.
func (r *run) add(batch []Container) (refused []Container) {
	err := r.cache.Add(batch)
	switch {
	case err == nil:
		r.stats.Empty += nameless(batch)
		r.stats.Read += uint64(len(batch))
		last := &batch[len(batch)-1]
		for i := 0; i < len(batch) && r.first.IsZero(); i++ {
			r.first = batch[i].Time
		}
		r.read, r.hasRead, r.taken = containerToken(last.Token), true, last.Time
		r.stats.ReadEvents += uint64(events(batch))
		r.wake(batch)
		return nil
	case len(batch) > 1:
		for i := range batch {
			if refused = r.add(batch[i : i+1]); refused != nil {
				return batch[i:]
			}
		}
		return nil
	case errors.Is(err, penstock.ErrInvalid), errors.Is(err, penstock.ErrTooLarge):
		r.refuse(batch[0], err)
		return nil
	}
	r.log.Warn("container refused by the cache; the next poll tries again", r.fields("token", batch[0].Token.String(), "err", err)...)
	return batch
}

func (r *run) endPump() {
	p := &r.pumping
	p.active = false
	r.step("pump ended")
	r.tellJoined(p.hadData)
	if p.hadData {
		p.waitFailed = false
	}
	switch {
	case p.stalled && p.freed, r.reportDue():
		r.startPump(nil)
	case !p.stalled:
		r.startWait()
	}
	r.latch.leave()
}

func (r *run) tellJoined(had bool) {
	for _, c := range r.pumping.joined {
		c <- had // of capacity 1, sent to once
	}
	r.pumping.joined = nil
}

// unstall pumps again when something that held the cache has ended and the
// last pump had no room.
func (r *run) unstall() {
	if !r.pumping.stalled || r.draining {
		return
	}
	if r.purge(); r.cache.UnderPressure() || r.room() == 0 {
		return
	}
	r.pumping.freed = r.pumping.active // a pump under way looks again when it ends
	r.startPump(nil)
}

// reportAfter is the number of deliveries after which progress is reported
// without waiting for a poll.
const reportAfter = 128

// deliveryOver brings progress to the queue soon after deliveries have ended,
// so that a bounded queue gets its capacity back. Reading a queue that cannot
// say when data comes may cost money, so there the poll does it.
func (r *run) deliveryOver() {
	r.unstall()
	r.pumping.unreported++
	if r.reportDue() {
		r.startPump(nil) // unless one is active, which looks when it ends
	}
}

func (r *run) reportDue() bool {
	n := r.pumping.unreported
	if n == 0 || r.draining || n < reportAfter && r.delivering > 0 {
		return false
	}
	if _, ok := r.receiver.(Waiter); !ok {
		return false
	}
	return r.progressDue() // a pump that would report nothing is not asked for
}
