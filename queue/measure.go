package queue

import (
	"fmt"
	"math"
	"runtime/debug"

	"github.com/penstock/penstock"
)

// maxSlice bounds the events that are routed together: a plan counts them in
// 32 bits.
const maxSlice = math.MaxInt32

// measured is what a request weighs, one number per event. It exists only for
// topics with a limit in bytes. On disk it keeps the encoded values too, so
// that nothing is encoded twice.
type measured struct {
	sizes   []penstock.Bytes
	payload []byte // of all events, encoded; on disk only
	ends    []int  // where each ends in payload
	scratch []byte
	from    int // the slice under way begins here
}

// measure fills m and refuses a request with an event that can never be
// admitted. It comes before everything else: nothing was admitted, no selector
// was called, no turn was taken.
func (t *Topic[T]) measure(m *measured, values []T, metas []penstock.Meta) error {
	m.sizes, m.payload, m.ends, m.from = m.sizes[:0], m.payload[:0], m.ends[:0], 0
	for i, v := range values {
		var meta *penstock.Meta
		if metas != nil {
			meta = &metas[i]
		}
		size, err := t.sizeOf(m, v, meta)
		if err == nil {
			err = t.fits(size)
		}
		if err != nil {
			return fmt.Errorf("topic %q: event %d of the request: %w", t.config.Name, i, err)
		}
		m.sizes = append(m.sizes, size)
	}
	return nil
}

// sizeOf returns the size of an event: what Size says, or on disk the bytes
// that are written for it.
func (t *Topic[T]) sizeOf(m *measured, v T, meta *penstock.Meta) (size penstock.Bytes, err error) {
	if t.disk == nil {
		return t.askSize(v)
	}
	defer t.disk.caught(&err)
	if meta != nil && !meta.IsBare() {
		if m.scratch, err = penstock.AppendEnvelopeMeta(m.scratch[:0], meta); err != nil {
			return 0, err
		}
		size = penstock.Bytes(len(m.scratch))
	}
	before := len(m.payload)
	if m.payload, err = t.disk.codec.Append(m.payload, v); err != nil {
		return 0, fmt.Errorf("encode: %w", err)
	}
	m.ends = append(m.ends, len(m.payload))
	return size + penstock.Bytes(len(m.payload)-before), nil
}

// askSize calls Config.Size. A panic becomes a [penstock.PanicError].
func (t *Topic[T]) askSize(v T) (size penstock.Bytes, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &penstock.PanicError{Where: "size function of topic " + t.config.Name, Value: r, Stack: debug.Stack()}
		}
	}()
	if size = t.config.Size(v); size < 0 {
		return 0, &penstock.FieldError{Field: "Size", Reason: fmt.Sprintf("it returned %d, which is negative", int64(size))}
	}
	return size, nil
}

// fits refuses an event that is above a limit, naming both numbers.
func (t *Topic[T]) fits(size penstock.Bytes) error {
	for _, limit := range []struct {
		field string
		most  penstock.Bytes
	}{{"MaxEvent", t.config.MaxEvent}, {"CapacityBytes", t.config.CapacityBytes}} {
		if limit.most > 0 && size > limit.most {
			return fmt.Errorf("%v are above %s of %v: %w", size, limit.field, limit.most, penstock.ErrTooLarge)
		}
	}
	return nil
}

// of returns the sizes of the slice under way.
func (m *measured) of(n int) []penstock.Bytes { return m.sizes[m.from : m.from+n] }

// bytes returns the size of the slice under way, which has n events; nil is 0.
func (m *measured) bytes(n int) penstock.Bytes {
	if m == nil {
		return 0
	}
	total := penstock.Bytes(0)
	for _, size := range m.of(n) {
		total += min(size, math.MaxInt64-total) // where only single events are limited it may be any number
	}
	return total
}

// picked returns the size of some events of the slice under way.
func (m *measured) picked(picked []int32) penstock.Bytes {
	if m == nil {
		return 0
	}
	total := penstock.Bytes(0)
	for _, i := range picked {
		total += m.sizes[m.from+int(i)]
	}
	return total
}

// encoded returns the encoded value of event i of the slice under way.
func (m *measured) encoded(i int) []byte {
	i += m.from
	begin := 0
	if i > 0 {
		begin = m.ends[i-1]
	}
	return m.payload[begin:m.ends[i]]
}

// cut returns where the slice that begins at from ends, at most at to: before
// the first event that no longer fits the limit. Each event fits alone.
func (m *measured) cut(from, to int, limit penstock.Bytes) int {
	if m == nil || limit == 0 {
		return to
	}
	left := limit
	for i := from; i < to; i++ {
		if m.sizes[i] > left {
			return i
		}
		left -= m.sizes[i]
	}
	return to
}

// measuredMax is the largest spare memory, in bytes, that is kept between
// requests.
const measuredMax = 1 << 20

func (t *Topic[T]) putMeasured(m *measured) {
	if cap(m.payload) > measuredMax || cap(m.sizes) > measuredMax/8 {
		return
	}
	t.measures.Put(m)
}
