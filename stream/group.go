package stream

import (
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// scan returns how many containers a delivery reads at once: a group, or, when
// a filter may pass over most of them, more.
func (r *run) scan() int {
	if r.filter == nil {
		return r.groupSize
	}
	return max(r.groupSize, filterScan)
}

// nextGroup takes the next group out of what was read with the last one, and
// offers it. What was before it has been processed: progress follows.
func (r *run) nextGroup(d *delivery) {
	if n := len(d.containers); n > 0 {
		d.safe, d.hasSafe = d.containers[n-1].Token, true
	}
	n := groupLen(d.rest, r.groupSize)
	d.containers, d.rest = d.rest[:n:n], d.rest[n:]
	d.items, d.whole, d.tried, d.suspect = d.items[:0], events(d.containers), false, false
	if n > 0 && d.sub.partly {
		d.passHad()
	}
	switch {
	case d.events() == 0: // everything was filtered, or is settled
		r.settled(d)
	case r.draining: // nothing begins any more; progress stays before it
		r.keep(d)
	default:
		if d.sub.tries != nil {
			r.recall(d)
		}
		r.firstTry(d)
	}
}

// passHad takes out what the subscription's consumer has said that it has of the
// container that it goes on in.
func (d *delivery) passHad() {
	c := containerToken(d.sub.had)
	if d.containers[0].Token.Compare(c) > 0 {
		d.sub.partly = false
		return
	}
	if d.whole > 0 {
		d.unpack()
	}
	d.items = slices.DeleteFunc(d.items, func(it Item) bool { return it.Token.Compare(d.sub.had) <= 0 })
}

// groupLen returns how many of the containers make the next group: at most
// limit, and the mark of an end only by itself, so that a failure before it is
// not overtaken.
func groupLen(cs []Container, limit int) int {
	n := min(len(cs), limit)
	for i := range cs[:n] {
		if _, end := cs[i].End(); end {
			return max(i, 1)
		}
	}
	return n
}

// upTo returns how many of the items are not behind a token.
func (d *delivery) upTo(t penstock.Token) int {
	n := 0
	for n < len(d.items) && d.items[n].Token.Compare(t) <= 0 {
		n++
	}
	return n
}

// events returns how many events are not settled yet.
func (d *delivery) events() int {
	if d.whole > 0 {
		return d.whole
	}
	return len(d.items)
}

// since returns when the queue took the first of them in. A worker may be with the
// delivery, which raises attempts: nothing else of an item is looked at here.
func (d *delivery) since() time.Time {
	if d.whole == 0 {
		return d.items[0].From.Time
	}
	return d.containers[0].Time
}

// first returns the token of the first container that is not over.
func (d *delivery) first() penstock.Token {
	if len(d.containers) > 0 {
		return d.containers[0].Token
	}
	return d.rest[0].Token // the filter has them
}

// last returns the token of the last of them.
func (d *delivery) last() penstock.Token {
	if d.whole == 0 {
		return d.items[len(d.items)-1].Token
	}
	return lastToken(d.containers)
}

// lastToken returns the token of the last event.
func lastToken(cs []Container) penstock.Token {
	c := &cs[len(cs)-1]
	t := c.Token
	t.Index = uint32(c.Events.Len() - 1)
	return t
}

// wholesale is a consumer of this package, which needs no item of each event of
// containers that it is given as they are.
type wholesale interface{ takesContainers() }

// pack makes ready what a consumer is offered. It runs on a worker: while it and
// the consumer do, the turn looks at no item of a delivery that is whole.
func (d *delivery) pack(consumer Consumer) {
	d.made = true
	if _, ok := consumer.(wholesale); ok && d.whole > 0 {
		d.offer.whole, d.offer.events = d.containers, d.whole
		d.tried = true
		return
	}
	if d.whole > 0 {
		d.offer.Items = itemsOf(d.items, d.containers, 0)
	}
	for i := range d.offer.Items {
		d.offer.Items[i].Attempt++
	}
}

// unmake is for an attempt that was made ready and not made.
func (d *delivery) unmake() {
	d.made, d.tried = false, false
	for i := range d.offer.Items {
		d.offer.Items[i].Attempt--
	}
}

// accept takes over what the attempt that has ended made of the items. They are
// made now unless nothing is left to do with them.
func (d *delivery) accept(err error) {
	switch {
	case d.whole == 0:
	case d.offer.Items != nil:
		d.items, d.whole = d.offer.Items, 0
	case err != nil || len(d.answer.Failed) > 0 || d.answer.Rewind.Kind != PositionNone || !d.current():
		d.unpack()
	}
}

// unpack makes the items of a delivery that is whole. Attempt counts the
// attempts made, from what the queue knows of earlier ones; the worker that
// makes one raises it.
func (d *delivery) unpack() {
	tried := 0
	if d.tried {
		tried = 1
	}
	d.items, d.whole = itemsOf(d.items, d.containers, tried), 0
}

// itemsOf makes an item of each event, in the memory of buf if it is enough.
func itemsOf(buf []Item, cs []Container, tried int) []Item {
	items := slices.Grow(buf[:0], events(cs))
	for i := range cs {
		c := &cs[i]
		for j := range c.Events.Len() {
			t := c.Token
			t.Index = uint32(j)
			items = append(items, Item{Token: t, Attempt: c.Attempts + tried, From: c, Index: j})
		}
	}
	return items
}

// unpackAgain makes items of all events anew, settled ones too: the consumer has
// been asked anew since. Those that were not settled keep their attempts.
func (d *delivery) unpackAgain() {
	if d.whole > 0 {
		return // nothing was settled
	}
	before := slices.Clone(d.items)
	d.items = itemsOf(d.items, d.containers, 0)
	for i, j := 0, 0; i < len(d.items) && j < len(before); i++ {
		if d.items[i].Token == before[j].Token {
			d.items[i].Attempt = before[j].Attempt
			j++
		}
	}
}
