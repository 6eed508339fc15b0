package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

var errDiscarded = errors.New("discarded by DiscardParked")

// orders are what others want done with parked keys; the owner of the partition
// does it. An order is there only while its key is: it must not hit an event of
// that key that is parked later. One that waits already is not taken twice, so
// there are at most two for each parked key.
type orders struct {
	some atomic.Bool // read without the lock
	list []order     // guarded by shownParking.mu
}

type order struct {
	key     string
	discard bool
}

// order notes an order and returns how many events it is for; none when the
// key is not parked.
func (s *shownParking) order(x order) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.count(x.key)
	if n > 0 && !slices.Contains(s.orders.list, x) {
		s.orders.list = append(s.orders.list, x)
		s.orders.some.Store(true)
	}
	return n
}

// takeOrders returns the orders, which are then not there any more.
func (s *shownParking) takeOrders() []order {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.orders.list
	s.orders.list = nil
	s.orders.some.Store(false)
	return list
}

// dropOrders forgets those whose key is not parked any more. The caller holds
// mu.
func (s *shownParking) dropOrders() {
	if len(s.orders.list) == 0 {
		return
	}
	s.orders.list = slices.DeleteFunc(s.orders.list, func(x order) bool { return s.count(x.key) == 0 })
	s.orders.some.Store(len(s.orders.list) > 0)
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
			if here := k.shown.order(o); here > 0 {
				n += here
				k.wake()
			}
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("topic %q: group %q: no event with the key %q is parked: %w", g.topic.config.Name, g.name, o.key, penstock.ErrNotFound)
	}
	return n, nil
}

// countDiscarded counts the events of a job that DiscardParked had given up, now
// that they were taken or dropped. By the text of the cause: that is what the
// retry log keeps of it.
func (j *job[T]) countDiscarded() {
	if j.span.Parked && j.span.DeadLetter && strings.HasPrefix(causeText(j.span.Cause), errDiscarded.Error()) {
		j.lane.group.parking.discarded.Add(uint64(len(j.values)))
	}
}

// obey does what was ordered.
func (k *parkedLane[T]) obey() {
	if !k.shown.orders.some.Load() {
		return
	}
	for _, o := range k.shown.takeOrders() {
		if !o.discard {
			k.machine.RetryParked(o.key)
			k.shown.change(o.key, func(e *shownEvent) { e.due = time.Time{} })
			continue
		}
		k.machine.DiscardParked(o.key, func(last error) error {
			if last == nil {
				return errDiscarded
			}
			return fmt.Errorf("%w; the last failure was: %v", errDiscarded, causeText(last))
		})
		k.shown.change(o.key, func(e *shownEvent) { e.due, e.dead = time.Time{}, true })
	}
}
