package stream

import (
	"iter"
	"slices"
	"sync"
	"unsafe"

	"github.com/penstock/penstock"
)

// Events are the events of a container, in the order of their publication.
// Their payloads lie one behind the other in memory without pointers, and
// metadata takes memory only where an event of the container has any: an event
// without costs its payload and 8 bytes. The zero Events holds none.
//
// Events do not change once they are made, copies share their memory, and they
// are safe for concurrent use.
//
// Invariants: starts begins with 0 and does not fall, and payload reaches as far
// as its last element; metas is nil or as long as starts.
type Events struct {
	payload []byte
	starts  []int // of each event, in payload
	metas   []penstock.Meta
}

// EventsOf returns the events, whose payloads it copies. What their metadata
// refers to is shared.
func EventsOf(events ...penstock.Envelope) Events {
	size := 0
	for i := range events {
		size += len(events[i].Value)
	}
	e := eventsOfSize(len(events), size)
	for i := range events {
		e.add(&events[i].Meta, events[i].Value)
	}
	return e
}

// alone is the starts of everything that holds one event. It is not changed.
var alone = []int{0}

// eventsOfSize has room for n events and so many bytes of payload.
func eventsOfSize(n, size int) (e Events) {
	if n > 1 {
		e.starts = make([]int, 0, n)
	}
	if size > 0 {
		e.payload = make([]byte, 0, size)
	}
	return e
}

// add appends an event while e is being made.
func (e *Events) add(m *penstock.Meta, payload []byte) {
	if len(e.starts) == 0 && cap(e.starts) == 0 {
		e.starts = alone
	} else {
		e.starts = append(e.starts, len(e.payload))
	}
	e.payload = append(e.payload, payload...)
	if m != nil {
		e.describe(len(e.starts)-1, max(cap(e.starts), 1), m)
	}
}

// describe gives event i, the last one so far of up to n, its metadata.
func (e *Events) describe(i, n int, m *penstock.Meta) {
	switch {
	case e.metas != nil:
		e.metas = append(e.metas, *m)
	case !m.IsBare():
		e.metas = append(make([]penstock.Meta, i, n), *m)
	}
}

// Len returns the number of events.
func (e *Events) Len() int { return len(e.starts) }

// Value returns the payload of event i, in [0, Len). It must not be changed.
func (e *Events) Value(i int) []byte {
	from, to := e.starts[i], len(e.payload)
	if i+1 < len(e.starts) {
		to = e.starts[i+1]
	}
	return e.payload[from:to:to]
}

// Meta returns the metadata of event i, the zero Meta when it has none.
func (e *Events) Meta(i int) penstock.Meta {
	if e.metas == nil {
		return penstock.Meta{}
	}
	return e.metas[i]
}

// At returns event i, in [0, Len). Its payload must not be changed.
func (e *Events) At(i int) penstock.Envelope {
	return penstock.Envelope{Meta: e.Meta(i), Value: e.Value(i)}
}

// All yields index and event in order. Payloads must not be changed.
func (e *Events) All() iter.Seq2[int, penstock.Envelope] {
	return func(yield func(int, penstock.Envelope) bool) {
		for i := range e.starts {
			if !yield(i, e.At(i)) {
				return
			}
		}
	}
}

// largest is the size of the largest payload, in bytes.
func (e *Events) largest() (n int) {
	from := 0
	for _, start := range e.starts {
		n, from = max(n, start-from), start
	}
	return max(n, len(e.payload)-from)
}

// bare reports whether event i has no metadata.
func (e *Events) bare(i int) bool { return e.metas == nil || e.metas[i].IsBare() }

// footprint is what the events take in memory, in bytes.
func (e *Events) footprint() int {
	n := len(e.payload) + len(e.starts)*int(unsafe.Sizeof(int(0)))
	for i := range e.metas {
		m := &e.metas[i]
		n += int(unsafe.Sizeof(*m)) + headerBytes(m.Header) +
			len(m.ID) + len(m.Key) + len(m.ContentType) + len(m.Schema) + len(m.Stream.Namespace) + len(m.Stream.Key)
		if o := m.Origin; o != nil {
			n += int(unsafe.Sizeof(*o)) + len(o.Topic) + len(o.Group) + len(o.Cause)
		}
	}
	return n
}

// packing is memory in which events are put together whose size is not known
// before the last one is encoded.
type packing struct {
	payload []byte
	starts  []int
	shape   []int // starts of the last container that had several events; it is not changed
}

var packings = sync.Pool{New: func() any { return new(packing) }}

func takePacking() *packing {
	p := packings.Get().(*packing)
	p.payload, p.starts = p.payload[:0], p.starts[:0]
	return p
}

// bytes puts values in that need no encoding.
func (p *packing) bytes(values [][]byte) {
	payload, starts := p.payload, p.starts
	for _, v := range values {
		starts = append(starts, len(payload))
		payload = append(payload, v...)
	}
	p.payload, p.starts = payload, starts
}

// leave gives the memory to the next one.
func (p *packing) leave() {
	if cap(p.payload) <= packingKept {
		packings.Put(p)
	}
}

// packingKept bounds, in bytes of payload, the memory that is kept for the next
// container.
const packingKept = 1 << 20

// take returns what was put together, in memory of its own. Containers whose
// events begin at the same places, one after the other, share those.
func (p *packing) take() Events {
	e := Events{payload: slices.Clone(p.payload), starts: alone}
	if len(p.starts) > 1 {
		if !slices.Equal(p.starts, p.shape) {
			p.shape = slices.Clone(p.starts)
		}
		e.starts = slices.Clip(p.shape)
	}
	return e
}
