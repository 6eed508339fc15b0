package queue

import (
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// retryLog holds what one partition of a group has parked: entries, each a
// change of one event, and the events themselves. It belongs to the owner of
// the partition in the group; only close may be called by others.
//
// It never says that it holds what it does not: an event leaves its place in
// the partition when logged has told its entry (ADR 0029).
type retryLog[T any] interface {
	// load waits until what was appended before has ended and returns what the
	// log holds: the last entry of each event that is parked, sorted by offset.
	load() ([]parkedEntry, error)
	// size returns what the event at an offset, which is in view, takes.
	size(o penstock.Offset, v *view[T]) (penstock.Bytes, error)
	// append begins to append those of the machine's unconfirmed entries that
	// are not under way. The events of new ones are in view, or were when size
	// was asked. It does not wait for the disk.
	append(entries []settle.Entry, v *view[T]) error
	// logged returns the number up to which the machine's entries are held.
	logged() (seq uint64, err error)
	// retryAt is when append is to be called again after a failure; zero when
	// nothing failed.
	retryAt() time.Time
	// read returns a parked event.
	read(o penstock.Offset) (parkedEvent[T], error)
	// sync makes what logged has told as safe as a commit that is stored next.
	sync() error
	// grown reports whether the log has become too large for the events that are
	// parked.
	grown(events int) bool
	// rewrite makes the log small again. parked has one entry per parked event,
	// every one of which is held already.
	rewrite(parked []settle.Entry) error
	// drain waits until nothing is under way.
	drain()
	// rest gives back what is only needed while something is parked.
	rest()
	// close gives files back. It may be called at any time; what is called later
	// fails with penstock.ErrClosed.
	close() error
}

// parkedEntry is an entry with when its event was parked.
type parkedEntry struct {
	settle.Entry
	since time.Time
}

// parkedEvent is an event that was read from the retry log.
type parkedEvent[T any] struct {
	value    T
	meta     penstock.Meta
	unixNano int64 // of the append to the topic; 0 when not known
	epoch    uint32
	bad      *UndecodableError // not nil: value is the zero T
}

// view is a run of events in the memory of a partition, to look at while the
// machine decides.
type view[T any] struct {
	first  penstock.Offset
	values []T
	metas  []penstock.Meta    // nil, or one per value
	times  []penstock.TimeRun // of the values, from the first on
	epoch  uint32
	bad    *UndecodableError // not nil: the one value stands for an event that cannot be decoded
	fan    *fan[T]           // if not nil, all that several workers have in view, and nothing else counts
}

// of returns the part of the view in which an offset lies, if it does.
func (v *view[T]) of(o penstock.Offset) *view[T] {
	if v.fan == nil {
		return v
	}
	s, i := v.fan.at(o)
	if i < 0 {
		return &view[T]{}
	}
	return &view[T]{first: s.First, values: s.Values, metas: s.Metas, times: s.Times, epoch: s.Epoch, bad: s.bad}
}

// at returns the event at an offset, false when it is not in view.
func (v *view[T]) at(o penstock.Offset) (value *T, meta *penstock.Meta, ok bool) {
	v = v.of(o)
	if o < v.first || o-v.first >= penstock.Offset(len(v.values)) {
		return nil, nil, false
	}
	i := int(o - v.first)
	if v.metas != nil {
		meta = &v.metas[i]
	}
	return &v.values[i], meta, true
}

// time returns when the event at an offset in view was appended, 0 when that is
// not known.
func (v *view[T]) time(o penstock.Offset) int64 {
	i := int(o - v.first)
	for _, r := range v.times {
		if i < r.N {
			return r.UnixNano
		}
		i -= r.N
	}
	return 0
}
