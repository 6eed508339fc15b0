package stream

import (
	"errors"
	"fmt"
)

// MissPolicy says what becomes of a subscription whose place is no longer in
// the cache although it had not come so far. A [SimpleCache] never lets that
// happen; a cache that evicts under a live cursor does. Nothing vanishes
// silently: each time is logged and counted in QueueStats.Missed.
type MissPolicy uint8

const (
	// MissStay keeps the place: the subscription and the checkpoint wait until
	// it is subscribed with a place that is kept, or removed. QueueStats.Reason
	// names it.
	MissStay MissPolicy = iota
	// MissEarliest goes on at the earliest container that the cache keeps.
	MissEarliest
	// MissLatest goes on after what has been read.
	MissLatest
	// MissFault gives an explicit subscription up; an implicit one stays.
	MissFault
)

var missNames = [...]string{"stay", "earliest", "latest", "fault"}

// String returns the policy in words.
func (m MissPolicy) String() string {
	if int(m) < len(missNames) {
		return missNames[m]
	}
	return fmt.Sprintf("miss(%d)", uint8(m))
}

// cursorFailed is called when a cursor cannot go on. A place that is lost is
// up to the policy; after any other failure the position stays, and the next
// poll tries again. Nothing is passed over unsaid (OR-96).
func (r *run) cursorFailed(sub *subscription, d *delivery, err error) {
	d.unprotect()
	was := sub.unresolved
	sub.unresolved = true
	if !errors.Is(err, ErrCacheMiss) {
		r.log.Error("cursor failed; the subscription waits", r.about(sub, "err", err)...)
		sub.again = true
		r.retained[sub] = struct{}{}
		return
	}
	r.stats.Missed++
	r.tellOf(sub, SubscriptionLost, Diagnostic{Err: err})
	r.log.Error("place lost: its containers left the cache before they were delivered", r.about(sub, "policy", r.onMiss.String(), "err", err)...)
	sub.missed = err
	switch {
	case sub.moved: // where the policy has put it is lost, too: there it stays
	case r.onMiss == MissEarliest:
		r.moveOn(sub, Position{Kind: PositionEarliest}, was)
	case r.onMiss == MissLatest:
		r.moveOn(sub, r.afterRead(), was)
	case r.onMiss == MissFault && !sub.rec.Implicit && r.latch.enter():
		r.fault(sub, func() bool { return !sub.removed }, err, func(bool) { r.latch.leave() })
	}
}

// moveOn opens another place for a subscription that has lost its own.
func (r *run) moveOn(sub *subscription, at Position, unresolved bool) {
	next := r.open(sub.entry.id, at)
	sub.generation++
	sub.cursor.Close()
	sub.cursor = next
	sub.unresolved, sub.missed, sub.moved = unresolved, nil, true
	r.busy.add(sub.entry)
	r.deliver(sub)
}

// errNothing is the failure of a cursor that contradicts itself.
var errNothing = errors.New("Cursor.Next returned no container, and Peek had said that there is one")
