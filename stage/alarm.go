package stage

import "time"

// An alarm wakes a driver at a time. It belongs to the gate's goroutine. What
// counts is the time, not the timer: a wake that comes late, from a timer that
// was stopped, finds that the alarm has not rung.
//
// Invariant: at most one timer runs, and none after stop.
type alarm struct {
	wake  func() // never blocks; any goroutine
	at    time.Time
	timer *time.Timer
}

// set reports whether the alarm will ring, or has and was not stopped since.
func (a *alarm) set() bool { return !a.at.IsZero() }

// in sets the alarm to ring after d.
func (a *alarm) in(d time.Duration) { a.until(time.Now().Add(d)) }

// until sets the alarm to ring at t.
func (a *alarm) until(t time.Time) {
	a.at = t
	d := max(0, time.Until(t))
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.wake)
	} else {
		a.timer.Reset(d)
	}
}

// rang reports whether the time has come.
func (a *alarm) rang() bool { return a.set() && !time.Now().Before(a.at) }

// stop switches the alarm off.
func (a *alarm) stop() {
	if !a.set() {
		return
	}
	a.at = time.Time{}
	a.timer.Stop()
}
