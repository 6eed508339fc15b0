package stage

import "context"

// crewLane is the slots of one subscription of a crew.
type crewLane[T any] struct {
	lane
	e   *edge[T]
	ctx context.Context
}

// childContext is the context of the children of one subscription.
type childContext struct {
	context.Context
	sub *Subscription
}

// Value returns the value for key, the graph's unless key is the package's own.
func (c *childContext) Value(key any) any {
	if _, ok := key.(originKey); ok {
		return c.sub
	}
	return c.Context.Value(key)
}

// laneOf returns the slots of a subscription.
func (c *crew[T]) laneOf(e *edge[T]) *crewLane[T] {
	l := c.lanes[e]
	if l == nil {
		l = &crewLane[T]{lane: lane{max: e.window.Max(), min: e.window.Min()}, e: e, ctx: &childContext{c.ctx, e.sub}}
		c.lanes[e] = l
		c.countSlots()
	}
	return l
}

// forget lets go of the lanes of subscriptions that have ended; their children
// go on (ST-122).
func (c *crew[T]) forget() {
	gone := false
	for e := range c.lanes {
		if e.done {
			delete(c.lanes, e)
			gone = true
		}
	}
	if gone {
		c.countSlots()
	}
}

func (c *crew[T]) countSlots() {
	n := 0
	for _, l := range c.lanes {
		n += l.max
	}
	c.slots.Store(int64(n))
}
