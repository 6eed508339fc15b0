package stage

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// A MessageTimer sends a message to its stage later, once or again and again.
// It stops with the stage.
type MessageTimer struct {
	stop func() bool
}

// Stop ends the timer. It reports whether the timer had a message to send, now
// or later: none of them is handled any more, also not one that waits in the
// mailbox. Safe for concurrent use; a second call changes nothing.
func (t *MessageTimer) Stop() bool { return t.stop() }

// After sends the message after d, as [Mailbox.Send] does. While it runs the
// timer holds one place in the mailbox. The error matches [ErrStageNotAlive]
// when no stage has the mailbox, and [penstock.ErrFull] when it has no place.
// It never blocks. d <= 0 sends at once.
func (m *Mailbox[M]) After(d time.Duration, message M) (*MessageTimer, error) {
	return m.timer(max(0, d), 0, message)
}

// Every is [Mailbox.After] that goes on, every d, until the timer is stopped or
// the stage ends. A stage that is behind gets one message for several that are
// due, as with a [time.Ticker]. d <= 0 is an error that matches
// [penstock.ErrInvalid].
func (m *Mailbox[M]) Every(d time.Duration, message M) (*MessageTimer, error) {
	if d <= 0 {
		return nil, &penstock.FieldError{Field: "Every", Reason: fmt.Sprintf("%v is not positive", d)}
	}
	return m.timer(d, d, message)
}

// A clockwork is a timer of one receiver. All of it is guarded by the mailbox's
// mutex.
//
// Invariant: it holds a token of room exactly while it is among the receiver's
// timers; there it stays until its last message was taken.
type clockwork[M any] struct {
	message M
	every   time.Duration // 0: once
	due     time.Time
	timer   *time.Timer
	waits   bool // its message is in the queue
}

func (m *Mailbox[M]) timer(d, every time.Duration, message M) (*MessageTimer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.owner
	if r == nil || r.closed {
		return nil, m.notAlive()
	}
	select {
	case m.room <- struct{}{}:
	default:
		return nil, fmt.Errorf("mailbox %q: %w", m.name, penstock.ErrFull)
	}
	c := &clockwork[M]{message: message, every: every, due: time.Now().Add(d)}
	c.timer = time.AfterFunc(d, func() { m.rang(r, c) })
	r.timers[c] = struct{}{}
	return &MessageTimer{stop: func() bool { return m.forget(r, c) }}, nil
}

// rang puts the message of a timer into its place.
func (m *Mailbox[M]) rang(r *receiver[M], c *clockwork[M]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, runs := r.timers[c]; !runs {
		return
	}
	if !c.waits {
		c.waits = true
		r.add(letter[M]{message: c.message, from: c}, false)
		r.b.wake(ctlMail) // never blocks
	}
	if c.every > 0 {
		now := time.Now()
		c.due = c.due.Add(c.every)
		if missed := now.Sub(c.due); missed >= 0 { // late: go on in step
			c.due = c.due.Add(missed - missed%c.every + c.every)
		}
		c.timer.Reset(c.due.Sub(now))
	}
}

// forget ends a timer, and reports whether it was running.
func (m *Mailbox[M]) forget(r *receiver[M], c *clockwork[M]) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, runs := r.timers[c]; !runs {
		return false
	}
	r.endTimer(c)
	return true
}
