package stage

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"sync"

	"github.com/penstock/penstock"
)

// MapConcurrent returns a gate that emits the result of f for every event, in
// the order of the events, and runs up to n calls of f at a time, each in a
// goroutine of its own. Besides the n events whose results are not out yet, at
// most one chunk waits in the gate. n < 1 is an error at Start.
//
// An error of f fails the gate, after the results before it are out, and
// cancels the contexts of the other calls; [Done] ends the gate normally at that place. A panic,
// runtime.Goexit too, becomes a *[penstock.PanicError]. The gate ends when every call has returned: f
// should return soon when its context ends. Events that were in hands then are
// counted as dropped. A call whose error matches [ErrGivenUp] fails its event alone;
// [WithRetry] and [WithBreaker] make functions that call again, or not at all.
func MapConcurrent[In, Out any](n int, f func(ctx context.Context, v In) (Out, error), opts ...Option) *Gate[In, Out] {
	return newConcurrent(n, &concurrent[In, Out]{ordered: true}, f, "mapconcurrent", opts)
}

// MapConcurrentUnordered is [MapConcurrent] that emits each result as soon as
// it is there.
func MapConcurrentUnordered[In, Out any](n int, f func(ctx context.Context, v In) (Out, error), opts ...Option) *Gate[In, Out] {
	return newConcurrent(n, &concurrent[In, Out]{}, f, "mapconcurrent", opts)
}

// MapPartitioned is [MapConcurrentUnordered] that keeps the order of events with
// the same key: at most one of them is in a call at a time, and their results
// come out in order. Keys are spread over n lanes; fewer than n events and one
// chunk wait for their lane. The pointer may not be kept.
func MapPartitioned[In, Out any, Key comparable](
	n int, key func(*In) Key, f func(ctx context.Context, v In) (Out, error), opts ...Option,
) *Gate[In, Out] {
	seed := maphash.MakeSeed()
	c := &concurrent[In, Out]{lane: func(v *In) int { return int(maphash.Comparable(seed, key(v)) % uint64(n)) }}
	g := newConcurrent(n, c, f, "mappartitioned", opts)
	g.in.callback(key != nil)
	return g
}

// A concurrent gate hands events to workers and emits what they return.
//
// An event waits, or is in a slot until its result is out. A slot in a call is
// its worker's, and else the gate's; it goes there and back by channel.
//
// Invariants: flying is the number of slots in use, at most len(slots); the
// channels have room for all slots, so that no one waits to send.
type concurrent[In, Out any] struct {
	f       func(context.Context, In) (Out, error)
	ordered bool
	lane    func(*In) int // nil: any slot will do
	gate    *base

	slots   []slot[In, Out]
	flying  int
	head    int         // ordered: the slot whose result goes out next; the others follow
	free    []int       // unordered: slots that nothing is in
	waiting []deque[In] // events without a slot; one for each lane, or one
	count   int         // of them
	where   []int       // scratch: the lane of each event of a chunk

	back    chan int   // slots whose call has returned
	jobs    []chan int // slots to call; one for each lane, or one
	started []int      // workers on each of jobs
	workers sync.WaitGroup
	ctx     context.Context // of the calls
	cancel  context.CancelFunc
}

type slot[In, Out any] struct {
	in   In
	out  Out
	err  error
	used bool // something is in it
	done bool // its call has returned
}

// mostCalls bounds what a concurrent gate makes room for.
const mostCalls = 1 << 20

func newConcurrent[In, Out any](
	n int, c *concurrent[In, Out], f func(context.Context, In) (Out, error), name string, opts []Option,
) *Gate[In, Out] {
	g := driven[In, Out](name, f != nil, c, c.take, opts)
	if n < 1 || n > mostCalls {
		g.in.invalid(name, "%d calls at a time are not in [1, %d]", n, mostCalls)
		return g
	}
	c.f, c.gate = f, g.in.base
	c.furnish(n)
	return g
}

// furnish makes n slots, and room for what waits for them.
func (c *concurrent[In, Out]) furnish(n int) {
	lines := 1
	if c.lane != nil {
		lines = n
	}
	c.slots, c.back = make([]slot[In, Out], n), make(chan int, n)
	c.waiting, c.jobs, c.started = make([]deque[In], lines), make([]chan int, lines), make([]int, lines)
	for i := range lines {
		c.waiting[i].clears = holdsPointers[In]()
		c.jobs[i] = make(chan int, n)
	}
	c.free = nil
	for i := range n {
		c.free = append(c.free, i)
	}
	c.head, c.flying, c.count = 0, 0, 0
}

func (c *concurrent[In, Out]) renew() {
	if n := len(c.slots); c.cancel != nil {
		c.close()
		c.furnish(n)
		c.ctx = nil
	}
}

func (c *concurrent[In, Out]) take(ctx context.Context, in []In, _ *Output[Out]) error {
	if c.ctx == nil { // by which a call cannot tell its event's subscription: others come in meanwhile
		c.ctx, c.cancel = context.WithCancel(&childContext{ctx, nil})
	}
	if c.lane == nil {
		c.waiting[0].pushBack(in)
	} else {
		c.where = c.where[:0]
		for i := range in { // user code first: it may panic
			c.where = append(c.where, c.lane(&in[i]))
		}
		for i, k := range c.where {
			c.waiting[k].pushBack(in[i : i+1])
		}
	}
	c.count += len(in)
	c.dispatch()
	return nil
}

// dispatch gives waiting events to free slots, and these to workers.
func (c *concurrent[In, Out]) dispatch() {
	for line := range c.waiting {
		for c.waiting[line].len() > 0 {
			i := c.slotFor(line)
			if i < 0 {
				break
			}
			c.slots[i].in, c.slots[i].used = c.waiting[line].pop(), true
			c.flying++
			c.count--
			if c.started[line] < len(c.slots) && (c.lane == nil || c.started[line] == 0) && c.started[line] < c.flying {
				c.started[line]++
				// A worker: ends when close closes its jobs; close waits for it.
				c.workers.Go(func() { c.work(c.jobs[line]) })
			}
			c.jobs[line] <- i
		}
	}
}

// slotFor takes a slot for an event of the line; -1 when there is none.
func (c *concurrent[In, Out]) slotFor(line int) int {
	switch {
	case c.lane != nil:
		if c.slots[line].used {
			return -1
		}
		return line
	case c.flying == len(c.slots):
		return -1
	case c.ordered:
		return (c.head + c.flying) % len(c.slots)
	}
	i := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	return i
}

func (c *concurrent[In, Out]) work(jobs <-chan int) {
	for i := range jobs {
		c.call(&c.slots[i], i)
	}
}

// call runs f and sends the slot back, also when f panics or calls Goexit.
func (c *concurrent[In, Out]) call(s *slot[In, Out], i int) {
	returned := false
	c.gate.calls.Add(1)
	defer func() {
		if !returned {
			value := recover()
			s.err = &penstock.PanicError{Where: fmt.Sprintf("stage %q", c.gate.name), Value: value, Stack: debug.Stack()}
			if value != nil && c.gate.reaction(s.err) == Repanic {
				panic(s.err)
			}
		}
		c.gate.calls.Add(-1)
		c.back <- i
		c.gate.wake(ctlWake)
	}()
	s.out, s.err = c.f(c.ctx, s.in)
	returned = true
}

func (c *concurrent[In, Out]) due(woken bool, _ int) bool { return woken }

// poll emits the results that are there, as far as the order allows.
func (c *concurrent[In, Out]) poll(ctx context.Context, _ int, out *Output[Out]) error {
	for {
		select {
		case i := <-c.back:
			c.slots[i].done = true
			if !c.ordered {
				err := c.result(ctx, i, out)
				if !c.slots[i].used {
					c.free = append(c.free, i)
				}
				if err != nil {
					return err
				}
			}
			continue
		default:
		}
		break
	}
	for c.ordered && c.slots[c.head].done {
		head := c.head
		err := c.result(ctx, head, out)
		if !c.slots[head].used {
			c.head = (head + 1) % len(c.slots)
		}
		if err != nil {
			return err
		}
	}
	c.dispatch()
	return nil
}

// result settles one event. One whose call was cut off by the end of the graph
// stays in its slot, and is discarded with what else is held. After an error the
// gate looks again, if it goes on.
func (c *concurrent[In, Out]) result(ctx context.Context, i int, out *Output[Out]) error {
	s := &c.slots[i]
	err := s.err
	switch {
	case err == nil:
		out.Emit(s.out)
	case isInterrupt(ctx, err):
		return err
	case errors.Is(err, Done):
		out.lost.filtered++
	case errors.Is(err, ErrGivenUp):
		out.lost.failed++
		err = nil
	default:
		out.lost.failed++
		c.gate.wake(ctlWake)
	}
	*s = slot[In, Out]{}
	c.flying--
	return err
}

func (c *concurrent[In, Out]) full() bool {
	if c.lane != nil {
		return c.count >= len(c.slots)
	}
	return c.count > 0
}

func (c *concurrent[In, Out]) inputOver() {}
func (c *concurrent[In, Out]) held() int  { return c.count + c.flying }

func (c *concurrent[In, Out]) close() {
	if c.cancel == nil {
		return
	}
	c.cancel()
	c.cancel = nil
	for _, j := range c.jobs {
		close(j)
	}
	c.workers.Wait()
	c.slots, c.waiting, c.count, c.flying = nil, nil, 0, 0
}
