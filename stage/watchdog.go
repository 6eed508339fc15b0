package stage

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrWatchdog ends a gate made by [Watchdog].
var ErrWatchdog = errors.New("watchdog")

// WatchdogConfig says what a [Watchdog] does not wait for any longer. 0 means that
// it does; a negative time, or nothing but zeros, is an error at Start.
type WatchdogConfig struct {
	Initial      time.Duration // for the first event, from the start of the stage
	Idle         time.Duration // for an event, since the one before or since it could take one again
	Backpressure time.Duration // for somebody to ask for an event that is there
	Completion   time.Duration // for the end of the input and of what it holds, from the start of the stage
}

// Watchdog returns a gate that passes everything on, and fails with an error that
// matches [ErrWatchdog] when something takes too long. The time while nobody asks
// for what it holds, less than a chunk, does not count as Idle: it could not
// take an event. With [Resume] it watches on from the next event.
func Watchdog[T any](c WatchdogConfig, opts ...Option) *Gate[T, T] {
	w := &watchdog[T]{c: c, events: deque[T]{clears: holdsPointers[T]()}}
	g := driven[T, T]("watchdog", true, w, w.take, opts)
	w.timer.wake = func() { g.in.wake(ctlWake) }
	w.want = g.out.want
	for field, d := range map[string]time.Duration{"Initial": c.Initial, "Idle": c.Idle, "Backpressure": c.Backpressure, "Completion": c.Completion} {
		if d < 0 {
			g.in.invalid("WatchdogConfig."+field, "%v is negative", d)
		}
	}
	if c == (WatchdogConfig{}) {
		g.in.invalid("WatchdogConfig", "there is nothing to watch")
	}
	return g
}

// A watchdog holds the rest of a chunk that nobody has asked for.
//
// Invariants: pressed is the time since which something is held, and zero while
// nothing is; once begun, the alarm is set for the earliest of what is watched,
// or for an earlier time, while there is something.
type watchdog[T any] struct {
	c      WatchdogConfig
	want   func() int
	events deque[T]

	begun   time.Time
	free    time.Time // since then it waits for an event
	came    bool      // an event has
	pressed time.Time
	over    bool // the input is
	timer   alarm
}

func (w *watchdog[T]) take(_ context.Context, in []T, out *Output[T]) error {
	now := time.Now()
	w.begin(now)
	w.came, w.free = true, now
	n := min(w.want(), len(in))
	out.Forward(in[:n:cap(in)])
	if n < len(in) {
		w.events.pushBack(in[n:])
		w.pressed = now
	}
	w.arm()
	return nil
}

func (w *watchdog[T]) begin(now time.Time) {
	if w.begun.IsZero() {
		w.begun, w.free = now, now
	}
}

func (w *watchdog[T]) due(woken bool, want int) bool {
	return woken || w.begun.IsZero() || want > 0 && w.events.len() > 0
}

func (w *watchdog[T]) poll(_ context.Context, want int, out *Output[T]) error {
	now := time.Now()
	w.begin(now)
	if want > 0 && w.events.len() > 0 {
		out.buf = w.events.popFront(out.buf, min(want, w.events.len()))
		w.pressed = now
		if w.events.len() == 0 {
			w.pressed, w.free = time.Time{}, now
		}
	}
	if w.timer.rang() {
		w.timer.stop()
		if at, what, d := w.next(); d > 0 && !now.Before(at) {
			return fmt.Errorf("%w: %s %v", ErrWatchdog, what, d)
		}
	}
	w.arm()
	return nil
}

// next returns what is too late first, and when; d is 0 when nothing can be.
func (w *watchdog[T]) next() (at time.Time, what string, d time.Duration) {
	look := func(from time.Time, after time.Duration, text string) {
		if t := from.Add(after); after > 0 && (d == 0 || t.Before(at)) {
			at, what, d = t, text, after
		}
	}
	look(w.begun, w.c.Completion, "not at the end after")
	switch {
	case w.events.len() > 0:
		look(w.pressed, w.c.Backpressure, "nobody has asked for an event for")
	case w.over:
	case w.came:
		look(w.free, w.c.Idle, "no event for")
	default:
		look(w.begun, w.c.Initial, "no first event after")
		look(w.free, w.c.Idle, "no event for")
	}
	return at, what, d
}

// arm sets the alarm for what is next, unless it rings before that anyway.
func (w *watchdog[T]) arm() {
	if at, _, d := w.next(); d > 0 && (!w.timer.set() || at.Before(w.timer.at)) {
		w.timer.until(at)
	}
}

func (w *watchdog[T]) full() bool { return w.events.len() > 0 }
func (w *watchdog[T]) inputOver() { w.over = true }
func (w *watchdog[T]) held() int  { return w.events.len() }

func (w *watchdog[T]) renew() {
	w.close()
	w.begun, w.came, w.over = time.Time{}, false, false
}

func (w *watchdog[T]) close() {
	w.timer.stop()
	w.events.dropFront(w.events.len())
	w.pressed = time.Time{}
}
