package queue

import (
	"context"
	"errors"
	"sync"

	"github.com/penstock/penstock"
)

// errRunEnds: a run that ends takes no further request.
var errRunEnds = errors.New("the run ends")

// resizing is a call of Resize that the goroutine of Run answers.
type resizing struct {
	ctx       context.Context
	consumers int
	done      chan error
}

// yielding is how the loops of a run make room for others. While it is asked,
// each loop gives its pusher up as soon as no call of it is in hand, and ends;
// when it is called off, those that were given up get new loops.
type yielding[T any] struct {
	mu    sync.Mutex
	asked bool
	given []*pusher[T]
	want  int
	all   chan struct{} // closed when want are given
}

// ask begins.
func (y *yielding[T]) ask(want int) (all chan struct{}) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.asked, y.want, y.given, y.all = true, want, nil, make(chan struct{})
	return y.all
}

// give is the last act of a loop, unless it returns false: then it was called
// off.
func (y *yielding[T]) give(p *pusher[T]) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.asked {
		return false
	}
	if y.given = append(y.given, p); len(y.given) == y.want {
		close(y.all)
	}
	return true
}

// end returns what was given; no more is.
func (y *yielding[T]) end() []*pusher[T] {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.asked = false
	return y.given
}

// resizeTo ends all loops between two calls of the handler, shares the
// partitions out anew, and begins new loops. When the request's context ends
// before all have ended, or when the run is to end, it leaves all as it was.
func (r *run[T]) resizeTo(ctx context.Context, q *resizing) error {
	pushers := r.group.pushers()
	all := r.yielding.ask(len(pushers))
	r.step.Store(yields)
	for _, p := range pushers {
		p.consumer.waker.Ring()
	}
	var err error
	select {
	case <-all:
	case <-q.ctx.Done():
		err = penstock.ContextError(q.ctx)
	case <-ctx.Done():
		err = errRunEnds
	case <-r.failed:
		err = errRunEnds
	case <-r.stop.asked:
		err = errRunEnds
	}
	given := r.yielding.end()
	if len(given) == len(pushers) {
		for _, p := range given {
			_ = p.disband() // nothing is in hand
		}
		err = r.divide(q.consumers)
		given = r.group.pushers()
		r.left.Store(int32(len(given)))
		for _, p := range given {
			p.crew.gather(r.group.config.Workers)
			p.run = r
			p.setInside(r.handlers)
		}
	}
	r.step.Store(delivering)
	for _, p := range pushers {
		p.consumer.waker.Ring() // those that have not ended
	}
	for _, p := range given {
		// One per consumer, in the place of those that have ended. Ended and
		// waited for as those of Run.
		go p.loop()
	}
	return err
}

func (r *run[T]) divide(consumers int) error {
	s := &r.group.push
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.group.divide(consumers)
}

// pushers returns those of the last run.
func (g *Group[T]) pushers() []*pusher[T] {
	g.push.mu.Lock()
	defer g.push.mu.Unlock()
	return g.push.pushers
}

// regroup makes the pushers for consumers with new shares. The lanes go over as
// they are, with all that they know of what is not settled. The caller holds
// push.mu, and no loop is at work.
func (g *Group[T]) regroup() {
	consumers := g.shares.Load().consumers
	s := &g.push
	if s.pushers == nil {
		return
	}
	var lanes []*lane[T]
	for _, p := range s.pushers {
		s.past.add(&p.counts)
		lanes = append(lanes, p.lanes...)
	}
	s.pushers = nil
	for _, c := range consumers {
		s.pushers = append(s.pushers, newPusher(g, c, lanes[c.mine.from:c.mine.to:c.mine.to]))
	}
}

// yield waits until no call is in hand, and gives the pusher up. It returns
// false when the loop has to go on.
func (p *pusher[T]) yield() (bool, error) {
	for p.crew.flying > 0 {
		landed, err := p.settleLanded()
		if err != nil || p.group.closed.Load() || !p.run.yielded() {
			return false, err
		}
		for _, l := range p.lanes {
			if err := l.commitDue(); err != nil {
				return false, err
			}
		}
		if landed {
			continue
		}
		p.consumer.collect() // or what has come meanwhile keeps it from sleeping
		if err := p.sleep(); err != nil {
			return false, err
		}
	}
	p.showIdle()
	return p.run.yielding.give(p), nil
}

// own makes the lane one of a consumer.
func (l *lane[T]) own(c *Consumer[T], index int) {
	l.consumer, l.index = c, index
	if l.park != nil {
		wake := c.waker.Place(index).Notify
		l.park.owner.Store(&wake)
	}
}

// add adds the counts of a pusher that is no more.
func (c *pushCounts) add(of *pushCounts) {
	c.delivered.Add(of.delivered.Load())
	c.failed.Add(of.failed.Load())
	c.deadLettered.Add(of.deadLettered.Load())
	c.dropped.Add(of.dropped.Load())
	for i := range c.flushed {
		c.flushed[i].Add(of.flushed[i].Load())
	}
	c.busyNanos.Add(of.busyNanos.Load())
}
