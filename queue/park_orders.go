package queue

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

var errDiscarded = errors.New("discarded by DiscardParked")

// orders are what others want done with parked events. The owner of the
// partition does it, and an order stands until all of its events are settled,
// or, of a retry, were delivered again: a run that ends before that, or a
// process, leaves it to the next one. It is for the events that were parked when
// it was given, so it never hits what is parked later.
//
// Invariants: there are at most two orders for each parked key, and an order
// lists no event that is over for longer than the retry log takes to say so.
type orders struct {
	some atomic.Bool // some are to be obeyed; read without the lock
	list []order     // guarded by shownParking.mu
}

type order struct {
	key     string
	discard bool
	events  []ordered // their offsets rise
	obeyed  bool      // by the run that lasts
}

// ordered is an event that an order is for.
type ordered struct {
	offset  penstock.Offset
	attempt int    // deliveries made when it was given
	over    uint64 // not 0: the entry that says that the order is done with it
}

// covers reports whether all events of x are in o.
func (o *order) covers(x *order) bool {
	if o.key != x.key || o.discard != x.discard {
		return false
	}
	for _, e := range x.events {
		i, ok := o.find(e.offset)
		if !ok || o.events[i].over != 0 || !o.discard && o.events[i].attempt != e.attempt {
			return false
		}
	}
	return true
}

func (o *order) find(at penstock.Offset) (int, bool) {
	return slices.BinarySearchFunc(o.events, at, func(e ordered, o penstock.Offset) int { return cmp.Compare(e.offset, o) })
}

// join adds the events of x, which is for the same key.
func (o *order) join(x *order) {
	for _, e := range x.events {
		if i, ok := o.find(e.offset); ok {
			o.events[i] = e
		} else {
			o.events = slices.Insert(o.events, i, e)
		}
	}
	o.obeyed = false
}

// draft returns an order for the events of a key that are parked, none when
// there are none, and the list of orders with it. The list is nil when nothing
// is new in it.
func (s *shownParking) draft(key string, discard bool) (x order, list []order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x = order{key: key, discard: discard}
	for o, e := range s.events {
		if e.key == key {
			x.events = append(x.events, ordered{offset: o, attempt: e.attempt})
		}
	}
	slices.SortFunc(x.events, func(a, b ordered) int { return cmp.Compare(a.offset, b.offset) })
	if len(x.events) == 0 {
		return x, nil
	}
	at := -1
	for i := range s.orders.list {
		o := &s.orders.list[i]
		if o.covers(&x) {
			return x, nil
		}
		if o.key == key && o.discard == discard {
			at = i
		}
		c := *o
		c.events = slices.Clone(o.events)
		list = append(list, c)
	}
	if at < 0 {
		return x, append(list, order{key: key, discard: discard, events: slices.Clone(x.events)})
	}
	list[at].join(&x)
	return x, list
}

// give puts an order in force. Events of it that are gone meanwhile are over.
func (s *shownParking) give(x order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range x.events {
		if _, ok := s.events[x.events[i].offset]; !ok {
			x.events[i].over = max(1, s.seq)
		}
	}
	i := slices.IndexFunc(s.orders.list, func(o order) bool { return o.key == x.key && o.discard == x.discard })
	switch {
	case i < 0:
		s.orders.list = append(s.orders.list, x)
	case s.orders.list[i].covers(&x):
		s.orders.list[i].obeyed = false
	default:
		s.orders.list[i].join(&x)
	}
	s.orders.some.Store(true)
}

// takeOrders returns the orders that are to be obeyed, which then are.
func (s *shownParking) takeOrders() (list []order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.orders.list {
		if o := &s.orders.list[i]; !o.obeyed {
			o.obeyed = true
			if slices.ContainsFunc(o.events, func(e ordered) bool { return e.over == 0 }) {
				list = append(list, order{key: o.key, discard: o.discard})
			}
		}
	}
	s.orders.some.Store(false)
	return list
}

// overBy notes which events of orders an entry is the end of. The caller holds
// mu.
func (s *shownParking) overBy(e *settle.Entry) {
	for i := range s.orders.list {
		o := &s.orders.list[i]
		if o.key != e.Key {
			continue
		}
		at, ok := o.find(e.Offset)
		if ok && o.events[at].over == 0 && (e.Gone || !o.discard && o.obeyed && e.Attempt != o.events[at].attempt) {
			o.events[at].over = e.Seq
		}
	}
}

// purge notes that the retry log holds the entries up to seq, and forgets the
// orders that are over by them. It reports whether there were orders and are none
// any more.
func (s *shownParking) purge(seq uint64) (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = seq
	if len(s.orders.list) == 0 {
		return false
	}
	for i := range s.orders.list {
		o := &s.orders.list[i]
		o.events = slices.DeleteFunc(o.events, func(e ordered) bool { return e.over != 0 && e.over <= seq })
	}
	s.orders.list = slices.DeleteFunc(s.orders.list, func(o order) bool { return len(o.events) == 0 })
	return len(s.orders.list) == 0
}

// RetryParked makes the parked events of a key come again at once, instead of
// after their backoff: one at a time, in their order. The key "" means all
// events without a key. It returns how many events are parked, and an error
// that matches [penstock.ErrNotFound] when none is, [penstock.ErrClosed] after
// Close. It does not wait for the consumer, which delivers them when it is free;
// a group that is not being run does when its next Run begins, also when that is
// one of a later process on the same disk: there the order is stored, and
// synced, before the call returns. When that fails, for example on a full disk
// ([penstock.ErrDiskFull]), the order is not given, though after a crash it may
// be there.
func (g *Group[T]) RetryParked(key string) (int, error) { return g.order(key, false) }

// DiscardParked gives the parked events of a key up: they go to the group's
// [DeadLetter] at once, in their order, without another attempt; without
// DeadLetter they are dropped, counted and logged. The key "" means all events
// without a key. An event that a handler has at the moment keeps that attempt.
// It returns how many events are parked, does not wait for the consumer, is
// stored, and fails, as [Group.RetryParked] says.
func (g *Group[T]) DiscardParked(key string) (int, error) { return g.order(key, true) }

func (g *Group[T]) order(key string, discard bool) (int, error) {
	key = parkedKey(key)
	n := 0
	if g.parking != nil {
		for _, k := range g.parking.lanes {
			here, err := k.order(key, discard)
			n += here
			if err != nil {
				return n, fmt.Errorf("topic %q: group %q: partition %d: %w", g.topic.config.Name, g.name, k.part.index, err)
			}
			if here > 0 {
				k.wake()
			}
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("topic %q: group %q: no event with the key %q is parked: %w", g.topic.config.Name, g.name, key, penstock.ErrNotFound)
	}
	return n, nil
}

// order gives an order to the owner of the partition, stored first where the
// topic is. It returns for how many events it is.
func (k *parkedLane[T]) order(key string, discard bool) (int, error) {
	k.ordering.Lock()
	defer k.ordering.Unlock()
	if k.closed {
		return 0, penstock.ErrClosed
	}
	x, list := k.shown.draft(key, discard)
	if len(x.events) == 0 {
		return 0, nil
	}
	if k.stored != nil && list != nil {
		if err := k.stored.write(list); err != nil {
			return 0, err
		}
	}
	k.shown.give(x)
	return len(x.events), nil
}

// standing takes up the orders that a run begins with: it shows the entries of
// the retry log as they change them. The first one reads what an earlier process
// has stored; from then on what was given counts, and a file that says more,
// because its write has failed, is corrected. What is stored names only events
// that are parked afterwards, so that no order hits what is parked in their place
// later.
func (k *parkedLane[T]) standing(entries []parkedEntry) error {
	k.ordering.Lock()
	defer k.ordering.Unlock()
	list := k.shown.given()
	stored := k.stored != nil && !k.closed
	if r, ok := k.log.(*fileRetry[T]); ok && r.log == nil {
		stored = false // nothing was ever parked
	}
	if stored && !k.known {
		var err error
		if list, err = k.stored.read(); err != nil {
			return err
		}
	}
	k.known = true
	list = apply(list, entries)
	if stored && (eventsOf(list) != k.stored.events || k.stored.doubt) {
		if err := k.stored.write(list); err != nil {
			return err
		}
	}
	k.shown.reset(entries, list)
	return nil
}

// apply changes the entries as the orders say, and returns what of the orders
// stands.
func apply(list []order, entries []parkedEntry) (stand []order) {
	for _, o := range list {
		var events []ordered
		for _, x := range o.events {
			i, ok := slices.BinarySearchFunc(entries, x.offset, func(e parkedEntry, at penstock.Offset) int { return cmp.Compare(e.Offset, at) })
			if !ok || entries[i].Key != o.key || !o.discard && entries[i].Attempt != x.attempt {
				continue
			}
			e := &entries[i].Entry
			if e.Due = (time.Time{}); o.discard && !e.Dead {
				e.Dead, e.Cause = true, discardedCause(e.Cause)
			}
			x.over = 0
			events = append(events, x)
		}
		if len(events) > 0 {
			stand = append(stand, order{key: o.key, discard: o.discard, events: events, obeyed: true})
		}
	}
	return stand
}

// given returns a copy of the orders.
func (s *shownParking) given() []order {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.orders.list)
}

// fulfilled forgets the orders that the retry log says are done with. The owner
// does not wait for an order that is being stored; the next look does it then.
func (k *parkedLane[T]) fulfilled() {
	if !k.shown.purge(k.seq) || k.stored == nil || !k.ordering.TryLock() {
		return
	}
	defer k.ordering.Unlock()
	if k.closed || len(k.shown.given()) > 0 {
		return
	}
	err := k.log.sync() // what is told by it must not be lost when the orders are not there any more
	if err == nil {
		err = k.stored.write(nil)
	}
	if err != nil {
		k.group.topic.logger.Warn("orders for parked events that are done with stay on disk until the next run",
			slog.String("group", k.group.name), slog.Int("partition", k.part.index), slog.Any("err", err))
	}
}

func discardedCause(last error) error {
	if last == nil {
		return errDiscarded
	}
	return fmt.Errorf("%w; the last failure was: %v", errDiscarded, causeText(last))
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
		k.machine.DiscardParked(o.key, discardedCause)
		k.shown.change(o.key, func(e *shownEvent) { e.due, e.dead = time.Time{}, true })
	}
}
