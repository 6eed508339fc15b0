package stage

import (
	"context"
	"math"
	"slices"
)

// MergeInterleaved is [Merge] in strict turn: n events of the first producer, then
// n of the next, and so on. It waits for the one whose turn it is; one that has
// ended is left out. Of every other it holds up to the max of its subscription,
// 1000 events, meanwhile. n < 1 is an error at Start.
//
// The producers must not depend on each other: two consumers of one broadcast
// that get different parts of it can make it wait for ever.
func MergeInterleaved[T any](g *Graph, name string, n int, from ...Outleter[T]) *Gate[T, T] {
	to := newInterleaver[T](name, n)
	if n < 1 {
		to.in.invalid("MergeInterleaved", "%d events in a row are not positive", n)
	}
	for _, f := range from {
		Connect(g, f, to, CancelMode(Transient))
	}
	return to
}

// MergeConcat emits everything of the first producer until it has ended, then
// everything of the next, and so on. Of those whose turn has not come it holds up
// to the max of their subscriptions, 1000 events each.
func MergeConcat[T any](g *Graph, name string, from ...Outleter[T]) *Gate[T, T] {
	to := newInterleaver[T](name, math.MaxInt)
	for _, f := range from {
		Connect(g, f, to, CancelMode(Transient))
	}
	return to
}

// An interleaver holds what its producers have sent until it is their turn. It
// asks by itself, for what it has emitted, so it never has more of a producer
// than the max of its subscription.
//
// Invariants: lines are in the order of the subscriptions; left > 0 events may
// follow of the line at at; kept is the sum of their events.
type interleaver[T any] struct {
	passive[T]
	in    *inlet[T]
	n     int // events in a row
	lines []*line[T]
	at    int
	left  int
	kept  int
}

// A line is what one producer has sent.
type line[T any] struct {
	e      *edge[T]
	events deque[T]
	owed   int // emitted, and not asked for again
}

func newInterleaver[T any](name string, n int) *Gate[T, T] {
	d := &interleaver[T]{n: n, left: n}
	to := driven[T, T](name, true, d, d.take, nil)
	to.in.auto = false
	to.in.owned = true
	d.in = &to.in
	return to
}

// look takes in the subscriptions that are new.
func (d *interleaver[T]) look() {
	for _, e := range d.in.edges {
		if !e.done && !slices.ContainsFunc(d.lines, func(l *line[T]) bool { return l.e == e }) {
			d.lines = append(d.lines, &line[T]{e: e, events: deque[T]{clears: holdsPointers[T]()}})
		}
	}
}

func (d *interleaver[T]) take(ctx context.Context, in []T, _ *Output[T]) error {
	d.look()
	sub := Origin(ctx)
	for _, l := range d.lines {
		if l.e.sub == sub {
			l.events.pushBack(in)
			d.kept += len(in)
		}
	}
	return nil
}

// current returns the line whose turn it is, nil when there is none; lines that
// are over are left out.
func (d *interleaver[T]) current() *line[T] {
	for len(d.lines) > 0 {
		l := d.lines[d.at]
		if l.events.len() > 0 || !l.e.done {
			return l
		}
		d.lines = slices.Delete(d.lines, d.at, d.at+1)
		if d.left = d.n; d.at == len(d.lines) {
			d.at = 0
		}
	}
	return nil
}

func (d *interleaver[T]) due(_ bool, want int) bool {
	if want == 0 || d.kept == 0 {
		return false
	}
	l := d.current()
	return l != nil && l.events.len() > 0
}

func (d *interleaver[T]) poll(_ context.Context, want int, out *Output[T]) error {
	for want > 0 {
		l := d.current()
		if l == nil || l.events.len() == 0 {
			break
		}
		k := min(want, d.left, l.events.len())
		out.buf = l.events.popFront(out.buf, k)
		want -= k
		d.kept -= k
		l.owed += k
		if l.owed >= l.e.window.Max()-l.e.window.Min() {
			d.ask(l)
		}
		if d.left -= k; d.left == 0 {
			d.at, d.left = (d.at+1)%len(d.lines), d.n
		}
	}
	return nil
}

func (d *interleaver[T]) ask(l *line[T]) {
	if !l.e.done && l.owed > 0 {
		d.in.ask(l.e, l.owed)
	}
	l.owed = 0
}

func (d *interleaver[T]) held() int { return d.kept }

// renew asks again for what it lets go.
func (d *interleaver[T]) renew() {
	for _, l := range d.lines {
		l.owed += l.events.len()
		l.events.dropFront(l.events.len())
		d.ask(l)
	}
	d.kept, d.left = 0, d.n
}

func (d *interleaver[T]) close() { d.lines, d.kept, d.at = nil, 0, 0 }
