package stage

import (
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/penstock/penstock/demand"
)

// maxRing bounds the batch headers that one edge holds. Events are bounded by
// demand; this bounds how finely a producer may chop them.
const maxRing = 64

// A slab is one array of events, filled by one callback. All references to a
// slab (the producer's pending piece, the packets on its edges) are counted by
// the stage in whose domain it is: the one that filled it, or that had it
// forwarded. Only that stage's goroutine touches refs.
type slab[T any] struct {
	buf   []T
	refs  int
	dirty bool // holds events that no consumer has cleared
}

// A packet is one delivery: the events [from, to) of a slab. whole says that
// no other packet or piece refers to the slab, so that it may be forwarded.
type packet[T any] struct {
	slab     *slab[T]
	from, to int
	whole    bool
}

// An edge is one subscription: a single-producer, single-consumer ring of
// packets forward, and cumulative demand backward. Demand is a level,
// asked - sent, so there are no demand messages to lose or to count twice.
//
// There is no second ring for empty slabs: a slab stays in its slot after the
// consumer has moved on, and the producer takes it back from there. A slab
// that a gate forwards is replaced in its slot by one of the gate's own, so
// both sides keep as many as they had (ADR 0023).
//
// The end of an edge does not need a slot: ended is stored after the last
// packet, and counts once the ring is empty.
//
// Invariants: reclaimed <= head <= tail <= head + len(ring);
// 0 <= sent <= asked; window.Open is in [0, max].
type edge[T any] struct {
	ring     []packet[T] // length is a power of two
	mode     Mode
	clears   bool                    // consumed events are cleared, so that they pin nothing
	swap     func(*slab[T]) *slab[T] // ends the consumer's hold on a forwarded slab, returns an empty one
	producer *doorbell
	consumer *doorbell

	_ [64]byte
	producerHalf
	_ [64]byte
	consumerHalf
	_ [64]byte
}

// producerHalf is written by the producer's goroutine only.
type producerHalf struct {
	tail      atomic.Uint64 // packets published
	sent      atomic.Int64  // events published
	ended     atomic.Bool   // no packet will follow; set after endErr
	endErr    error         // nil: a normal end
	reclaimed uint64        // packets whose slab went back to the producer
	headSeen  uint64        // head as last loaded
	abandoned bool          // the consumer left, and the producer has taken the slabs back
	lost      int           // events sent and not processed when it left
}

// consumerHalf is written by the consumer's goroutine only.
type consumerHalf struct {
	head      atomic.Uint64 // packets consumed
	asked     atomic.Int64  // events asked for; stays at its maximum once there
	cancelled atomic.Bool   // the consumer will not touch the edge again
	window    demand.Window
	tailSeen  uint64 // tail as last loaded
	at        int    // events consumed of the packet at head
	held      int    // a gate's ask that waits until it may be sent
	moved     bool   // the slab at head now belongs to the consumer's outlet
	done      bool   // the end was taken, or the edge cancelled
}

func newEdge[T any](s subscription, clears bool) *edge[T] {
	size := 1 << bits.Len(uint(min(s.window.Max(), maxRing)-1))
	e := &edge[T]{ring: make([]packet[T], size), mode: s.mode, clears: clears}
	e.window = s.window
	return e
}

func (e *edge[T]) slot(n uint64) *packet[T] { return &e.ring[n&uint64(len(e.ring)-1)] }

// open returns the demand that the producer has not met yet; 0 when the ring
// has no free slot, which is backpressure like missing demand (ST-28).
func (e *edge[T]) open() int {
	n := e.asked.Load() - e.sent.Load()
	if n <= 0 || !e.hasRoom() {
		return 0
	}
	return int(min(n, math.MaxInt))
}

func (e *edge[T]) hasRoom() bool {
	tail := e.tail.Load()
	if tail-e.headSeen < uint64(len(e.ring)) {
		return true
	}
	e.headSeen = e.head.Load()
	return tail-e.headSeen < uint64(len(e.ring))
}

// publish hands one packet to the consumer. The caller has checked that there
// is demand and room, and that the slot was reclaimed.
func (e *edge[T]) publish(p packet[T]) {
	tail := e.tail.Load()
	*e.slot(tail) = p
	e.sent.Store(e.sent.Load() + int64(p.to-p.from))
	e.tail.Store(tail + 1)
	e.consumer.ring()
}

// end tells the consumer that nothing more comes, in order after every packet.
func (e *edge[T]) end(err error) {
	e.endErr = err
	e.ended.Store(true)
	e.consumer.ring()
}

// next returns the packet at the head, nil when there is none now. over
// reports that none will come any more.
func (e *edge[T]) next() (p *packet[T], over bool) {
	head := e.head.Load()
	if head == e.tailSeen {
		over = e.ended.Load() // before tail: the last packet was published before the end
		e.tailSeen = e.tail.Load()
		if head == e.tailSeen {
			return nil, over
		}
	}
	return e.slot(head), false
}

// chunk returns the events of p for the next callback (ST-17). The slice ends
// where the chunk ends, so that appending to it cannot reach the next one.
func (e *edge[T]) chunk(p *packet[T]) []T {
	from := p.from + e.at
	to := from + e.window.Chunk(p.to-from)
	return p.slab.buf[from:to:to]
}

// took records that n events of the packet at the head were processed, and
// returns what to ask for now.
func (e *edge[T]) took(p *packet[T], n int) (ask int) {
	if e.clears && !e.moved {
		clear(p.slab.buf[p.from+e.at : p.from+e.at+n])
	}
	e.at += n
	if p.from+e.at == p.to {
		e.pop(p)
	}
	return e.window.Took(n)
}

func (e *edge[T]) pop(p *packet[T]) {
	e.settleMoved(p)
	e.at = 0
	head := e.head.Load()
	e.head.Store(head + 1)
	if e.tail.Load()-head == uint64(len(e.ring)) { // the producer may wait for a free slot
		e.producer.ring()
	}
}

// settleMoved ends the hold on a slab that was forwarded and leaves an empty
// one in its slot, so that the producer never sees the moved one again.
func (e *edge[T]) settleMoved(p *packet[T]) {
	if e.moved {
		e.moved = false
		p.slab = e.swap(p.slab)
	}
}

// ask adds n to the demand that the producer sees.
func (e *edge[T]) ask(n int) {
	asked := e.asked.Load()
	e.asked.Store(asked + min(int64(n), math.MaxInt64-asked))
	e.producer.ring()
}

// cancel gives the edge up. Afterwards it belongs to the producer, which takes
// its slabs back and counts what was not processed.
func (e *edge[T]) cancel() {
	if e.done {
		return
	}
	e.done = true
	e.settleMoved(e.slot(e.head.Load()))
	e.cancelled.Store(true)
	e.producer.ring()
}

// undelivered returns how many events were sent and never processed, after
// both sides have ended.
func (e *edge[T]) undelivered() int {
	if e.abandoned {
		return e.lost
	}
	return e.unprocessed()
}

// unprocessed counts the events that were sent and not processed. It may be
// called when the consumer does not touch the edge any more.
func (e *edge[T]) unprocessed() (n int) {
	for i := e.head.Load(); i < e.tail.Load(); i++ {
		p := e.slot(i)
		n += p.to - p.from
	}
	return n - e.at
}
