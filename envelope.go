package penstock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Limits of an envelope. Both are checked before anything is written and
// before anything is allocated for a decoded field.
const (
	// MaxFieldBytes is the largest length of one text field: id, key, header
	// name or value, content type, schema, stream parts, origin parts.
	MaxFieldBytes = 64<<10 - 1
	// MaxHeaderFields is the largest number of header fields.
	MaxHeaderFields = 1024
)

const (
	envelopeVersion = 1
	maxCount        = 1<<31 - 1 // of an attempt or a partition: fits an int everywhere
)

// Flags of the envelope, one per optional field, in the order of the fields.
const (
	hasID = 1 << iota
	hasTime
	hasKey
	hasHeader
	hasContentType
	hasSchema
	hasStream
	hasProducer
	hasAttempt
	hasOrigin
	knownFlags = 1<<iota - 1
)

var errEnvelope = errors.New("malformed envelope")

// IsBare reports whether m holds nothing, so that the event can be stored as
// its payload alone, without an envelope.
func (m *Meta) IsBare() bool { return m.flags() == 0 }

func (m *Meta) flags() (f uint16) {
	set := func(bit uint16, present bool) {
		if present {
			f |= bit
		}
	}
	set(hasID, m.ID != "")
	set(hasTime, !m.Time.IsZero())
	set(hasKey, m.Key != "")
	set(hasHeader, len(m.Header) > 0)
	set(hasContentType, m.ContentType != "")
	set(hasSchema, m.Schema != "")
	set(hasStream, !m.Stream.IsZero())
	set(hasProducer, m.Producer != 0)
	set(hasAttempt, m.Attempt != 0)
	set(hasOrigin, m.Origin != nil)
	return f
}

// AppendEnvelope appends the binary form of an event to dst and returns the
// result: the metadata, then the payload. docs/format.md fixes it byte by byte.
// The error matches [ErrTooLarge] when a field is above its limit, and
// [ErrInvalid] when a number is not in [0, 2^31) or a time is outside the years
// 1678 to 2262, which nanoseconds in 64 bits cannot count; dst is then returned
// unchanged.
func AppendEnvelope(dst []byte, m *Meta, payload []byte) ([]byte, error) {
	out, err := AppendEnvelopeMeta(dst, m)
	if err != nil {
		return dst, err
	}
	return append(out, payload...), nil
}

// AppendEnvelopeMeta appends the binary form up to the payload, so that the
// payload can be encoded in place behind it. Errors are those of
// [AppendEnvelope].
func AppendEnvelopeMeta(dst []byte, m *Meta) ([]byte, error) {
	flags := m.flags()
	e := encoder{b: append(dst, envelopeVersion, byte(flags), byte(flags>>8))}
	if flags&hasID != 0 {
		e.text("ID", m.ID)
	}
	if flags&hasTime != 0 {
		e.time("Time", m.Time)
	}
	if flags&hasKey != 0 {
		e.text("Key", m.Key)
	}
	if flags&hasHeader != 0 {
		e.header(m.Header)
	}
	if flags&hasContentType != 0 {
		e.text("ContentType", m.ContentType)
	}
	if flags&hasSchema != 0 {
		e.text("Schema", m.Schema)
	}
	if flags&hasStream != 0 {
		e.text("Stream.Namespace", m.Stream.Namespace)
		e.text("Stream.Key", m.Stream.Key)
	}
	if flags&hasProducer != 0 {
		e.u64(uint64(m.Producer))
	}
	if flags&hasAttempt != 0 {
		e.count("Attempt", m.Attempt)
	}
	if flags&hasOrigin != 0 {
		e.origin(m.Origin)
	}
	if e.err != nil {
		return dst, e.err
	}
	return e.b, nil
}

type encoder struct {
	b   []byte
	err error // first error; sticky
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) u64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *encoder) text(field, s string) {
	if len(s) > MaxFieldBytes {
		e.fail(fmt.Errorf("%s: %d bytes, at most %d: %w", field, len(s), MaxFieldBytes, ErrTooLarge))
		return
	}
	e.b = binary.AppendUvarint(e.b, uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) count(field string, n int) {
	if n < 0 || n > maxCount {
		e.fail(&FieldError{Field: field, Reason: fmt.Sprintf("%d is not in [0, 2^31)", n)})
		return
	}
	e.b = binary.AppendUvarint(e.b, uint64(n))
}

func (e *encoder) time(field string, t time.Time) {
	ns := t.UnixNano()
	if !time.Unix(0, ns).Equal(t) {
		e.fail(&FieldError{Field: field, Reason: "year " + strconv.Itoa(t.Year()) + " is outside 1678 to 2262"})
		return
	}
	e.u64(uint64(ns))
}

func (e *encoder) header(h Header) {
	if len(h) > MaxHeaderFields {
		e.fail(fmt.Errorf("Header: %d fields, at most %d: %w", len(h), MaxHeaderFields, ErrTooLarge))
		return
	}
	e.count("Header", len(h))
	for _, f := range h {
		e.text("Header name", f.Name)
		e.text("Header value", f.Value)
	}
}

func (e *encoder) origin(o *Origin) {
	e.text("Origin.Topic", o.Topic)
	e.count("Origin.Partition", o.Partition)
	e.b = binary.AppendUvarint(e.b, uint64(o.Offset))
	e.text("Origin.Group", o.Group)
	e.text("Origin.Cause", o.Cause)
	if o.Time.IsZero() {
		e.u64(0) // comes back as the zero time
	} else {
		e.time("Origin.Time", o.Time)
	}
}

// DecodeEnvelope reads the binary form of an event. The payload is a part of
// b, not a copy; all text is copied. The error matches [ErrCorrupt] when b is
// cut short or malformed, and [ErrUnsupported] when it carries a version or a
// field that this version does not know.
func DecodeEnvelope(b []byte) (Meta, []byte, error) {
	if len(b) < 3 {
		return Meta{}, nil, fmt.Errorf("%w: %w: %d bytes, at least 3", ErrCorrupt, errEnvelope, len(b))
	}
	if b[0] != envelopeVersion {
		return Meta{}, nil, fmt.Errorf("envelope version %d: %w", b[0], ErrUnsupported)
	}
	flags := binary.LittleEndian.Uint16(b[1:])
	if flags&^uint16(knownFlags) != 0 {
		return Meta{}, nil, fmt.Errorf("envelope flags %#04x: %w", flags, ErrUnsupported)
	}
	d := decoder{b: b[3:]}
	m := d.meta(flags)
	if d.err != nil {
		return Meta{}, nil, fmt.Errorf("%w: %w: %w", ErrCorrupt, errEnvelope, d.err)
	}
	return m, d.b, nil
}

type decoder struct {
	b   []byte
	err error // first error; sticky
}

func (d *decoder) meta(flags uint16) (m Meta) {
	if flags&hasID != 0 {
		m.ID = d.text()
	}
	if flags&hasTime != 0 {
		m.Time = time.Unix(0, int64(d.u64())).UTC()
	}
	if flags&hasKey != 0 {
		m.Key = d.text()
	}
	if flags&hasHeader != 0 {
		m.Header = d.header()
	}
	if flags&hasContentType != 0 {
		m.ContentType = d.text()
	}
	if flags&hasSchema != 0 {
		m.Schema = d.text()
	}
	if flags&hasStream != 0 {
		m.Stream = StreamID{Namespace: d.text(), Key: d.text()}
	}
	if flags&hasProducer != 0 {
		m.Producer = ProducerTag(d.u64())
	}
	if flags&hasAttempt != 0 {
		m.Attempt = int(d.uvarint(maxCount))
	}
	if flags&hasOrigin != 0 {
		m.Origin = &Origin{
			Topic:     d.text(),
			Partition: int(d.uvarint(maxCount)),
			Offset:    Offset(d.uvarint(1<<64 - 1)),
			Group:     d.text(),
			Cause:     d.text(),
		}
		if ns := int64(d.u64()); ns != 0 {
			m.Origin.Time = time.Unix(0, ns).UTC()
		}
	}
	return m
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err, d.b = err, nil
	}
}

func (d *decoder) u64() uint64 {
	if len(d.b) < 8 {
		d.fail(errors.New("cut short"))
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *decoder) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.fail(errors.New("number cut short or out of range"))
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() string {
	n := d.uvarint(MaxFieldBytes)
	if uint64(len(d.b)) < n {
		d.fail(errors.New("text cut short"))
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) header() Header {
	n := int(d.uvarint(MaxHeaderFields))
	if n == 0 {
		return nil
	}
	if 2*n > len(d.b) { // a field takes two bytes at the least
		d.fail(errors.New("header cut short"))
		return nil
	}
	h := make(Header, n)
	for i := range h {
		h[i] = Field{Name: d.text(), Value: d.text()}
	}
	return h
}
