package measure

import "fmt"

// producerBits is where the number of the producer begins in that of an event
// of several producers; below it stands which one of its events it is.
const producerBits = 20

// By returns the n events of producer p, in order, for a [Crowd].
func By[T Event](p, n int) []T {
	v := make([]T, n)
	for i := range v {
		v[i][0] = p<<producerBits | i
	}
	return v
}

// A Crowd checks events of several producers ([By]) at one consumer: any part
// of them may come, but each at most once and those of one producer in
// ascending order per lane. Which ones came at all is seen when the crowds of
// all consumers are put together ([Together]). It is for one goroutine.
type Crowd struct {
	every     bool
	producers int
	each      int
	last      []int // by lane and producer: the last number, -1 before the first
	count     int
	seen      []bool
	err       error
}

// NewCrowd returns a crowd of so many lanes and producers, each of which makes
// so many events.
func NewCrowd(c *Clock, lanes, producers, each int) *Crowd {
	w := &Crowd{every: c.Every, producers: producers, each: each, last: make([]int, lanes*producers)}
	for i := range w.last {
		w.last[i] = -1
	}
	if w.every {
		w.seen = make([]bool, producers*each)
	}
	return w
}

// Count returns how many events came.
func (w *Crowd) Count() int { return w.count }

// Join looks at the first and the last event of a batch, and at all of them in
// the untimed pass.
func Join[T Event](w *Crowd, lane int, vs []T) {
	if len(vs) == 1 {
		w.add(lane, vs[0][0])
		return
	}
	joinMany(w, lane, vs)
}

func joinMany[T Event](w *Crowd, lane int, vs []T) {
	w.count += len(vs)
	if w.every {
		for _, v := range vs {
			w.one(lane, v[0])
		}
		return
	}
	w.after(lane, vs[0][0])
	w.after(lane, vs[len(vs)-1][0])
}

// add is Join for one event.
func (w *Crowd) add(lane, n int) {
	w.count++
	if w.every {
		w.one(lane, n)
		return
	}
	w.after(lane, n)
}

// after makes sure that an event is later than the last one seen of its
// producer.
func (w *Crowd) after(lane, n int) {
	p, i := n>>producerBits, n&(1<<producerBits-1)
	if p < 0 || p >= w.producers || i >= w.each {
		w.fault("event %d was never produced", n)
		return
	}
	at := &w.last[lane*w.producers+p]
	if n <= *at {
		w.fault("lane %d got event %d after %d of the same producer", lane, n, *at)
	}
	*at = n
}

func (w *Crowd) one(lane, n int) {
	w.after(lane, n)
	switch {
	case w.err != nil:
	case w.seen[w.index(n)]:
		w.fault("event %d came twice", n)
	default:
		w.seen[w.index(n)] = true
	}
}

// index returns the place of an event that some producer made.
func (w *Crowd) index(n int) int { return n>>producerBits*w.each + n&(1<<producerBits-1) }

func (w *Crowd) fault(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// Together says what was wrong with the iteration, after the last event of all
// consumers that share the producers' events.
func Together(crowds ...*Crowd) error {
	count, events := 0, crowds[0].producers*crowds[0].each
	seen := make([]bool, events)
	for _, w := range crowds {
		if w.err != nil {
			return w.err
		}
		count += w.count
		for n, yes := range w.seen {
			if yes && seen[n] {
				return fmt.Errorf("event %d of producer %d came to two consumers", n%w.each, n/w.each)
			}
			seen[n] = seen[n] || yes
		}
	}
	if count != events {
		return fmt.Errorf("%d events came out of %d", count, events)
	}
	return nil
}
