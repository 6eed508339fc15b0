package penstock

import (
	"errors"
	"iter"
	"slices"
	"sort"
	"sync"
	"time"
	"unsafe"
)

// Batch is a run of events handed over in one call: events of one partition
// whose offsets rise, or containers of one stream. The offsets have no gap, so
// they are [Offset(0), Offset(0)+Len), unless several workers share the
// partition. A batch is a small value; copies share the same events.
//
// The values are not copied: [Batch.Values] is a view of the carrier's memory,
// valid until a handler returns, or, for a pulled batch, until it is committed
// or the consumer pulls again. Elements may be kept, the slice may not.
//
// A batch is safe for concurrent use by the goroutines of one handler call.
type Batch[T any] struct {
	// Four words: the compiler keeps a struct of that size in registers, while
	// it would copy a fifth through memory at every call of a method. The first
	// two are the slice of values, whose capacity is its length.
	first *T
	n     int
	d     *Delivery
	gen   uint64
}

// NewBatch is for carriers (topics, streams): it joins values with what is
// known of their delivery. Both stay owned by the carrier.
func NewBatch[T any](values []T, d *Delivery) Batch[T] {
	return Batch[T]{first: unsafe.SliceData(values), n: len(values), d: d, gen: d.gen}
}

// Fill is [NewBatch] in place: it makes b the batch of values and d. It spares
// carriers a copy where that is a part of what a delivery costs.
func (b *Batch[T]) Fill(values []T, d *Delivery) { *b = NewBatch(values, d) }

// NewPulled is for carriers whose receivers settle a batch by a call of their
// own, a commit, instead of by returning from a handler: it makes a batch that
// carries a ticket of the carrier's choice, and for which Fail has no effect.
func NewPulled[T any](values []T, d *Delivery, ticket uint64) Batch[T] {
	return Batch[T]{first: unsafe.SliceData(values), n: len(values), d: d, gen: ticket | pulled}
}

// NewPulledAt is [NewPulled] of values[at:at+n], which the caller knows to be
// there, at least one: nothing is checked.
func NewPulledAt[T any](values []T, at, n int, d *Delivery, ticket uint64) Batch[T] {
	first := unsafe.Add(unsafe.Pointer(unsafe.SliceData(values)), uintptr(at)*unsafe.Sizeof(*new(T)))
	return Batch[T]{first: (*T)(first), n: n, d: d, gen: ticket | pulled}
}

// pulled marks a ticket; no delivery gets so far in its count of settlements.
const pulled = 1 << 63

// Ticket returns what a carrier gave to [NewPulled], the ticket without its
// highest bit. The delivery is nil for the zero Batch. It is for carriers.
func (b Batch[T]) Ticket() (d *Delivery, ticket uint64) { return b.d, b.gen &^ pulled }

// Len returns the number of events; it is never 0 for a delivered batch.
func (b Batch[T]) Len() int { return b.n }

// Values returns the events' values in order. See [Batch] for how long the
// slice is valid.
func (b Batch[T]) Values() []T {
	if uint(b.n)-1 < viewMax {
		return (*[viewMax]T)(unsafe.Pointer(b.first))[:b.n:b.n]
	}
	return unsafe.Slice(b.first, b.n)
}

// viewMax is the length of an array of which Values takes a part, so that one
// bound is checked where [unsafe.Slice] also multiplies by the size of an event
// and looks whether the address overflows. It is 1<<16, and 1 where an address
// has 32 bits and a program might have events for which that is too much.
const viewMax = 1 << (^uint(0) >> 63 * 16)

// Value returns the value of event i, in [0, Len).
func (b Batch[T]) Value(i int) T { return b.Values()[i] }

// All yields index and value of each event in order.
func (b Batch[T]) All() iter.Seq2[int, T] { return slices.All(b.Values()) }

// Topic returns the name of the topic, or of the provider for a stream.
func (b Batch[T]) Topic() string { return b.d.Topic }

// Partition returns the partition (for a stream, the queue) that all events
// of the batch come from.
func (b Batch[T]) Partition() int { return b.d.Partition }

// Stream returns the stream of the batch; the zero StreamID for a topic.
func (b Batch[T]) Stream() StreamID { return b.d.Stream }

// Epoch returns the writer's epoch under which the events were read. Offset
// and epoch together identify an event also where a power loss made a topic
// use offsets again (durability written).
func (b Batch[T]) Epoch() uint32 { return b.d.Epoch }

// Offset returns the offset of event i in its partition. For a stream it is
// Lo of the event's token: the offset of its container when the queue is a
// topic, and a number of the engine's own otherwise. Several events of one
// container share it; [Batch.Token] tells them apart.
func (b Batch[T]) Offset(i int) Offset {
	if b.d.Tokens == nil && b.d.Runs == nil {
		return b.d.First + Offset(i)
	}
	return Offset(b.d.token(i).Lo)
}

// Token returns the position of event i in its queue; for a topic it holds the
// offset.
func (b Batch[T]) Token(i int) Token {
	if b.d.Tokens == nil && b.d.Runs == nil {
		return Token{Lo: uint64(b.d.First + Offset(i))}
	}
	return b.d.token(i)
}

// Attempt returns which delivery of event i this is, 1 for the first.
func (b Batch[T]) Attempt(i int) int {
	if b.d.Attempts != nil {
		return b.d.Attempts[i]
	}
	return max(b.d.Attempt, 1)
}

// Reason returns why the batch was delivered with the size that it has.
func (b Batch[T]) Reason() FlushReason { return b.d.Reason }

// Time returns when event i was produced (if its producer said so) or
// appended. Events of one append share one time.
func (b Batch[T]) Time(i int) time.Time {
	if b.d.Metas != nil && !b.d.Metas[i].Time.IsZero() {
		return b.d.Metas[i].Time
	}
	for _, r := range b.d.Times {
		if i < r.N {
			return time.Unix(0, r.UnixNano).UTC()
		}
		i -= r.N
	}
	return time.Time{}
}

// Meta returns what was given with event i besides its value; the zero Meta
// when nothing was.
func (b Batch[T]) Meta(i int) Meta {
	if b.d.Metas == nil {
		return Meta{}
	}
	return b.d.Metas[i]
}

// ID returns the id of event i, "" when it has none.
func (b Batch[T]) ID(i int) string {
	if b.d.Metas == nil {
		return ""
	}
	return b.d.Metas[i].ID
}

// Event returns event i with its metadata; Time is filled in.
func (b Batch[T]) Event(i int) Event[T] {
	e := Event[T]{Meta: b.Meta(i), Value: b.Value(i)}
	e.Time = b.Time(i)
	return e
}

// Fail marks event i as failed; the other events of the batch are settled when
// the handler returns nil. A nil error is replaced by a general one. A second
// Fail for the same event is ignored, and so is a call after the handler
// returned. Fail panics when i is not in [0, Len).
func (b Batch[T]) Fail(i int, err error) {
	if i < 0 || i >= b.n {
		panic("penstock: Batch.Fail: index out of range")
	}
	if err == nil {
		err = errFailed
	}
	b.d.fail(b.gen, i, err)
}

var errFailed = errors.New("failed without a reason")

// TimeRun is the append time of N consecutive events.
type TimeRun struct {
	N        int
	UnixNano int64
}

// TokenRun is the tokens of consecutive events that differ in Index alone, which
// rises by one from event to event.
type TokenRun struct {
	End   int   // of the run in the batch: the index behind its last event
	First Token // of its first event
}

// Failure is one event that a handler failed.
type Failure struct {
	Index int // in the batch, [0, Len)
	Err   error
}

// Delivery is what a carrier knows of a batch besides its values. Carriers
// fill it, make a batch with [NewBatch], and call [Delivery.Settle] when the
// handler has returned; handlers never see it. A carrier may use one Delivery
// for batch after batch.
type Delivery struct {
	Topic     string
	Partition int
	First     Offset // offset of the first event
	Epoch     uint32
	Stream    StreamID
	Attempt   int        // of all events; 0 counts as 1
	Attempts  []int      // nil, or one per event
	Tokens    []Token    // nil, or one per event
	Runs      []TokenRun // nil, or in order, instead of Tokens
	Times     []TimeRun  // in order; may cover fewer events than the batch
	Metas     []Meta     // nil, or one per event
	Reason    FlushReason
	Carrier   any // the carrier's own, to find itself again; see [Batch.Ticket]

	mu       sync.Mutex
	gen      uint64
	failures []Failure // in the order of Index, each Index once
}

// token is the token of event i of a batch that has tokens of its own.
func (d *Delivery) token(i int) Token {
	if d.Tokens != nil {
		return d.Tokens[i]
	}
	k, start := 0, 0
	if len(d.Runs) > 1 {
		k = sort.Search(len(d.Runs), func(k int) bool { return i < d.Runs[k].End })
	}
	if k > 0 {
		start = d.Runs[k-1].End
	}
	t := d.Runs[k].First
	t.Index += uint32(i - start)
	return t
}

func (d *Delivery) fail(gen uint64, i int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gen != d.gen {
		return
	}
	at, found := slices.BinarySearchFunc(d.failures, i, func(f Failure, i int) int { return f.Index - i })
	if !found {
		d.failures = slices.Insert(d.failures, at, Failure{Index: i, Err: err})
	}
}

// Settle ends the delivery: marks made after it are ignored. It returns the
// failed events in the order of their index. The slice is valid until the
// next batch made from d calls Fail.
func (d *Delivery) Settle() []Failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gen++
	failed := d.failures
	d.failures = d.failures[:0]
	return failed
}
