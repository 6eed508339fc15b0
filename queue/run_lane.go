package queue

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// maxCause bounds the text of an error that a dead letter carries.
const maxCause = 4096

// lane is one partition of a group under Run.
//
// Invariant: cur.committed <= machine.Committed(), and they are equal when
// nothing is to be stored.
type lane[T any] struct {
	group      *Group[T]
	consumer   *Consumer[T]
	cur        *cursor[T]
	index      int    // of cur in the consumer
	ticket     ticket // for the group's rate
	parkTicket ticket // the same for a parked event

	machine     *settle.Machine
	park        *parkedLane[T] // nil when failed events wait in their place
	fan         *fan[T]        // nil with one worker
	bits        []byte         // spare memory for cur.completed
	lingerUntil time.Time      // zero while no batch waits to be filled
	storeAt     time.Time      // zero while nothing is to be stored
	troubled    bool           // an event failed and is not settled
	reason      penstock.FlushReason
	sizing      sizing

	drained atomic.Int64                   // events settled since intake ended; read by others
	waiting atomic.Int64                   // events that failed and are not in hand; read by others
	blocked atomic.Pointer[settle.Blocked] // read by others; nil when not
	trouble atomic.Pointer[readTrouble]    // read by others; nil while the partition can be read
	lost    bool                           // the run goes on without it
}

// begin continues from the commit.
func (l *lane[T]) begin() error {
	l.cur.adopt()
	if l.fan != nil {
		l.fan = &fan[T]{}
	}
	c := settle.Config{Policy: l.group.policy(), Committed: l.cur.committed, Completed: l.cur.completed, Beside: l.fan != nil}
	if l.park != nil {
		parking, err := l.park.begin(l.consumer.waker.Place(l.index).Notify)
		if err != nil {
			return err
		}
		c.Parking = parking
	}
	m, err := settle.New(c)
	if err != nil {
		return err
	}
	if l.park != nil {
		l.park.machine = m
		l.group.parking.madeRoom() // the machine before this one may have had more
	}
	l.machine, l.lingerUntil, l.storeAt, l.troubled = m, time.Time{}, time.Time{}, false
	l.waiting.Store(0)
	l.drained.Store(0)
	l.blocked.Store(nil)
	l.trouble.Store(nil)
	l.lost = false
	l.cur.rewind()
	l.consumer.mark(l.index)
	return nil
}

// next makes j the call for the next batch, and reports false when there is
// none now. idle is how many workers are free, one at least. With stopping set
// it takes only what failed before.
func (l *lane[T]) next(j *job[T], idle int, stopping bool) (bool, error) {
	if l.ticket.n > 0 {
		defer l.unlessLimited()
	}
	l.ticket.wait(&l.group.control, false)
	if l.held() {
		return false, nil
	}
	if l.fan != nil {
		return l.nextForWorker(j, idle, stopping)
	}
	max := min(l.group.config.BatchMax, settle.WindowMax)
	if b := l.group.control.bucket; b != nil {
		max = min(max, b.burst)
	}
	fresh := l.consumer.isPending(l.index)
	due, again := l.machine.Due()
	var now time.Time // the clock is read only where it decides
	if again || l.group.config.Linger > 0 {
		now = time.Now()
	}
	if again && now.Before(due) || !again && stopping || !l.mayRead() {
		l.lingerUntil = time.Time{}
		return false, nil
	}
	if at := l.machine.Position(); l.cur.read != at {
		l.cur.seek(at)
		l.consumer.mark(l.index)
		fresh = true
	}
	if !again && l.filling(now, max) {
		return false, nil
	}
	if fresh && int(l.cur.limit-l.cur.read) < max {
		if err := l.refill(max); err != nil {
			return false, err
		}
	}
	n := min(int(l.cur.limit-l.cur.read), max)
	if n == 0 {
		l.idle()
		return false, nil
	}
	l.reason = penstock.FlushLinger
	if n == max {
		l.reason = penstock.FlushCount
	}
	n = l.cutToBytes(n)
	if again {
		l.reason = penstock.FlushRetry
	} else if l.reason == penstock.FlushLinger && n < l.group.config.BatchMin && l.lingers(now) {
		return false, nil
	}
	if n = l.allow(n, again); n == 0 {
		return false, nil
	}
	if l.park != nil && l.park.busy {
		return l.nextBeside(j, now, n)
	}
	span, ok := l.machine.Next(now, l.cur.read+penstock.Offset(n), n)
	if !ok {
		return false, nil
	}
	if l.group.control.bucket != nil {
		l.ticket.paid(&l.group.control, span.Len())
	}
	l.lingerUntil = time.Time{}
	l.take(j, span)
	return true, nil
}

// take makes j the call for a span that begins where the cursor stands.
func (l *lane[T]) take(j *job[T], span settle.Span) {
	j.lane, j.span, j.values, j.delivery = l, span, l.cur.take(span.Len()), &l.cur.delivery
	j.delivery.Attempt, j.delivery.Reason = span.Attempt, l.reason
	j.bury(l.cur.win.bad)
}

// filling reports whether a batch waits for more events, as far as that can be
// told without looking at them: with a limit in bytes it cannot.
func (l *lane[T]) filling(now time.Time, max int) bool {
	if l.group.config.Linger == 0 || l.group.config.BatchBytes > 0 {
		return false
	}
	n := l.cur.readable()
	return n > 0 && n < min(max, l.group.config.BatchMin) && l.lingers(now)
}

// lingers reports whether Linger still runs for the events that are there, and
// starts it when they are seen for the first time.
func (l *lane[T]) lingers(now time.Time) bool {
	linger := l.group.config.Linger
	if linger == 0 {
		return false
	}
	if l.lingerUntil.IsZero() {
		l.lingerUntil = now.Add(linger)
	}
	return now.Before(l.lingerUntil)
}

// cutToBytes returns how many of the next n events fit BatchBytes, at least
// one.
func (l *lane[T]) cutToBytes(n int) int {
	limit := l.group.config.BatchBytes
	if limit == 0 || l.cur.win.bad != nil {
		return n
	}
	first := int(l.cur.read - l.cur.win.First)
	n, full := cut(&l.sizing, l.cur.read, l.cur.win.Values[first:first+n], limit, l.group.topic.sizeHeld)
	if full {
		l.reason = penstock.FlushBytes
	}
	return n
}

// idle gives back memory that only the last events keep.
func (l *lane[T]) idle() {
	l.lingerUntil = time.Time{}
	if l.cur.low != l.cur.committed {
		l.cur.letGo(l.cur.committed)
	}
}

// settle ends a delivery, and commits in memory.
func (l *lane[T]) settle(now time.Time, span settle.Span, failed []settle.Outcome) error {
	if err := l.machine.Settle(now, span, failed...); err != nil {
		return err
	}
	return l.settled(len(failed) > 0)
}

// settled is what follows a settlement.
func (l *lane[T]) settled(failed bool) error {
	if l.park != nil && (l.park.busy || failed) {
		if _, err := l.record(); err != nil {
			return err
		}
	}
	if l.troubled || failed {
		l.noteWaiting()
		l.noteBlocked()
	}
	if l.fan != nil {
		l.fan.drop(l.machine.Committed())
	}
	return l.commitSoon()
}

// commitSoon commits in memory and under pressure, else when it is time to.
func (l *lane[T]) commitSoon() error {
	if !l.cur.saved || l.group.config.AutoCommit || l.group.topic.pressed() || l.holdsMuch() {
		return l.commit()
	}
	if l.storeAt.IsZero() {
		l.storeAt = time.Now().Add(commitEvery)
	}
	return nil
}

// holdsMuch reports whether what is settled and not stored takes a quarter of
// the topic's capacity. Without that limit the next call of a handler, however
// long it takes, could keep producers waiting, itself among them (FM-102).
func (l *lane[T]) holdsMuch() bool {
	c, from, to := &l.group.topic.config, l.cur.committed, l.machine.Committed()
	if c.Capacity > 0 && to-from >= penstock.Offset(max(1, c.Capacity/4)) {
		return true
	}
	return c.CapacityBytes > 0 && l.cur.part.ledger.bytes(from, to) > c.CapacityBytes/4
}

func (l *lane[T]) noteWaiting() {
	n := l.machine.Unsettled() - l.machine.InHand()
	if l.fan != nil {
		n += l.fan.schedule.retries
	}
	l.waiting.Store(int64(n))
}

func (l *lane[T]) noteBlocked() {
	b := l.machine.Blocked()
	l.troubled = b.Reason != settle.NotBlocked || l.fan != nil && l.fan.schedule.retries > 0
	if b.Reason != settle.NotBlocked {
		l.blocked.Store(&b)
	} else {
		l.blocked.Store(nil)
	}
}

// commitNow commits a span before its events are handled.
func (l *lane[T]) commitNow(span settle.Span) error {
	if err := l.machine.Settle(time.Time{}, span); err != nil {
		return err
	}
	before, to := l.cur.completed, l.machine.Committed()
	if len(before) > 0 { // by several workers of an earlier run; to may lie behind them
		l.cur.completed = l.machine.AppendCompleted(nil)
	}
	if err := l.cur.commit(to); err != nil {
		l.cur.completed = before // it belongs to the commit that stays
		return err
	}
	return nil
}

// afterAutoCommit gives back the memory of events that were committed before
// they were handled: of those below low, which nobody looks at any more.
func (l *lane[T]) afterAutoCommit(low penstock.Offset) error {
	if low >= l.cur.sweepAt {
		l.cur.letGo(low)
	}
	return nil
}

// commitDue stores what is settled when it is time to.
func (l *lane[T]) commitDue() error {
	if l.storeAt.IsZero() || time.Now().Before(l.storeAt) {
		return nil
	}
	return l.commit()
}

// commit moves the commit to what is settled without a gap. Where commits are
// stored, what is completed beyond goes with it.
func (l *lane[T]) commit() error {
	l.storeAt = time.Time{}
	to := l.machine.Committed()
	if l.cur.saved {
		l.bits = l.machine.AppendCompleted(l.bits[:0])
		if to == l.cur.committed && bytes.Equal(l.bits, l.cur.completed) {
			return nil
		}
		if l.park != nil {
			if err := l.park.log.sync(); err != nil {
				return err
			}
		}
		l.bits, l.cur.completed = l.cur.completed, l.bits
	} else if to == l.cur.committed {
		return nil
	}
	if l.cur.read < to { // a retry was the last of a gap
		l.cur.seek(to)
		l.consumer.mark(l.index)
	}
	if err := l.cur.settle(to); err != nil {
		l.cur.completed = nil // it belongs to a commit that is not there
		return err
	}
	return nil
}

// finish is commit at the end of a run; what is completed beyond the commit is
// kept for the next one.
func (l *lane[T]) finish() error {
	if l.park != nil {
		if err := l.park.end(); err != nil {
			return err
		}
		l.noteWaiting()
	}
	if !l.group.config.AutoCommit { // there, an event whose commit failed was not handled
		if err := l.commit(); err != nil {
			return err
		}
		l.cur.completed = l.machine.AppendCompleted(nil)
	}
	l.idle()
	return nil
}

// due returns when the lane has something to do without new events; with no
// worker free it can only store. With stopping set that is not a parked event:
// it stays where it is, and an alarm for it would ring without end.
func (l *lane[T]) due(free, stopping bool) (time.Time, bool) {
	if !free {
		return l.storeAt, !l.storeAt.IsZero()
	}
	due, ok := l.machine.Due()
	if r := l.trouble.Load(); r != nil {
		due, ok = l.troubleDue(r, due, ok)
	}
	lingerUntil := l.lingerUntil
	if l.ticket.limited {
		due, ok, lingerUntil = l.ticket.at, true, time.Time{}
	}
	if l.park != nil && l.park.busy {
		at, has := l.park.due(stopping)
		if l.parkTicket.limited && !stopping {
			at = l.parkTicket.at
		}
		if has && (!ok || at.Before(due)) {
			due, ok = at, true
		}
	}
	if l.held() {
		ok, lingerUntil = false, time.Time{}
	}
	for _, t := range []time.Time{lingerUntil, l.storeAt} {
		if !t.IsZero() && (!ok || t.Before(due)) {
			due, ok = t, true
		}
	}
	return due, ok
}
