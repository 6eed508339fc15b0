package stream

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/penstock/penstock"
)

// ErrAttempts: events were offered [Config.MaxAttempts] times and never
// settled. The error of the last attempt, where it is known, is matched too.
var ErrAttempts = errors.New("attempts are used up")

// attemptsKept bounds what an agent remembers of attempts, in ranges of events.
const attemptsKept = 4096

// tried are events of one stream that a subscription was offered n times and
// has not settled: those with a token in [first, end).
type tried struct {
	first, end penstock.Token
	n          int
	open       bool // the process ended during the last attempt
}

// triedKey names a subscription over its attachments and runs.
type triedKey struct {
	id          SubscriptionID
	incarnation uint64
}

func keyOf(rec *SubscriptionRecord) triedKey { return triedKey{rec.ID(), rec.Incarnation} }

// ledger is what an agent remembers of attempts, over rewinds, new handshakes
// and its own runs: an event that is offered again goes on counting where it
// was. What was settled, or passed over by a verdict, is forgotten. It belongs
// to the turn of the present run.
//
// Invariants: size is the number of ranges and at most attemptsKept; no list is
// empty; a list is ordered by token, and its ranges do not overlap.
type ledger struct {
	subs map[triedKey]*tries
	size int
}

// tries are the ranges of one subscription.
type tries struct {
	key  triedKey
	list []tried
}

// after is the token behind the event at t. No event has the last index.
func after(t penstock.Token) penstock.Token {
	if t.Index < math.MaxUint32 {
		t.Index++
	}
	return t
}

// between returns the ranges, [from, to) of the list, that overlap [first, end).
func (t *tries) between(first, end penstock.Token) (from, to int) {
	from, _ = slices.BinarySearchFunc(t.list, first, func(o tried, first penstock.Token) int {
		if o.end.Compare(first) <= 0 {
			return -1
		}
		return 1
	})
	for to = from; to < len(t.list) && t.list[to].first.Compare(end) < 0; to++ {
	}
	return from, to
}

// cut takes [first, end) out.
func (t *tries) cut(first, end penstock.Token) {
	from, to := t.between(first, end)
	if from == to {
		return
	}
	var left []tried
	if o := t.list[from]; o.first.Compare(first) < 0 {
		o.end = first
		left = append(left, o)
	}
	if o := t.list[to-1]; o.end.Compare(end) > 0 {
		o.first = end
		left = append(left, o)
	}
	t.list = slices.Replace(t.list, from, to, left...)
}

// note remembers x in place of what is known of its events. It reports false
// when there is no room for it; then nothing is known of them.
func (l *ledger) note(key triedKey, x tried, passed func(penstock.Token) bool) (*tries, bool) {
	t := l.subs[key]
	if t != nil {
		l.forget(t, x.first, x.end)
		t = l.subs[key]
	}
	if l.size+2 > attemptsKept { // a cut may make two of one
		l.sweep(passed)
		t = l.subs[key]
	}
	if l.size+2 > attemptsKept {
		return t, false
	}
	if t == nil {
		t = &tries{key: key}
		if l.subs == nil {
			l.subs = map[triedKey]*tries{}
		}
		l.subs[key] = t
	}
	from, _ := t.between(x.first, x.end)
	t.list = slices.Insert(t.list, from, x)
	l.size++
	return t, true
}

// forget takes events out, and reports whether something of the subscription is
// left.
func (l *ledger) forget(t *tries, first, end penstock.Token) bool {
	l.size -= len(t.list)
	t.cut(first, end)
	l.size += len(t.list)
	if len(t.list) == 0 {
		delete(l.subs, t.key)
		return false
	}
	return true
}

// drop forgets a subscription.
func (l *ledger) drop(key triedKey) {
	if t := l.subs[key]; t != nil {
		l.size -= len(t.list)
		delete(l.subs, key)
	}
}

// sweep forgets what cannot be offered again.
func (l *ledger) sweep(passed func(penstock.Token) bool) {
	for key, t := range l.subs {
		l.size -= len(t.list)
		t.list = slices.DeleteFunc(t.list, func(o tried) bool { return passed(o.first) && passed(o.end) })
		l.size += len(t.list)
		if len(t.list) == 0 {
			delete(l.subs, key)
		}
	}
}

// passed reports whether nobody can ask for the event at t any more.
func (r *run) passed(t penstock.Token) bool {
	return r.hasFloor && containerToken(t).Compare(r.floor) <= 0
}

// remember keeps the attempts of items that were offered and not settled. Without
// an attempt what is known of them stays as it is.
func (r *run) remember(d *delivery, items []Item) {
	if !d.made || d.sub.removed {
		return
	}
	for x := range ranges(items, d.containers) {
		if !r.note(d.sub, x) {
			r.log.Warn("too many events fail at once; attempts count anew when these are offered from the start", r.about(d.sub, "ranges", r.ledger.size)...)
			return
		}
	}
}

// ranges returns those of items, which are of a group of containers, that follow
// each other and have had as many attempts, unless the queue knows of all of these.
func ranges(items []Item, group []Container) iter.Seq[tried] {
	return func(yield func(tried) bool) {
		for from, to := 0, 0; from < len(items); from = to {
			it := &items[from]
			for to = from + 1; to < len(items) && items[to].Attempt == it.Attempt; to++ {
				before := &items[to-1]
				for len(group) > 0 && &group[0] != before.From {
					group = group[1:]
				}
				if !items[to].follows(before, group) {
					break
				}
			}
			if it.Attempt > it.From.Attempts && !yield(tried{first: it.Token, end: after(items[to-1].Token), n: it.Attempt}) {
				return
			}
		}
	}
}

// follows reports whether no event lies between the two, of a group from the
// container of the earlier one on.
func (it *Item) follows(before *Item, group []Container) bool {
	if it.From == before.From {
		return it.Index == before.Index+1
	}
	return it.Index == 0 && before.Index == before.From.Events.Len()-1 && len(group) > 1 && it.From == &group[1]
}

func (r *run) note(sub *subscription, x tried) (ok bool) {
	key := triedKey{}
	if sub.tries != nil {
		key = sub.tries.key
	} else {
		key = keyOf(&sub.rec)
	}
	sub.tries, ok = r.ledger.note(key, x, r.passed)
	return ok
}

// recall gives the events of a new group the attempts that they have had.
func (r *run) recall(d *delivery) {
	t := d.sub.tries
	j, to := t.between(containerToken(d.containers[0].Token), after(lastToken(d.containers)))
	if j == to {
		return
	}
	if d.whole > 0 { // else what it has was passed
		d.unpack()
	}
	for i := range d.items {
		it := &d.items[i]
		for j < len(t.list) && t.list[j].end.Compare(it.Token) <= 0 {
			j++
		}
		if j < len(t.list) && t.list[j].first.Compare(it.Token) <= 0 {
			it.Attempt = max(it.Attempt, t.list[j].n)
			d.suspect = d.suspect || t.list[j].open
		}
	}
}

// forgetUpTo is told that events of a group are settled, up to and including has.
func (r *run) forgetUpTo(d *delivery, has penstock.Token) {
	if d.sub.tries != nil && !r.ledger.forget(d.sub.tries, containerToken(d.containers[0].Token), after(has)) {
		d.sub.tries = nil
	}
}

// forgetTries is told that a group is settled.
func (r *run) forgetTries(d *delivery) {
	if len(d.containers) > 0 && !r.ledger.forget(d.sub.tries, containerToken(d.containers[0].Token), after(lastToken(d.containers))) {
		d.sub.tries = nil
	}
}

// rememberFailed is remember for what an answer has failed of the offer. What was
// not tried stays as it is known, also as one during which a process has ended.
func (r *run) rememberFailed(d *delivery, answer Answer, err error) {
	if err != nil {
		r.remember(d, d.items)
		return
	}
	var failed []Item
	for _, f := range answer.Failed {
		if f.Index >= 0 && f.Index < len(d.items) && !errors.Is(f.Err, ErrAway) {
			failed = append(failed, d.items[f.Index])
		}
	}
	r.remember(d, failed)
}

// usedUp asks the failure handler what becomes of the items that were offered as
// often as they may be; false when there are none. The others wait for it.
func (r *run) usedUp(d *delivery) bool {
	if d.whole > 0 {
		if !slices.ContainsFunc(d.containers, func(c Container) bool { return c.Attempts >= r.maxAttempts }) {
			return false
		}
		d.unpack()
	}
	var spent []Item
	for i := range d.items {
		if d.items[i].Attempt >= r.maxAttempts {
			spent = append(spent, d.items[i])
		}
	}
	if len(spent) == 0 {
		return false
	}
	err := d.err
	if d.err = fmt.Errorf("%d of at most %d: %w", spent[0].Attempt, r.maxAttempts, ErrAttempts); err != nil {
		d.err = fmt.Errorf("%w: %w", d.err, err)
	}
	r.deliveryFailed(d, spent)
	return true
}

// passedOver goes on behind the items that a verdict has given up: with those
// of the group that were not given up, if there are any.
func (r *run) passedOver(d *delivery) {
	if len(d.failed) == len(d.items) {
		r.settled(d)
		return
	}
	next := 0
	d.items = slices.DeleteFunc(slices.Clone(d.items), func(it Item) bool {
		gone := next < len(d.failed) && d.failed[next].Token == it.Token
		if gone {
			next++
		}
		return gone
	})
	r.firstTry(d)
}
