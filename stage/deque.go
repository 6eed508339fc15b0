package stage

// deque is a growable ring of events in order. It grows to what it has to hold
// and keeps that much; its user bounds it. Used slots are cleared when T holds
// pointers.
//
// Invariants: 0 <= n <= len(buf); the events are buf[(head+i) % len(buf)] for i
// in [0, n).
type deque[T any] struct {
	buf    []T
	head   int
	n      int
	gone   int64 // events that were removed, ever
	clears bool
}

const minDeque = 16

func (d *deque[T]) len() int { return d.n }

// pushBack appends vs.
func (d *deque[T]) pushBack(vs []T) {
	if d.n+len(vs) > len(d.buf) {
		d.grow(d.n + len(vs))
	}
	at := d.wrap(d.n)
	copied := copy(d.buf[at:], vs)
	copy(d.buf, vs[copied:])
	d.n += len(vs)
}

func (d *deque[T]) grow(need int) {
	size := max(minDeque, len(d.buf))
	for size < need && size > 0 {
		size += size
	}
	if size < need {
		size = need // events of size 0, in numbers that doubling cannot reach
	}
	buf := make([]T, size)
	first, second := d.spans(d.n)
	copy(buf[copy(buf, first):], second)
	d.buf, d.head = buf, 0
}

// spans returns the first n events as at most two slices of the ring.
func (d *deque[T]) spans(n int) (first, second []T) {
	if over := n - (len(d.buf) - d.head); over > 0 {
		return d.buf[d.head:], d.buf[:over]
	}
	return d.buf[d.head : d.head+n], nil
}

// at returns event i, in [0, len).
func (d *deque[T]) at(i int) T { return d.buf[d.wrap(i)] }

// front returns the first event. There must be one.
func (d *deque[T]) front() *T { return &d.buf[d.head] }

// pop removes the first event and returns it. There must be one.
func (d *deque[T]) pop() T {
	v := *d.front()
	d.dropFront(1)
	return v
}

// popFront removes the first n events and appends them to dst. n is at most
// len.
func (d *deque[T]) popFront(dst []T, n int) []T {
	first, second := d.spans(n)
	dst = append(append(dst, first...), second...)
	d.dropFront(n)
	return dst
}

// dropFront removes the first n events. n is at most len.
func (d *deque[T]) dropFront(n int) {
	if n == 0 {
		return
	}
	if d.clears {
		first, second := d.spans(n)
		clear(first)
		clear(second)
	}
	d.head = d.wrap(n)
	d.n -= n
	d.gone += int64(n)
}

// wrap returns the slot of event i in [0, len(buf)]. The sum of head and i may
// exceed an int, with events of size 0.
func (d *deque[T]) wrap(i int) int {
	if over := i - (len(d.buf) - d.head); over >= 0 {
		return over
	}
	return d.head + i
}
