package stream

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// MaxContainerEvents is the largest number of events in one container.
const MaxContainerEvents = 1 << 16

// Container is the unit that a queue stores and a cache keeps: events of one
// stream that were published together and share one token. The receiver that
// read a container hands it over for good: nobody changes it afterwards.
type Container struct {
	Stream penstock.StreamID
	// Token is the container's position in its queue, with Index 0. The
	// receiver sets it; inside one run of a receiver tokens rise strictly.
	Token  penstock.Token
	Time   time.Time       // when the queue took the container in; zero when it does not say
	Header penstock.Header // of the publishing call; applies to every event
	Events Events          // 1 to MaxContainerEvents; see [EventsOf]
	// Attempts is how often the queue has handed the container out before this
	// time, as far as it can tell; else 0. The attempts of its events go on
	// from there, see Config.MaxAttempts.
	Attempts int
	Raw      any // the adapter's own, for example a receipt; nil otherwise
}

// ContainerCodec returns the codec of containers, "container/1": an envelope
// that holds the stream and the header, whose payload is the number of events
// and, for each, the length of its envelope and the envelope. Lengths and
// numbers are unsigned varints. Token, Time, Attempts and Raw are not stored:
// the queue gives them back.
func ContainerCodec() penstock.Codec[Container] { return containerCodec{} }

type containerCodec struct{}

func (containerCodec) ID() string { return "container/1" }

func (containerCodec) Append(dst []byte, c Container) ([]byte, error) {
	if err := checkEvents(c.Events.Len()); err != nil {
		return dst, err
	}
	out, err := penstock.AppendEnvelopeMeta(dst, &penstock.Meta{Stream: c.Stream, Header: c.Header})
	if err != nil {
		return dst, err
	}
	out = binary.AppendUvarint(out, uint64(c.Events.Len()))
	var scratch []byte
	var bare penstock.Meta
	for i := range c.Events.Len() {
		m := &bare
		if c.Events.metas != nil {
			m = &c.Events.metas[i]
		}
		scratch, err = penstock.AppendEnvelope(scratch[:0], m, c.Events.Value(i))
		if err != nil {
			return dst, fmt.Errorf("event %d: %w", i, err)
		}
		out = binary.AppendUvarint(out, uint64(len(scratch)))
		out = append(out, scratch...)
	}
	return out, nil
}

func (containerCodec) Decode(src []byte, c *Container) error {
	meta, rest, err := penstock.DecodeEnvelope(src)
	if err != nil {
		return err
	}
	n, used := binary.Uvarint(rest)
	if used <= 0 || n == 0 || n > MaxContainerEvents || n > uint64(len(rest)) {
		return fmt.Errorf("container: number of events: %w", penstock.ErrCorrupt)
	}
	rest = rest[used:]
	events := eventsOfSize(int(n), len(rest))
	for i := range int(n) {
		size, used := binary.Uvarint(rest)
		if used <= 0 || size > uint64(len(rest)-used) {
			return fmt.Errorf("container: event %d of %d is cut short: %w", i, n, penstock.ErrCorrupt)
		}
		end := used + int(size)
		m, payload, err := penstock.DecodeEnvelope(rest[used:end:end])
		if err != nil {
			return fmt.Errorf("container: event %d of %d: %w", i, n, err)
		}
		events.add(&m, payload)
		rest = rest[end:]
	}
	if len(rest) != 0 {
		return fmt.Errorf("container: %d bytes behind the last event: %w", len(rest), penstock.ErrCorrupt)
	}
	*c = Container{Stream: meta.Stream, Header: meta.Header, Events: events}
	return nil
}

func checkEvents(n int) error {
	if n < 1 {
		return &penstock.FieldError{Field: "Events", Reason: "a container holds at least one"}
	}
	if n > MaxContainerEvents {
		return fmt.Errorf("container: %d events, at most %d: %w", n, MaxContainerEvents, penstock.ErrTooLarge)
	}
	return nil
}
