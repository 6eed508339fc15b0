package penstock

import (
	"fmt"
	"time"
)

// Field is one header entry.
type Field struct{ Name, Value string }

// Header is an ordered list of named values that travels with an event, trace
// context among them. Names may repeat. A Header handed to penstock belongs to
// penstock from then on; a Header received must not be changed.
type Header []Field

// Get returns the first value with the given name, "" when there is none.
// Names are compared exactly.
func (h Header) Get(name string) string {
	for _, f := range h {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// ProducerTag is a 24-bit producer number and a 40-bit sequence in one word
// (ADR 0003). The zero tag means that the producer did not number the event.
type ProducerTag uint64

const sequenceBits = 40

// Limits of the two parts of a [ProducerTag].
const (
	MaxProducer = 1<<24 - 1
	MaxSequence = 1<<sequenceBits - 1
)

// NewProducerTag packs a producer number and a sequence. The error matches
// [ErrInvalid] when one is above its limit.
func NewProducerTag(producer uint32, sequence uint64) (ProducerTag, error) {
	if producer > MaxProducer {
		return 0, &FieldError{Field: "producer", Reason: fmt.Sprintf("%d is above %d", producer, MaxProducer)}
	}
	if sequence > MaxSequence {
		return 0, &FieldError{Field: "sequence", Reason: fmt.Sprintf("%d is above %d", sequence, uint64(MaxSequence))}
	}
	return ProducerTag(uint64(producer)<<sequenceBits | sequence), nil
}

// Producer returns the producer number, in [0, MaxProducer].
func (t ProducerTag) Producer() uint32 { return uint32(t >> sequenceBits) }

// Sequence returns the sequence, in [0, MaxSequence].
func (t ProducerTag) Sequence() uint64 { return uint64(t) & MaxSequence }

// Origin says where a dead-lettered event came from and why it is here.
type Origin struct {
	Topic     string
	Partition int
	Offset    Offset
	Group     string    // the consumer group or subscription that gave up
	Cause     string    // text of the last error
	Time      time.Time // when it was given up
}

// Meta is what may be known of an event besides its value. Every field is
// optional; a zero field costs nothing when the event is stored (ADR 0003).
type Meta struct {
	ID          string    // chosen by the producer; the key for idempotent consumers
	Time        time.Time // when the event happened or was appended; stored in UTC with nanoseconds
	Key         string    // events with equal keys keep their order
	Header      Header
	ContentType string
	Schema      string // schema id
	Stream      StreamID
	Producer    ProducerTag
	Attempt     int     // of the failed delivery, for dead letters; 0 otherwise
	Origin      *Origin // for dead letters; nil otherwise
}

// Event is one value with what is known about it.
type Event[T any] struct {
	Meta
	Value T
}

// Envelope is an event whose value is in its stored form. Its binary layout is
// fixed in docs/format.md; see [AppendEnvelope] and [DecodeEnvelope].
type Envelope = Event[[]byte]
