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
	buf    []T
	refs   int
	dirty  bool // holds events that no consumer has cleared
	spoilt bool // an error may refer to it, or a sink owns it: it is not used again
	users  users
}

// A packet is one delivery: the events [from, to) of a slab. whole says that
// no other packet or piece refers to the slab, so that it may be forwarded;
// shared that others get the same events, so that nobody may change them: who
// may change its input gets a copy.
type packet[T any] struct {
	slab          *slab[T]
	from, to      int
	whole, shared bool
	spoilt        bool // the consumer says that an error may refer to the slab
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
// packet, and counts once the ring is empty. A cancel sets a bit in tail, the
// word by which packets are published: it follows every packet that was
// published before and none is published after it, whoever cancels and
// whatever the producer does meanwhile (ADR 0046).
//
// Invariants: reclaimed <= head <= tail <= head + len(ring), without the bit;
// 0 <= sent <= asked; window.Open is in [0, max]; what was sent and not
// processed is counted by the side that leaves last, once.
type edge[T any] struct {
	ring      []packet[T] // length is a power of two
	sub       *Subscription
	mode      Mode
	manual    bool                    // asked for by Subscription.Ask alone, or by the consumer's own rules
	clears    bool                    // consumed events are cleared, so that they pin nothing
	changes   bool                    // the consumer may change what it gets
	partition int                     // as the producer's handle said, -1 for none
	where     func(T) bool            // nil: everything
	swap      func(*slab[T]) *slab[T] // ends the consumer's hold on a forwarded slab, returns an empty one
	producer  *doorbell
	consumer  *doorbell
	counted   atomic.Bool // somebody has counted what was not processed

	_ [64]byte
	producerHalf
	_ [64]byte
	consumerHalf[T]
	_ [64]byte
}

// cancelBit in tail says that the subscription was cancelled.
const cancelBit = 1 << 63

// producerHalf is written by the producer's goroutine only, but for the bit in
// tail.
type producerHalf struct {
	tail      atomic.Uint64 // packets published, and cancelBit
	sent      atomic.Int64  // events published
	ended     atomic.Bool   // no packet will follow; set after endErr
	endErr    error         // nil: a normal end
	cut       bool          // ended while the producer goes on
	reclaimed uint64        // packets whose slab went back to the producer
	headSeen  uint64        // head as last loaded
}

// consumerHalf is written by the consumer's goroutine only, but for asked in
// manual mode.
type consumerHalf[T any] struct {
	head      atomic.Uint64 // packets consumed
	asked     atomic.Int64  // events asked for; stays at its maximum once there
	processed atomic.Int64  // events processed, for others to look at
	left      atomic.Bool   // the consumer will not touch the edge again
	window    demand.Window
	tailSeen  uint64 // tail as last loaded, without the bit
	at        int    // events consumed of the packet at head
	held      int    // a gate's ask that waits until it may be sent
	moved     bool   // the slab at head now belongs to the consumer's outlet
	spoilt    bool   // an error may refer to the slab at head: it is not used again
	done      bool   // the end was taken, or the edge given up
	copied    []T    // the chunk in hands, when its packet is shared and the consumer may change it
}

func newEdge[T any](from Outlet[T], o *outlet[T], to *inlet[T], sub *Subscription) *edge[T] {
	size := 1 << bits.Len(uint(min(sub.window.Max(), maxRing)-1))
	e := &edge[T]{
		ring: make([]packet[T], size), sub: sub, mode: sub.mode, manual: sub.manual || to.owned,
		clears: o.clears, partition: from.partition - 1, where: from.where, swap: to.swap, changes: to.changes,
	}
	e.window = sub.window
	return e
}

func (e *edge[T]) slot(n uint64) *packet[T] { return &e.ring[n&uint64(len(e.ring)-1)] }

// open returns the demand that the producer has not met yet; 0 when the ring
// has no free slot, which is backpressure like missing demand (ST-28), and when
// the edge was cancelled: the bit makes the distance larger than any ring.
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

// publish hands one packet to the consumer, unless the edge was cancelled. The
// caller has checked that there is demand and room, and that the slot was
// reclaimed.
func (e *edge[T]) publish(p packet[T]) bool {
	tail := e.tail.Load()
	if tail&cancelBit != 0 {
		return false
	}
	*e.slot(tail) = p
	sent := e.sent.Load()
	e.sent.Store(sent + int64(p.to-p.from))
	if !e.tail.CompareAndSwap(tail, tail+1) {
		e.sent.Store(sent)
		e.slot(tail).slab = nil
		return false
	}
	e.consumer.ring()
	return true
}

// end tells the consumer that nothing more comes, in order after every packet.
func (e *edge[T]) end(err error) {
	if e.ended.Load() { // a failure that has overtaken, or a laggard that was cut off
		return
	}
	e.endErr = err
	e.ended.Store(true)
	e.consumer.ring()
}

// cancel ends the edge in order after every packet that was published. Any
// goroutine may call it, at any time.
func (e *edge[T]) cancel() {
	for {
		tail := e.tail.Load()
		if tail&cancelBit != 0 {
			return
		}
		if e.tail.CompareAndSwap(tail, tail|cancelBit) {
			break
		}
	}
	e.sub.to.wake(0)
	e.sub.from.wake(0)
}

func (e *edge[T]) cancelled() bool { return e.tail.Load()&cancelBit != 0 }

// next returns the packet at the head, nil when there is none now. over
// reports that none will come any more.
func (e *edge[T]) next() (p *packet[T], over bool) {
	head := e.head.Load()
	if head == e.tailSeen {
		over = e.ended.Load() // before tail: the last packet was published before the end
		tail := e.tail.Load()
		e.tailSeen = tail &^ cancelBit
		if head == e.tailSeen {
			return nil, over || tail&cancelBit != 0
		}
	}
	return e.slot(head), false
}

// reason says why the edge is over: nil for a normal end, or a cancel.
func (e *edge[T]) reason() error {
	if e.cancelled() || !e.ended.Load() {
		return nil
	}
	return e.endErr
}

// chunk returns the events of p for the next callback (ST-17), in manual mode
// the whole delivery. The slice ends where the chunk ends, so that appending to
// it cannot reach the next one. The events of a shared packet are lent to all
// its consumers at once; one that may change them works on a copy.
func (e *edge[T]) chunk(p *packet[T]) []T {
	from := p.from + e.at
	to := p.to
	if !e.manual {
		to = from + e.window.Chunk(p.to-from)
	}
	if p.shared && e.changes {
		e.copied = append(e.copied[:0], p.slab.buf[from:to]...)
		return e.copied[: to-from : to-from]
	}
	return p.slab.buf[from:to:to]
}

// took records that n events of the packet at the head were processed, and
// returns what to ask for now.
func (e *edge[T]) took(p *packet[T], n int) (ask int) {
	if e.clears && !e.moved {
		if !p.shared {
			clear(p.slab.buf[p.from+e.at : p.from+e.at+n])
		} else if e.changes {
			clear(e.copied)
		}
	}
	return e.advance(p, n)
}

// advance moves on by n events, and returns what to ask for now.
func (e *edge[T]) advance(p *packet[T], n int) (ask int) {
	e.at += n
	e.processed.Store(e.processed.Load() + int64(n))
	if p.from+e.at == p.to {
		e.pop(p)
	}
	if e.manual {
		return 0
	}
	return e.window.Took(n)
}

// skip is took for events of a call that panicked and whose stage goes on, or of
// a sink that keeps what it gets: what the call panicked with, or the sink, may
// refer to them, so they are not cleared and their slab is not used again.
func (e *edge[T]) skip(p *packet[T], n int) (ask int) {
	switch {
	case p.shared && e.changes:
		e.copied = nil
	case e.moved: // it is in the consumer's domain by now
		p.slab.spoilt = true
	default:
		p.spoilt = true
	}
	return e.advance(p, n)
}

// sweep takes everything that was sent and drops it. It returns how many events
// those were, and what to ask for in their place.
func (e *edge[T]) sweep() (n, ask int) {
	for {
		p, _ := e.next()
		if p == nil {
			return n, ask
		}
		k := p.to - p.from - e.at
		n += k
		more := e.took(p, k)
		if e.manual {
			more = k
		}
		ask += more
	}
}

// spoil records that n events of the packet at the head were processed by a
// call that panicked: what it panicked with may refer to them. The consumer
// leaves.
func (e *edge[T]) spoil(n int) {
	e.at += n
	e.processed.Store(e.processed.Load() + int64(n))
	e.spoilt = true
}

// pass moves on behind one event of p and returns it, for a consumer that
// counts it as processed later.
func (e *edge[T]) pass(p *packet[T]) T {
	at := p.from + e.at
	v := p.slab.buf[at]
	if e.clears && !p.shared {
		clear(p.slab.buf[at : at+1])
	}
	e.at++
	if at+1 == p.to {
		e.pop(p)
	}
	return v
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

// askMore is ask for manual mode, from any goroutine.
func (e *edge[T]) askMore(n int) {
	for {
		asked := e.asked.Load()
		if e.asked.CompareAndSwap(asked, asked+min(int64(n), math.MaxInt64-asked)) {
			break
		}
	}
	e.sub.from.wake(0)
}

// leave gives the edge up for the consumer. Afterwards it belongs to the
// producer, which takes its slabs back. It returns how many events nobody has
// processed, if the producer has left before: else the producer counts them.
func (e *edge[T]) leave() (lost int) {
	e.done = true
	e.settleMoved(e.slot(e.head.Load()))
	e.left.Store(true)
	e.producer.ring()
	if e.ended.Load() {
		return e.count()
	}
	return 0
}

// count returns the events that were sent and not processed, to the first
// caller. It may be called when the consumer has left.
func (e *edge[T]) count() (n int) {
	if e.counted.Swap(true) {
		return 0
	}
	for i, tail := e.head.Load(), e.tail.Load()&^cancelBit; i < tail; i++ {
		p := e.slot(i)
		n += p.to - p.from
	}
	return n - e.at
}
