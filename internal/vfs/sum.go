package vfs

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
)

var sumSeed = maphash.MakeSeed()

// Sum returns a checksum of all names and contents. File systems of one process
// with equal sums are the same to whoever opens them, but for a chance of 1 in
// 2^64. Many images of a power loss are: what one of them lost, another had not
// written yet.
func (m *Mem) Sum() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var h maphash.Hash
	h.SetSeed(sumSeed)
	number := func(n int64) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		_, _ = h.Write(b[:]) // never fails
	}
	text := func(s string) {
		number(int64(len(s)))
		_, _ = h.WriteString(s) // never fails
	}
	t := m.tree
	for _, dir := range slices.Sorted(maps.Keys(t.dirs)) {
		text(dir)
		number(int64(len(t.dirs[dir])))
		for _, name := range slices.Sorted(maps.Keys(t.dirs[dir])) {
			text(name)
			e := t.dirs[dir][name]
			if e.dir {
				number(-1)
				continue
			}
			f := t.files[e.file]
			number(f.size)
			number(int64(len(f.pages)))
			for _, i := range slices.Sorted(maps.Keys(f.pages)) {
				number(i)
				_, _ = h.Write(f.pages[i].data[:]) // never fails
			}
		}
	}
	return h.Sum64()
}
