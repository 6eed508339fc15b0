package judge

// pageBits is the number of events that one page of a bitmap covers.
const pageBits = 1 << 16

// bitmap is a set of dense event numbers. Pages are made when first touched,
// so a set that stays empty costs nothing.
//
// Invariants: n is the number of set bits.
type bitmap struct {
	pages []*[pageBits / 64]uint64
	n     uint64
}

// set adds id and reports whether it was absent.
func (b *bitmap) set(id ID) bool {
	page := int(id / pageBits)
	for page >= len(b.pages) {
		b.pages = append(b.pages, nil)
	}
	if b.pages[page] == nil {
		b.pages[page] = new([pageBits / 64]uint64)
	}
	word, bit := &b.pages[page][id%pageBits/64], uint64(1)<<(id%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	b.n++
	return true
}

// has reports whether id is in the set.
func (b *bitmap) has(id ID) bool {
	page := int(id / pageBits)
	if page >= len(b.pages) || b.pages[page] == nil {
		return false
	}
	return b.pages[page][id%pageBits/64]&(1<<(id%64)) != 0
}

// word returns the 64 bits that begin at event number 64*i.
func (b *bitmap) word(i int) uint64 {
	page := i / (pageBits / 64)
	if page >= len(b.pages) || b.pages[page] == nil {
		return 0
	}
	return b.pages[page][i%(pageBits/64)]
}

// words returns how many words cover every set bit.
func (b *bitmap) words() int { return len(b.pages) * (pageBits / 64) }

// pagedKeys holds the key number of each event, four bytes each, in pages so
// that growth never copies.
type pagedKeys struct{ pages []*[pageBits]uint32 }

func (p *pagedKeys) set(id ID, key uint32) {
	page := int(id / pageBits)
	for page >= len(p.pages) {
		p.pages = append(p.pages, nil)
	}
	if p.pages[page] == nil {
		p.pages[page] = new([pageBits]uint32)
	}
	p.pages[page][id%pageBits] = key
}

// get returns the key of an event that was set; NoKey otherwise.
func (p *pagedKeys) get(id ID) uint32 {
	page := int(id / pageBits)
	if page >= len(p.pages) || p.pages[page] == nil {
		return NoKey
	}
	return p.pages[page][id%pageBits]
}
