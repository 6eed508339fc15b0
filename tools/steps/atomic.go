package steps

// The types below stand in for those of sync/atomic. Each call is one step: it
// waits until the run lets its goroutine go on. One goroutine runs at a time, so
// what they hold needs no further care.

// Integer is what Uint64 and the like hold.
type Integer interface{ ~int64 | ~uint32 | ~uint64 }

// Number is an atomic number.
type Number[T Integer] struct{ v T }

// The numbers of sync/atomic that code under steps may use.
type (
	Int64  = Number[int64]
	Uint32 = Number[uint32]
	Uint64 = Number[uint64]
)

// Load returns the value.
func (n *Number[T]) Load() T { step(); return n.v }

// Store sets the value.
func (n *Number[T]) Store(v T) { step(); n.v = v }

// Add adds to the value and returns the new one.
func (n *Number[T]) Add(d T) T { step(); n.v += d; return n.v }

// Swap sets the value and returns the old one.
func (n *Number[T]) Swap(v T) (old T) { step(); old, n.v = n.v, v; return old }

// Or sets bits of the value and returns the old one.
func (n *Number[T]) Or(mask T) (old T) { step(); old = n.v; n.v |= mask; return old }

// CompareAndSwap sets the value to v if it is old, and reports whether it was.
func (n *Number[T]) CompareAndSwap(old, v T) bool {
	step()
	if n.v != old {
		return false
	}
	n.v = v
	return true
}

// Bool is an atomic flag.
type Bool struct{ v bool }

// Load returns the flag.
func (b *Bool) Load() bool { step(); return b.v }

// Store sets the flag.
func (b *Bool) Store(v bool) { step(); b.v = v }

// Swap sets the flag and returns the old one.
func (b *Bool) Swap(v bool) (old bool) { step(); old, b.v = b.v, v; return old }
