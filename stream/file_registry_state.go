package stream

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock"
)

// registryMagic begins the file of subscriptions; docs/format.md fixes the
// rest.
const registryMagic = "PNSTREG1"

// registryState is the content of the file.
type registryState struct {
	revision uint64
	mappers  map[string]string
	records  []storedRecord
}

type storedRecord struct {
	SubscriptionRecord
	faulted bool
}

func (s *registryState) add(e *registryEntry) {
	for _, r := range e.subs {
		s.records = append(s.records, storedRecord{r, false})
	}
	for _, r := range e.faulted {
		s.records = append(s.records, storedRecord{r, true})
	}
}

// storable refuses a record whose texts are too long to be stored.
func storable(r SubscriptionRecord) error {
	for _, f := range []struct{ name, text string }{
		{"Provider", r.Stream.Provider}, {"Namespace", r.Stream.Namespace}, {"Key", r.Stream.Key}, {"Name", r.Name}, {"Filter", r.Filter},
	} {
		if len(f.text) > penstock.MaxFieldBytes {
			return fmt.Errorf("%s: %d bytes, at most %d: %w", f.name, len(f.text), penstock.MaxFieldBytes, penstock.ErrTooLarge)
		}
	}
	return nil
}

// encode returns the content of the file, the same for equal states.
func (s *registryState) encode() ([]byte, error) {
	slices.SortFunc(s.records, func(a, b storedRecord) int {
		return cmp.Or(strings.Compare(a.Stream.Provider, b.Stream.Provider), strings.Compare(a.Stream.Namespace, b.Stream.Namespace),
			strings.Compare(a.Stream.Key, b.Stream.Key), strings.Compare(a.Name, b.Name))
	})
	b := append([]byte(nil), registryMagic...)
	b = binary.LittleEndian.AppendUint64(b, s.revision)
	text := func(t string) { b = append(binary.AppendUvarint(b, uint64(len(t))), t...) }
	b = binary.AppendUvarint(b, uint64(len(s.mappers)))
	for _, p := range slices.Sorted(maps.Keys(s.mappers)) {
		text(p)
		text(s.mappers[p])
	}
	b = binary.AppendUvarint(b, uint64(len(s.records)))
	for _, r := range s.records {
		flags := byte(0)
		if r.faulted {
			flags = 1
		}
		b = append(b, flags)
		for _, t := range []string{r.Stream.Provider, r.Stream.Namespace, r.Stream.Key, r.Name, r.Filter} {
			text(t)
		}
		b = binary.AppendUvarint(b, r.Incarnation)
		b = binary.AppendUvarint(b, r.Attached)
	}
	if len(b) > maxStoreFile-4 {
		return nil, fmt.Errorf("%d subscriptions would take %d bytes, at most %d: %w", len(s.records), len(b), maxStoreFile-4, penstock.ErrTooLarge)
	}
	return b, nil
}

// decode reads the content of the file, whose checksum was right.
func (s *registryState) decode(b []byte) error {
	rest, ok := strings.CutPrefix(string(b), registryMagic)
	if !ok {
		if strings.HasPrefix(string(b), registryMagic[:7]) {
			return fmt.Errorf("version %q: %w", b[7:8], penstock.ErrUnsupported)
		}
		return fmt.Errorf("begins with %q: %w", b[:min(len(b), 8)], penstock.ErrCorrupt)
	}
	d := stateDecoder{b: rest}
	s.revision = d.u64()
	for range d.count(2) {
		p := d.text()
		s.mappers[p] = d.text()
	}
	for range d.count(8) {
		var r storedRecord
		flags := d.byte()
		r.faulted = flags == 1
		if flags > 1 {
			d.fail(fmt.Errorf("flags %#x: %w", flags, penstock.ErrUnsupported))
		}
		for _, t := range []*string{&r.Stream.Provider, &r.Stream.Namespace, &r.Stream.Key, &r.Name, &r.Filter} {
			*t = d.text()
		}
		r.Incarnation, r.Attached = d.uvarint(), d.uvarint()
		if d.err == nil {
			s.records = append(s.records, r)
		}
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail(fmt.Errorf("%d bytes behind the end: %w", len(d.b), penstock.ErrCorrupt))
	}
	return d.err
}

// stateDecoder reads the files of a store; its error is sticky.
type stateDecoder struct {
	b   string
	err error
}

var errCut = errors.New("cut short")

func (d *stateDecoder) fail(err error) {
	if d.err == nil {
		d.err, d.b = err, ""
	}
}

func (d *stateDecoder) cut() { d.fail(fmt.Errorf("%w: %w", penstock.ErrCorrupt, errCut)) }

func (d *stateDecoder) take(n int) string {
	if n > len(d.b) {
		d.cut()
		return ""
	}
	t := d.b[:n]
	d.b = d.b[n:]
	return t
}

func (d *stateDecoder) byte() byte {
	if t := d.take(1); t != "" {
		return t[0]
	}
	return 0
}

func (d *stateDecoder) u64() uint64 {
	if t := d.take(8); t != "" {
		return binary.LittleEndian.Uint64([]byte(t))
	}
	return 0
}

func (d *stateDecoder) uvarint() uint64 {
	v, n := binary.Uvarint([]byte(d.b[:min(len(d.b), binary.MaxVarintLen64)]))
	if n <= 0 {
		d.cut()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// count reads the number of entries that take at least least bytes each.
func (d *stateDecoder) count(least int) int {
	n := d.uvarint()
	if n > uint64(len(d.b)/least) {
		d.cut()
		return 0
	}
	return int(n)
}

func (d *stateDecoder) text() string {
	n := d.uvarint()
	if n > penstock.MaxFieldBytes {
		d.cut()
		return ""
	}
	return d.take(int(n))
}
