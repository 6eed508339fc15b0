package queue

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

var errDiscarded = errors.New("discarded by DiscardParked")

// orders are what others want done with parked keys; the owner of the partition
// does it. An order that waits already is not taken twice, so there are at most
// two for each parked key.
type orders struct {
	some atomic.Bool
	mu   sync.Mutex
	list []order
}

type order struct {
	key     string
	discard bool
}

func (o *orders) add(x order) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.list, x) {
		o.list = append(o.list, x)
	}
	o.some.Store(true)
}

func (o *orders) take() []order {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.list
	o.list = nil
	o.some.Store(false)
	return list
}

// RetryParked makes the parked events of a key come again at once, instead of
// after their backoff: one at a time, in their order. The key "" means all
// events without a key. It returns how many events are parked, and an error
// that matches [penstock.ErrNotFound] when none is. It does not wait: the
// consumer delivers them when it is free, and a group that is not being run
// when its next Run begins.
func (g *Group[T]) RetryParked(key string) (int, error) { return g.order(order{key: key}) }

// DiscardParked gives the parked events of a key up: they go to the group's
// [DeadLetter] at once, in their order, without another attempt; without
// DeadLetter they are dropped, counted and logged. The key "" means all events
// without a key. An event that a handler has at the moment is not discarded.
// It returns how many events are parked, and an error that matches
// [penstock.ErrNotFound] when none is. It does not wait, like [Group.RetryParked].
func (g *Group[T]) DiscardParked(key string) (int, error) {
	return g.order(order{key: key, discard: true})
}

func (g *Group[T]) order(o order) (int, error) {
	o.key = parkedKey(o.key)
	n := 0
	if g.parking != nil {
		for _, k := range g.parking.lanes {
			if here := k.shown.count(o.key); here > 0 {
				n += here
				k.orders.add(o)
				k.wake()
			}
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("topic %q: group %q: no event with the key %q is parked: %w", g.topic.config.Name, g.name, o.key, penstock.ErrNotFound)
	}
	return n, nil
}

// obey does what was ordered.
func (k *parkedLane[T]) obey() {
	if !k.orders.some.Load() {
		return
	}
	for _, o := range k.orders.take() {
		if !o.discard {
			k.machine.RetryParked(o.key)
			k.shown.change(o.key, func(e *shownEvent) { e.due = time.Time{} })
			continue
		}
		n := k.machine.DiscardParked(o.key, func(last error) error {
			if last == nil {
				return errDiscarded
			}
			return fmt.Errorf("%w; the last failure was: %v", errDiscarded, causeText(last))
		})
		k.group.parking.discarded.Add(uint64(n))
		k.shown.change(o.key, func(e *shownEvent) { e.due, e.dead = time.Time{}, true })
	}
}
