package stage

import (
	"context"
	"time"
)

// Delay returns a gate that passes every event on d after it came, in order. It
// holds fewer than limit events and one chunk, and takes nothing while it holds
// as many as limit: so it passes about limit events in every d. limit 0 means
// [DefaultBuffer]. When the input has ended, the rest still waits its time.
// A negative d or limit is an error at Start.
func Delay[T any](d time.Duration, limit int, opts ...Option) *Gate[T, T] {
	t := &delayed[T]{after: d, limit: limit}
	if limit == 0 {
		t.limit = DefaultBuffer
	}
	t.events.clears = holdsPointers[T]()
	g := driven[T, T]("delay", true, t, t.take, opts)
	t.timer.wake = func() { g.in.wake(ctlWake) }
	if d < 0 {
		g.in.invalid("Delay", "%v is negative", d)
	}
	if limit < 0 {
		g.in.invalid("Delay", "a limit of %d is negative", limit)
	}
	return g
}

// A delayed gate holds runs of events that came at one time.
//
// Invariants: the runs add up to the number of events; the alarm is set, for
// the time of the first, while there is one.
type delayed[T any] struct {
	passive[T]
	after  time.Duration
	limit  int
	events deque[T]
	runs   deque[run]
	timer  alarm
}

// A run is n events that are due at a time.
type run struct {
	at time.Time
	n  int
}

func (d *delayed[T]) take(_ context.Context, in []T, _ *Output[T]) error {
	at := time.Now().Add(d.after)
	d.events.pushBack(in)
	d.runs.pushBack([]run{{at, len(in)}})
	if !d.timer.set() {
		d.timer.until(at)
	}
	return nil
}

func (d *delayed[T]) due(woken bool, _ int) bool { return woken }

func (d *delayed[T]) poll(_ context.Context, _ int, out *Output[T]) error {
	for d.timer.rang() {
		out.buf = d.events.popFront(out.buf, d.runs.pop().n)
		d.timer.stop()
		if d.runs.len() > 0 {
			d.timer.until(d.runs.front().at)
		}
	}
	return nil
}

func (d *delayed[T]) full() bool { return d.events.len() >= d.limit }
func (d *delayed[T]) held() int  { return d.events.len() }

func (d *delayed[T]) renew() { d.close() }

func (d *delayed[T]) close() {
	d.timer.stop()
	d.events.dropFront(d.events.len())
	d.runs.dropFront(d.runs.len())
}

// Debounce returns a gate that passes an event on when none has come for d
// after it, or the input has ended; all others are filtered. It holds one
// event, and never makes its producers wait: while nobody asks, the event is
// replaced by the next. d <= 0 is an error at Start.
func Debounce[T any](d time.Duration, opts ...Option) *Gate[T, T] {
	return newLatest[T]("debounce", latest[T]{every: d, restart: true}, opts)
}

// Sample returns a gate that passes on the last event of every d, beginning
// with the first event; a d without an event passes none. All others are
// filtered; the last event of all passes when the input has ended. It
// holds one event, and never makes its producers wait: while nobody asks, the
// event is replaced by the next. d <= 0 is an error at Start.
func Sample[T any](d time.Duration, opts ...Option) *Gate[T, T] {
	return newLatest[T]("sample", latest[T]{every: d}, opts)
}

// A latest gate holds the last event that came.
//
// Invariants: has says whether v counts; while it does, the alarm is set, or
// ripe is, or the input is over.
type latest[T any] struct {
	passive[T]
	every   time.Duration
	restart bool // every event begins the time anew

	v     T
	has   bool
	ripe  bool      // v passes as soon as somebody asks
	begun time.Time // of the first d
	timer alarm
}

func newLatest[T any](name string, l latest[T], opts []Option) *Gate[T, T] {
	d := &l
	g := driven[T, T](name, true, d, d.take, opts)
	d.timer.wake = func() { g.in.wake(ctlWake) }
	if l.every <= 0 {
		g.in.invalid(name, "%v is not positive", l.every)
	}
	return g
}

func (l *latest[T]) take(_ context.Context, in []T, out *Output[T]) error {
	out.lost.filtered = len(in) - 1
	if l.has {
		out.lost.filtered++
	}
	l.v, l.has = in[len(in)-1], true
	switch {
	case l.restart:
		l.ripe = false
		l.timer.in(l.every)
	case !l.timer.set() && !l.ripe:
		l.timer.until(l.tick(time.Now()))
	}
	return nil
}

// tick returns the end of the d that now is in.
func (l *latest[T]) tick(now time.Time) time.Time {
	if l.begun.IsZero() {
		l.begun = now
	}
	return now.Add(l.every - now.Sub(l.begun)%l.every)
}

func (l *latest[T]) due(woken bool, want int) bool { return woken || l.ripe && want > 0 }

func (l *latest[T]) poll(_ context.Context, want int, out *Output[T]) error {
	if l.timer.rang() {
		l.timer.stop()
		l.ripe = true
	}
	if l.ripe && l.has && want > 0 {
		out.Emit(l.v)
		l.close()
	}
	return nil
}

func (l *latest[T]) inputOver() { l.ripe = l.has }

func (l *latest[T]) held() int {
	if l.has {
		return 1
	}
	return 0
}

func (l *latest[T]) renew() { l.close() }

func (l *latest[T]) close() {
	var none T
	l.timer.stop()
	l.v, l.has, l.ripe = none, false, false
}
