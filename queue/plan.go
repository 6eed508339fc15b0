package queue

import "slices"

// plan says which events of a slice go to which partition. It is used again
// and again; one goroutine at a time.
//
// Invariant after group: of(p) holds the indices of the events for partition
// p, rising, so that input order is kept inside a partition (BQ-34).
type plan struct {
	target []int32 // partition per event
	ends   []int32 // per partition: one past its last place in order
	order  []int32 // event indices, grouped by partition

	// With turns set, what stands for partition p goes to (first+p) mod P.
	// first is -1 until the turns are taken.
	turns bool
	first int
}

// begin makes the plan ready for n events over parts partitions.
func (p *plan) begin(n, parts int) {
	p.target = slices.Grow(p.target[:0], n)[:n]
	p.order = slices.Grow(p.order[:0], n)[:n]
	p.ends = slices.Grow(p.ends[:0], parts)[:parts]
	clear(p.ends)
	p.turns, p.first = false, 0
}

// set sends event i to a partition.
func (p *plan) set(i, partition int) {
	p.target[i] = int32(partition)
	p.ends[partition]++
}

// group sorts the events by partition, keeping their order.
func (p *plan) group() {
	sum := int32(0)
	for i, n := range p.ends {
		p.ends[i] = sum // where the partition begins; moved to its end below
		sum += n
	}
	for i, partition := range p.target {
		p.order[p.ends[partition]] = int32(i)
		p.ends[partition]++
	}
}

// of returns the indices of the events for a partition. Valid until begin.
func (p *plan) of(partition int) []int32 {
	from := int32(0)
	if partition > 0 {
		from = p.ends[partition-1]
	}
	return p.order[from:p.ends[partition]]
}
