package penstock

import "strconv"

// Offset is the number of an event inside one partition: the first event ever
// appended has offset 0. Offsets count events, never bytes. Ranges of offsets
// are half-open everywhere: [from, to).
type Offset uint64

// String returns the offset in decimal.
func (o Offset) String() string { return strconv.FormatUint(uint64(o), 10) }

// Bytes is a size in bytes. It is a type of its own so that a size can never
// be taken for a number of events.
type Bytes int64

// Binary multiples of a byte.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// String returns the size with the largest binary unit that divides it, for
// example "64MiB" or "1500B".
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}
