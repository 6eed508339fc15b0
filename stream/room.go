package stream

import (
	"slices"

	"github.com/penstock/penstock"
)

// room is what a batch for a handler is made in. A worker has one and uses it
// for call after call; what a handler that panicked had is left to it, because
// what it started may still look.
//
// Invariants: between two calls values holds zero values only, and about no
// metadata.
type room struct {
	values   any   // *[]T of the last handler's T
	index    []int // in Delivery.Items, of each decoded event
	about    penstock.Delivery
	tokens   []penstock.Token
	runs     []penstock.TokenRun
	attempts []int
}

// roomKept bounds, in events, the memory that a room keeps for the next call.
const roomKept = 4096

// slots returns n zero values in the room's memory.
func slots[T any](m *room, n int) []T {
	kept, ok := m.values.(*[]T)
	if !ok {
		kept = new([]T)
		m.values = kept
	}
	if cap(*kept) < n {
		*kept = make([]T, n)
	}
	return (*kept)[:n]
}

// leave gives up what the values and the metadata refer to.
func leave[T any](m *room, values []T) {
	clear(values)
	m.about.Metas = nil
	if len(values) > roomKept {
		m.values, m.index, m.tokens, m.runs, m.attempts, m.about.Times = nil, nil, nil, nil, nil, nil
	}
}

// describe tells a batch what is known of the items at the indexes of the room.
// A container in which no event has metadata costs a time and nothing more.
func (m *room) describe(provider string, d *Delivery) *penstock.Delivery {
	index, about := m.index, &m.about
	n := len(index)
	m.tokens, m.attempts = slices.Grow(m.tokens[:0], n)[:n], slices.Grow(m.attempts[:0], n)[:n]
	about.Topic, about.Partition, about.Stream = provider, d.Queue.Number, d.Subscription.Stream.StreamID
	about.First = penstock.Offset(d.Items[index[0]].Token.Lo)
	about.Tokens, about.Runs, about.Attempts, about.Times, about.Metas = m.tokens, nil, m.attempts, about.Times[:0], nil
	for k, i := range index {
		it := &d.Items[i]
		m.tokens[k], m.attempts[k] = it.Token, it.Attempt
		if about.Metas == nil && (len(it.From.Header) > 0 || !it.From.Events.bare(it.Index)) {
			about.Metas = make([]penstock.Meta, n)
		}
	}
	if about.Metas != nil {
		for k, i := range index {
			about.Metas[k] = d.Items[i].meta()
		}
		return about
	}
	var from *Container
	for _, i := range index {
		c := d.Items[i].From
		switch {
		case c == from:
			about.Times[len(about.Times)-1].N++
		case c.Time.IsZero():
			return about // times are a prefix: what follows has none that could be told
		default:
			about.Times = append(about.Times, penstock.TimeRun{N: 1, UnixNano: c.Time.UnixNano()})
			from = c
		}
	}
	return about
}

// describeWhole tells a batch what is known of the events of whole containers,
// of each container once.
func (m *room) describeWhole(provider string, d *Delivery) *penstock.Delivery {
	cs, about := d.whole, &m.about
	about.Topic, about.Partition, about.Stream = provider, d.Queue.Number, d.Subscription.Stream.StreamID
	about.First, about.Attempt = penstock.Offset(cs[0].Token.Lo), cs[0].Attempts+1
	about.Tokens, about.Attempts, about.Times, about.Metas = nil, nil, about.Times[:0], nil
	m.runs = m.runs[:0]
	end, timed, described, even := 0, true, false, true
	for i := range cs {
		c := &cs[i]
		n := c.Events.Len()
		end += n
		m.runs = append(m.runs, penstock.TokenRun{End: end, First: containerToken(c.Token)})
		if timed = timed && !c.Time.IsZero(); timed { // times are a prefix
			about.Times = append(about.Times, penstock.TimeRun{N: n, UnixNano: c.Time.UnixNano()})
		}
		described = described || len(c.Header) > 0 || c.Events.metas != nil
		even = even && c.Attempts+1 == about.Attempt
	}
	about.Runs = m.runs
	if !even {
		about.Attempts = slices.Grow(m.attempts[:0], end)
		for i := range cs {
			for range cs[i].Events.Len() {
				about.Attempts = append(about.Attempts, cs[i].Attempts+1)
			}
		}
		m.attempts = about.Attempts
	}
	if described {
		about.Times, about.Metas = about.Times[:0], make([]penstock.Meta, 0, end)
		for i := range cs {
			for j := range cs[i].Events.Len() {
				about.Metas = append(about.Metas, cs[i].meta(j))
			}
		}
	}
	return about
}
