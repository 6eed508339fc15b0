package settle

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

var errNoCause = errors.New("no cause given")

// Committed returns the lowest offset that is neither settled nor parked and in
// the retry log. It never moves back.
func (m *Machine) Committed() penstock.Offset {
	if len(m.runs) > 0 {
		return m.runs[0].from
	}
	return m.next
}

// Delivered returns one past the highest offset that was ever delivered or
// parked.
func (m *Machine) Delivered() penstock.Offset { return m.next }

// Position returns the offset that the next span begins at: of the lowest
// retry or dead letter that waits, due or not, else the lowest that was never
// delivered. With [Config.Beside] it may begin further on.
func (m *Machine) Position() penstock.Offset {
	if m.waiting > 0 {
		return m.runs[m.firstWaiting()].from
	}
	return m.next
}

// Unsettled returns how many events were delivered and are not settled: in
// hand, or waiting for a retry or to be handed over, or parked and not yet in
// the retry log. Those that are in the retry log do not count, not even in hand;
// see [Machine.Parked].
func (m *Machine) Unsettled() int {
	n := 0
	for _, r := range m.runs {
		n += int(r.to - r.from)
	}
	return n
}

// InHand returns how many events are in hand; parked ones do not count.
func (m *Machine) InHand() int {
	n := 0
	for _, r := range m.runs {
		if r.inHand {
			n += int(r.to - r.from)
		}
	}
	return n
}

// Due returns when Next has a span to deliver again, which may lie in the past.
// It returns false when nothing waits for a retry, when what waits has to be
// parked and the retry log has no room ([Machine.NeedsRoom]), or when a fault
// stops all.
func (m *Machine) Due() (time.Time, bool) {
	if m.waiting == 0 || m.fault != nil || m.noRoom() {
		return time.Time{}, false
	}
	if m.beside {
		return m.dueBeside()
	}
	return m.runs[m.firstWaiting()].past.due, true
}

// dueBeside returns when the first of those is due that wait and are not behind
// one that has to be parked and has no room.
func (m *Machine) dueBeside() (due time.Time, ok bool) {
	for _, r := range m.runs {
		if m.lot != nil && m.lot.full && r.from >= m.lot.fullAt {
			break
		}
		if r.waits() && (!ok || r.past.due.Before(due)) {
			due, ok = r.past.due, true
		}
	}
	return due, ok
}

// NeedsRoom reports whether the last Next met an event that comes behind a
// parked one and for which the retry log had no room. Until that event is
// parked, or passed, nothing from it on is due.
func (m *Machine) NeedsRoom() bool { return m.lot != nil && m.lot.full }

// MadeRoom tells that another machine may have given back some of the budget:
// what waits for room is due again, and the next Next looks. What this machine
// gives back itself it knows.
func (m *Machine) MadeRoom() {
	if m.lot != nil {
		m.lot.full = false
	}
}

// noRoom reports whether the last Next could not park the event at the position.
func (m *Machine) noRoom() bool {
	return m.lot != nil && m.lot.full && m.lot.fullAt == m.Position()
}

// IsParked reports whether the event at an offset is parked.
func (m *Machine) IsParked(o penstock.Offset) bool {
	return m.lot != nil && m.lot.events[o] != nil
}

// Fault returns the cause of the fault that stopped the machine, nil while
// there is none.
func (m *Machine) Fault() error { return m.fault }

// Reason is why new events are not delivered.
type Reason uint8

const (
	// NotBlocked: new events are delivered as they come.
	NotBlocked Reason = iota
	// Retrying: an event failed and waits for its next attempt.
	Retrying
	// DeadLettering: an event was given up and could not be handed over yet.
	DeadLettering
	// RetryLogFull: an event comes behind a parked one, and the retry log has no
	// room for it.
	RetryLogFull
	// NotLogged: the lowest event that is not settled is parked, the retry log
	// has not stored it, and there are WindowMax offsets behind it.
	NotLogged
	// WindowFull: the lowest unsettled event has WindowMax offsets behind it.
	WindowFull
	// Faulted: a fault stopped the machine.
	Faulted
)

// Blocked says why new events wait, and for which event.
type Blocked struct {
	Reason   Reason
	Offset   penstock.Offset // the event in the way
	Attempt  int             // how many attempts it has had
	Attempts int             // how many it gets; negative when there is no limit
	Due      time.Time       // of its next attempt, if it waits for one
	Cause    error           // of its last failure
	NoRoom   bool            // it was to be parked, and the retry log was full
	Behind   penstock.Offset // with RetryLogFull: the parked event of its key
}

// Blocked returns why new events are not delivered now. It allocates nothing.
func (m *Machine) Blocked() Blocked {
	b := Blocked{Attempts: m.policy.Attempts, Offset: m.Committed()}
	switch {
	case m.fault != nil:
		b.Reason, b.Cause = Faulted, m.fault
	case m.noRoom():
		b.Reason, b.Offset, b.Behind = RetryLogFull, m.lot.fullAt, m.lot.fullBehind
	case m.waiting > 0:
		r := m.runs[m.firstWaiting()]
		b.Reason, b.Offset, b.Attempt, b.Due, b.Cause = Retrying, r.from, r.attempt-1, r.past.due, r.past.cause
		b.NoRoom = r.past.noRoom
		if r.dead {
			b.Reason, b.Attempt = DeadLettering, r.attempt
			if r.past.refusal != nil {
				b.Cause = r.past.refusal
			}
		}
	case m.next-m.Committed() >= WindowMax:
		b.Reason = WindowFull
		if len(m.runs) > 0 && m.runs[0].parked {
			b.Reason = NotLogged
		}
	}
	return b
}

// String returns the reason in words, "" when nothing is blocked.
func (b Blocked) String() string {
	switch b.Reason {
	case Retrying:
		of := ""
		if b.Attempts > 0 {
			of = fmt.Sprintf(" of %d", b.Attempts)
		}
		why := ""
		if b.NoRoom {
			why = " in its place, because the retry log had no room for it"
		}
		return fmt.Sprintf("offset %d waits for attempt %d%s%s: %v", b.Offset, b.Attempt+1, of, why, b.Cause)
	case DeadLettering:
		return fmt.Sprintf("offset %d is given up after %d attempts and waits to be handed over as a dead letter: %v", b.Offset, b.Attempt, b.Cause)
	case RetryLogFull:
		return fmt.Sprintf("offset %d comes behind offset %d, which has its key and is parked, and the retry log has no room for it", b.Offset, b.Behind)
	case NotLogged:
		return fmt.Sprintf("offset %d is parked and not stored in the retry log yet, and holds the %d offsets behind it, which is the limit", b.Offset, WindowMax)
	case WindowFull:
		return fmt.Sprintf("offset %d is not settled and holds the %d offsets behind it, which is the limit", b.Offset, WindowMax)
	case Faulted:
		return fmt.Sprintf("stopped by a fault at offset %d: %v", b.Offset, b.Cause)
	}
	return ""
}
