package stream

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock"
)

// QueueID names one queue of a provider: a name, a number in [0, queues) and
// the queue's place on the hash ring. It is comparable and can be a map key.
type QueueID struct {
	Name   string
	Number int
	Ring   uint32
}

// String returns "name-number".
func (q QueueID) String() string { return q.Name + "-" + strconv.Itoa(q.Number) }

// Mapper says which queue a stream belongs to. It is a pure function and must
// be the same on every producer and every node of a provider; changing the
// number or the names of the queues is a migration.
// Implementations must be safe for concurrent use.
type Mapper interface {
	// Queues returns all queues, ordered by number: Queues()[i].Number == i.
	// The caller must not change the slice.
	Queues() []QueueID
	// QueueFor returns the queue of the stream, one of Queues.
	QueueFor(s penstock.StreamID) QueueID
}

// MaxQueues is the largest number of queues of one provider.
const MaxQueues = 1 << 16

// RingMapper places queues at equal distances on a ring of 2^32 hashes; a
// stream belongs to the first queue at or after its own hash, and to queue 0
// when there is none. The hash of a stream is the upper half of
// [penstock.StreamID.Hash]. A RingMapper is immutable.
type RingMapper struct {
	queues []QueueID
	step   uint64
}

// NewRingMapper returns the ring of n queues named name-0 to name-(n-1). The
// error matches penstock.ErrInvalid when name is blank or n is not in
// [1, MaxQueues].
func NewRingMapper(name string, n int) (*RingMapper, error) {
	if strings.TrimSpace(name) == "" {
		return nil, &penstock.FieldError{Field: "Name", Reason: "is blank"}
	}
	if n < 1 || n > MaxQueues {
		return nil, &penstock.FieldError{Field: "Queues", Reason: fmt.Sprintf("%d is not in [1, %d]", n, MaxQueues)}
	}
	m := &RingMapper{step: 1<<32/uint64(n) + 1, queues: make([]QueueID, n)}
	for i := range m.queues {
		m.queues[i] = QueueID{Name: name, Number: i, Ring: uint32(uint64(i) * m.step)}
	}
	return m, nil
}

// Queues returns all queues, ordered by number. It must not be changed.
func (m *RingMapper) Queues() []QueueID { return m.queues }

// QueueFor returns the queue of the stream.
func (m *RingMapper) QueueFor(s penstock.StreamID) QueueID {
	i := m.from(uint32(s.Hash() >> 32))
	if i == len(m.queues) {
		i = 0 // beyond the last queue the ring starts again
	}
	return m.queues[i]
}

// QueuesInRange returns the queues whose places lie in [from, to) of the ring,
// in the order in which they follow from. When to is not above from, the range
// goes on behind the end of the ring at 0, so that equal ends are the whole
// ring: ranges that share their ends share out all queues, each once. The slice
// belongs to the caller.
func (m *RingMapper) QueuesInRange(from, to uint32) []QueueID {
	i, j := m.from(from), m.from(to)
	if from < to {
		return slices.Clone(m.queues[i:j])
	}
	return slices.Concat(m.queues[i:], m.queues[:j])
}

// from returns the number of the first queue at or after a place, and the number
// of queues when there is none.
func (m *RingMapper) from(place uint32) int {
	return int(min((uint64(place)+m.step-1)/m.step, uint64(len(m.queues))))
}
