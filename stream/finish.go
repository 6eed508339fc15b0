package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// beginDrain closes admission: no work begins after it (OR-139). It returns
// the channel that is closed when the accepted work has ended.
func (r *run) beginDrain() <-chan struct{} {
	r.draining = true
	r.step("admission closed")
	drained := r.latch.close()
	for _, e := range r.busy.list {
		if e.state == registering || e.state == leaving && e.pin != nil {
			r.uncertain = true // even if it ends meanwhile (OR-139)
		}
	}
	if r.pumping.waiting {
		r.endWait()
	}
	return drained
}

// busyNamed is how many of those that were left behind a DrainError names.
const busyNamed = 10

// abandon gives up work that goes on although its context has ended abandonAfter
// ago, for example a handler that ignores it: its events are left, and progress
// stays before them. A receiver that does not return is shut down when it does.
func (r *run) abandon() {
	if r.withReceiver {
		call, from := r.call()
		since := since(time.Now(), from)
		r.leaveBehind(fmt.Sprintf("receiver of queue %s (%s) for %s", r.queue, call, since))
		r.log.Error("receiver left behind; it has not returned although its context has ended", r.fields("call", call, "for", since)...)
	}
	for _, e := range r.busy.list {
		for _, sub := range e.subs {
			d := sub.inFlight
			if d == nil || !d.current() && !d.redo {
				continue
			}
			left := d.events()
			if left == 0 { // the filter has them
				left = events(d.rest)
			}
			r.left += left
			r.leaveBehind(fmt.Sprintf("subscription %q of stream %s for %s", sub.rec.Name, e.id, since(time.Now(), d.started)))
			r.log.Error("consumer left behind; it has not returned although its context has ended",
				r.about(sub, "events", left, "behind", d.safe.String(), "since", d.started)...)
		}
	}
	r.log.Error("drain given up; the agent does not start again before what was left behind has returned", r.fields("events", r.left)...)
	r.abandoned = true
}

// leaveBehind notes who was left behind.
func (r *run) leaveBehind(who string) {
	if len(r.behind) < busyNamed {
		r.behind = append(r.behind, who)
	}
}

// finish is the end of a run, in the order of OR-139. The accepted work has
// ended or was abandoned; cache and receiver still exist.
func (r *run) finish() {
	if ended := r.crew.all.close(); !r.abandoned {
		<-ended
	}
	close(r.parted)
	r.step("work ended")
	mark, marked := r.reportProgress(true)
	r.purge()
	r.closeAllCursors()
	r.step("cursors closed")
	done := append(r.pumping.purged, r.refusals.finished...)
	slices.SortStableFunc(done, byToken)
	r.endReceiver(receiverJob{done: done, mark: mark, marked: marked})
	r.unregisterAll()
	r.stats = r.snapshotAtEnd()
	clear(r.streams)
	r.busy.clear()
	clear(r.retained)
	r.cache, r.pumping.backlog = nil, nil
	if r.left > 0 || r.abandoned || len(r.behind) > 0 {
		r.err = &penstock.DrainError{Left: r.left, Busy: r.behind, Err: r.leftBy()}
	}
	r.step("ended")
}

// leftBy returns what has cut the drain. What user code does with the events
// that it still has, nobody knows.
func (r *run) leftBy() error {
	if cause := context.Cause(r.ctx); cause != nil {
		return cause
	}
	return errNotBack
}

// view takes the snapshot that progress is computed from. Streams whose every
// subscription has caught up leave the busy set. It is valid until the next one.
func (r *run) view() progressView {
	v := progressView{uncertain: r.uncertain || r.refusals.uncertain(), read: r.read, hasRead: r.hasRead, quiet: r.subs > 0}
	n := 0
	for i := r.busy.len() - 1; i >= 0; i-- {
		e := r.busy.list[i]
		s := r.seen.next(n)
		s.registering = e.state == registering || e.state == leaving && e.pin != nil
		quiet := !s.registering
		for _, sub := range e.subs {
			w := sub.view()
			s.subs = append(s.subs, w)
			quiet = quiet && w.registered && !w.unresolved && w.caughtUp
		}
		if quiet {
			r.busy.remove(e)
			continue
		}
		n++
	}
	v.streams = r.seen.streams[:n]
	if n > snapshotKept {
		r.seen.streams = nil
	}
	return v
}

func (s *subscription) view() subView {
	w := subView{registered: s.attached, unresolved: s.unresolved || s.pending > 0}
	if d := s.outstanding(); d != nil {
		w.safe, w.hasSafe = d.safe, d.hasSafe
		return w
	}
	if s.cursor == nil {
		return w
	}
	next, more := s.cursor.Peek()
	w.caughtUp, w.safe, w.hasSafe = !more, next.Before, next.HasBefore
	return w
}

// outstanding returns the delivery that the subscription's position waits for.
func (s *subscription) outstanding() *delivery {
	if d := s.inFlight; d != nil && (d.current() || d.redo) {
		return d
	}
	return s.kept
}

// reportProgress gives the progress to the cache and returns the checkpoint to
// store, if there is one. Unless it is the last one, nothing is said twice.
func (r *run) reportProgress(last bool) (mark penstock.Token, moved bool) {
	now := time.Now()
	r.pumping.unreported, r.pumping.force, r.pumping.computed = 0, false, now
	p := computeProgress(r.view())
	if !p.certain {
		return penstock.Token{}, false
	}
	if last || p != r.reported {
		r.reported = p
		var at *penstock.Token
		if p.bound {
			at = &r.reported.at
		}
		r.cache.Progress(at, now)
		r.step("progress")
	}
	if r.marks == nil || !r.hasRead || r.hasMarked && p.at.Compare(r.marked) <= 0 {
		return penstock.Token{}, false
	}
	r.marked, r.hasMarked = p.at, true
	r.raiseFloor(p.at)
	return p.at, true
}

func (r *run) closeAllCursors() {
	for _, e := range r.streams {
		if e.pin != nil {
			e.pin.Close()
			e.pin = nil
		}
		for _, sub := range e.subs {
			sub.closeCursors()
		}
	}
}
