package stream

import (
	"cmp"
	"context"
	"slices"

	"github.com/penstock/penstock"
)

const (
	// entriesMax bounds the entries of a subscription in an [AttemptStore]. Each
	// process adds what it ended in, so a handful is enough.
	entriesMax = 16
	// offeredMax bounds those that one attempt is stored in.
	offeredMax = 8
	// loadedMax bounds those that are held of what a store returns: an end of the
	// process within a change leaves what was held before beside what was new, and
	// each range of an attempt may lie within one of these.
	loadedMax = entriesMax + 2*offeredMax
)

// entries are what the store holds of one subscription, as the agent knows it:
// the events of the attempt under way, and those during which a process ended,
// which stay until they are settled or the checkpoint has passed them. An
// earlier event that is delivered again does not take their place. They belong
// to the worker that makes an attempt for the subscription, and otherwise to the
// turn of the run.
//
// Invariants: held is ordered by token, its ranges do not overlap, and there are
// at most entriesMax, or loadedMax until the first change.
type entries struct {
	held   []tried
	next   tries   // what is to be held; its memory is used again
	unsure []tried // writes that have failed: what has their names in the store is not known
}

// begin plans an attempt at events, which are ordered. What is known of an
// earlier one goes with it, unless a process ended during that.
// It returns the ranges that it is stored in.
func (e *entries) begin(events []tried) (put []tried) {
	first := events[0].first
	e.next.list = append(e.next.list[:0], e.held...)
	e.next.list = slices.DeleteFunc(e.next.list, func(o tried) bool { return !o.open && o.end.Compare(first) <= 0 })
	return e.replace(events, events, entriesMax)
}

// settle plans what an answer has left of the attempt that is stored in put. What
// is held of events between these stays: they were not offered.
func (e *entries) settle(put, left []tried) {
	e.next.list = append(e.next.list[:0], e.held...)
	e.replace(put, left, entriesMax)
}

// before returns what was held of events before the attempt that was written last.
func (e *entries) before(x tried) []tried {
	from, to := e.next.between(x.first, x.end)
	out := slices.Clone(e.next.list[from:to])
	for i, o := range out {
		if o.first.Compare(x.first) < 0 {
			out[i].first = x.first
		}
		if o.end.Compare(x.end) > 0 {
			out[i].end = x.end
		}
	}
	return out
}

// resume plans what was held before the attempt at events, but for those up to and
// including has.
func (e *entries) resume(events []tried, has penstock.Token) {
	for _, x := range events {
		if x.end.Compare(has) > 0 {
			x.end = after(has)
		}
		if x.first.Compare(x.end) < 0 {
			e.next.cut(x.first, x.end)
		}
	}
}

// replace takes out ranges, puts others in, and returns what it has put in: all
// of it is in order, and at most so many. There is always something else that makes
// room.
func (e *entries) replace(out, in []tried, most int) (put []tried) {
	t := &e.next
	for _, x := range out {
		t.cut(x.first, x.end)
	}
	put = t.fewer(in)
	for _, x := range put {
		t.cut(x.first, x.end)
		at, _ := t.between(x.first, x.end)
		t.list = slices.Insert(t.list, at, x)
	}
	for len(t.list) > most {
		at := t.least(put)
		t.list = slices.Delete(t.list, at, at+1)
	}
	return put
}

// fewer makes few ranges of too many: one between any two held ones during which
// a process ended, or one of all when those are too many, too.
func (t *tries) fewer(events []tried) (few []tried) {
	if len(events) <= offeredMax {
		return events
	}
	for _, x := range events {
		if n := len(few); n > 0 && !t.openIn(few[n-1].end, x.first) {
			few[n-1] = few[n-1].with(x)
		} else {
			few = append(few, x)
		}
	}
	if len(few) > offeredMax {
		for _, x := range few[1:] {
			few[0] = few[0].with(x)
		}
		few = few[:1]
	}
	return few
}

// openIn reports whether a process has ended during an attempt at events in
// [first, end).
func (t *tries) openIn(first, end penstock.Token) bool {
	from, to := t.between(first, end)
	return slices.ContainsFunc(t.list[from:to], func(o tried) bool { return o.open })
}

// with is one range of two, and of what lies between.
func (o tried) with(x tried) tried {
	return tried{first: o.first, end: x.end, n: max(o.n, x.n), open: o.open || x.open}
}

// least returns the place of the range that says the least and is none of put:
// answered before unanswered, few attempts before many, early before late.
func (t *tries) least(put []tried) int {
	at := -1
	for i, o := range t.list {
		if slices.Contains(put, o) {
			continue
		}
		if at < 0 || !o.open && t.list[at].open || o.open == t.list[at].open && o.n < t.list[at].n {
			at = i
		}
	}
	return at
}

// write stores what was planned: first what nothing takes the place of is removed,
// which makes room; then what is new is written before what is old is removed, and
// the later of two parts before the earlier, which has the name of the whole. So an
// end of the process in between forgets nothing. Then next is what was held before.
//
// A write that fails is made again with the next change.
func (e *entries) write(ctx context.Context, store func(context.Context, tried) error) error {
	var failed error
	unsure := e.unsure
	e.unsure = nil
	put := func(x tried) {
		if err := store(ctx, x); err != nil {
			failed = err
			e.doubt(x)
		}
	}
	remove := func(list []tried, replaced bool) {
		for _, o := range list {
			if from, to := e.next.between(o.first, o.end); (from < to) == replaced && !named(e.next.list, o) {
				put(tried{first: o.first, end: o.end})
			}
		}
	}
	remove(e.held, false)
	for _, x := range slices.Backward(e.next.list) {
		if !slices.Contains(e.held, x) || named(unsure, x) {
			put(x)
		}
	}
	remove(e.held, true)
	for _, o := range unsure {
		if !named(e.next.list, o) && !named(e.held, o) {
			put(tried{first: o.first, end: o.end})
		}
	}
	e.held, e.next.list = e.next.list, e.held
	return failed
}

// doubt remembers a write that has failed: the last ones, and not more than a store
// may have of a subscription.
func (e *entries) doubt(x tried) {
	if !named(e.unsure, x) {
		e.unsure = append(e.unsure, x)
	}
	if n := len(e.unsure) - loadedMax; n > 0 {
		e.unsure = e.unsure[n:]
	}
}

// named reports whether a list has an entry with the name of x.
func named(list []tried, x tried) bool {
	return slices.ContainsFunc(list, func(o tried) bool { return o.first == x.first })
}

// clear plans that nothing is held.
func (e *entries) clear() { e.next.list = e.next.list[:0] }

// empty reports whether the store has nothing, as far as is known.
func (e *entries) empty() bool { return len(e.held) == 0 && len(e.unsure) == 0 }

// loaded plans what is held of entries that a store has returned, which may
// overlap when a process ended while it wrote: the higher number counts.
func (e *entries) loaded(list []tried) {
	e.held, e.next.list = slices.Clone(list), nil
	byNumber := slices.SortedStableFunc(slices.Values(list), func(a, b tried) int { return cmp.Compare(a.n, b.n) })
	for _, x := range byNumber {
		one := []tried{x}
		e.replace(one, one, loadedMax)
	}
}

// storedAttempts returns what the store has of events above the checkpoint, in
// order, and removes the rest. It runs on a worker.
func (r *run) storedAttempts(ctx context.Context, mark penstock.Token, marked bool) (map[triedKey]*entries, error) {
	all, err := r.attempts.LoadAttempts(ctx, r.provider, r.queue)
	if err != nil {
		return nil, err
	}
	kept := map[triedKey][]tried{}
	for _, a := range all {
		key := triedKey{a.Subscription, a.Incarnation}
		if a.N > 0 && a.First.Compare(a.End) < 0 && !(marked && containerToken(a.End).Compare(containerToken(mark)) <= 0) {
			kept[key] = append(kept[key], tried{a.First, a.End, a.N, a.Open})
		} else if err := r.storeTried(ctx, key, tried{first: a.First, end: a.End}); err != nil {
			r.log.Warn("attempt not removed", r.fields("err", err)...)
		}
	}
	out := make(map[triedKey]*entries, len(kept))
	for key, list := range kept {
		e := &entries{}
		e.loaded(list)
		if err := e.write(ctx, func(ctx context.Context, x tried) error { return r.storeTried(ctx, key, x) }); err != nil {
			r.log.Warn("attempts not put in order", r.fields("err", err)...)
		}
		out[key] = e
	}
	return out, nil
}

// loadAttempts takes over what was stored, unless the agent knows better. It has
// the turn.
func (r *run) loadAttempts(all map[triedKey]*entries) {
	r.stored = all
	for key, e := range all {
		for _, x := range e.held {
			if t := r.ledger.subs[key]; t != nil {
				if from, to := t.between(x.first, x.end); from < to {
					continue
				}
			}
			if _, ok := r.ledger.note(key, x, r.passed); !ok {
				r.log.Warn("more stored attempts than are remembered; some events count anew", r.fields("ranges", r.ledger.size)...)
				return
			}
		}
	}
}

// storedOf gives what the store holds of a subscription to its attachment; nil
// while the entries of an earlier one are taken out.
func (r *run) storedOf(rec *SubscriptionRecord) *entries {
	key := keyOf(rec)
	if r.dropped.has(key) {
		return nil
	}
	e := r.stored[key]
	delete(r.stored, key)
	if e == nil {
		e = &entries{}
	}
	return e
}

// keepStored keeps it for the next attachment, unless an attempt is under way:
// then it is forgotten here, and stays in the store.
func (r *run) keepStored(sub *subscription) {
	if e := sub.stored; e != nil && !e.empty() && (sub.inFlight == nil || !sub.inFlight.trying) {
		if r.stored == nil {
			r.stored = map[triedKey]*entries{}
		}
		r.stored[keyOf(&sub.rec)] = e
	}
}

func (r *run) storeTried(ctx context.Context, key triedKey, x tried) error {
	return r.attempts.StoreAttempt(ctx, r.provider, r.queue, Attempt{
		Subscription: key.id, Incarnation: key.incarnation, First: x.first, End: x.end, N: x.n, Open: x.open,
	})
}
