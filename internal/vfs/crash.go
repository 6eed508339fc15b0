package vfs

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

const (
	sector = 512
	// exhaustive is how many of the latest unsynced data operations are tried
	// in every combination.
	exhaustive = 6
	// randomImages is how many images per moment have everything chosen at
	// random.
	randomImages = 4
)

// Crashes says which images to build.
type Crashes struct {
	From int    // only moments after at least so many operations
	Seed uint64 // of the random choices
}

// Image is a file system as a power loss may have left it.
type Image struct {
	After int    // operations that had been carried out; see [Mem.Ops]
	Desc  string // what was lost, for messages
	FS    *Mem
}

// Images yields, for every moment of the recorded run, the images that a power
// loss at that moment may leave: all combinations of the latest six unsynced
// data operations with the older ones all kept or all lost, writes torn at
// sector boundaries, every prefix of a directory's unsynced entries, and some
// images with everything chosen at random. The run must have ended.
func (m *Mem) Images(c Crashes) iter.Seq[Image] {
	return func(yield func(Image) bool) {
		m.mu.Lock()
		d, log := newDisk(m.base), slices.Clone(m.log)
		m.mu.Unlock()
		rnd := rand.New(rand.NewPCG(c.Seed, 1))
		for n := 0; ; n++ {
			if n >= c.From {
				for ch := range d.choices(rnd) {
					if !yield(Image{After: n, Desc: ch.desc(n, log), FS: newMem(d.materialise(ch))}) {
						return
					}
				}
			}
			if n == len(log) {
				return
			}
			d.apply(&log[n])
		}
	}
}

// pending is a data operation that may not have reached the disk.
type pending struct {
	r      *record
	doomed bool // a sync that covered it failed: it stays in doubt for ever
	safe   bool // synced, and listed only because it lies on top of a doomed one
}

// disk is the durable state and what is in doubt on top of it.
type disk struct {
	safe    *tree // contents: durable; entries: durable
	data    []pending
	entries map[string][]*record // unsynced entry operations by directory
}

func newDisk(base *tree) *disk {
	return &disk{safe: base.clone(), entries: map[string][]*record{}}
}

func (d *disk) apply(r *record) {
	switch r.kind {
	case OpWrite, OpAllocate, OpTruncate:
		d.data = append(d.data, pending{r: r})
	case OpSync:
		d.sync(r)
	case OpSyncDir:
		for _, e := range d.entries[r.dir] {
			d.safe.applyEntry(e)
		}
		delete(d.entries, r.dir)
	default:
		if r.kind == OpCreate {
			d.safe.files[r.file] = newContent()
			d.safe.nextID = max(d.safe.nextID, r.file+1)
		}
		if r.kind == OpMkdir {
			// Its own entries can be synced before its entry in the parent is.
			d.safe.dirs[join(r.dir, r.name)] = map[string]entry{}
		}
		d.entries[r.dir] = append(d.entries[r.dir], r)
	}
}

func (d *disk) sync(r *record) {
	left, onTop := d.data[:0], false
	for _, p := range d.data {
		switch {
		case p.r.file != r.file:
			left = append(left, p)
		case p.doomed || p.safe:
			onTop = true
			left = append(left, p)
		case r.failed:
			p.doomed = true
			left = append(left, p)
		case onTop:
			p.safe = true
			left = append(left, p)
		default:
			applyData(d.safe.files[r.file], p.r)
		}
	}
	d.data = left
}

// choice is what survives of the operations in doubt.
type choice struct {
	data    []fate         // one per pending data operation
	entries map[string]int // how many unsynced entries of a directory survive
}

// fate is what became of a data operation: nil lost, else which sectors of it
// were kept, all when empty.
type fate *[]bool

var kept fate = &[]bool{}

func (c choice) desc(n int, log []record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "after %d operations", n)
	if n > 0 {
		fmt.Fprintf(&b, " (last: %s)", &log[n-1])
	}
	for _, f := range c.data {
		switch {
		case f == nil:
			b.WriteString(" lost")
		case len(*f) == 0:
			b.WriteString(" kept")
		default:
			b.WriteString(" torn")
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(c.entries)) {
		fmt.Fprintf(&b, " %s:%d entries", dir, c.entries[dir])
	}
	return b.String()
}

func (d *disk) choices(rnd *rand.Rand) iter.Seq[choice] {
	return func(yield func(choice) bool) {
		for _, c := range d.list(rnd) {
			if !yield(c) {
				return
			}
		}
	}
}

func (d *disk) list(rnd *rand.Rand) (out []choice) {
	none, all := map[string]int{}, map[string]int{}
	for dir, ops := range d.entries {
		none[dir], all[dir] = 0, len(ops)
	}
	dirChoices := []map[string]int{all}
	if len(all) > 0 {
		dirChoices = append(dirChoices, none)
	}
	recent := min(len(d.data), exhaustive)
	older := len(d.data) - recent
	for _, entries := range dirChoices {
		for mask := range 1 << recent {
			for _, old := range []fate{kept, nil}[:1+min(older, 1)] {
				data := make([]fate, len(d.data))
				for i := range data {
					if i < older {
						data[i] = old
					} else if mask>>(i-older)&1 == 1 {
						data[i] = kept
					}
				}
				out = append(out, choice{data, entries})
			}
		}
	}
	out = append(out, d.prefixes(all)...)
	for i := older; i < len(d.data); i++ {
		out = append(out, d.tears(i, all, rnd)...)
	}
	if len(d.data) > 1 || len(d.entries) > 1 {
		for range randomImages {
			out = append(out, d.random(rnd))
		}
	}
	return out
}

// prefixes loses the later entries of one directory at a time.
func (d *disk) prefixes(all map[string]int) (out []choice) {
	for _, dir := range slices.Sorted(maps.Keys(d.entries)) {
		for n := range len(d.entries[dir]) {
			entries := maps.Clone(all)
			entries[dir] = n
			for _, f := range []fate{kept, nil} {
				out = append(out, choice{slices.Repeat([]fate{f}, len(d.data)), entries})
			}
		}
	}
	return out
}

// tears tears the write i with the others kept and with the others lost.
func (d *disk) tears(i int, all map[string]int, rnd *rand.Rand) (out []choice) {
	r := d.data[i].r
	n := sectors(r)
	if n < 2 {
		return nil
	}
	first, last, some := make([]bool, n), make([]bool, n), make([]bool, n)
	first[0] = true
	for s := range n {
		last[s] = s > 0
		some[s] = rnd.IntN(2) == 0
	}
	for _, torn := range [][]bool{first, last, some} {
		for _, f := range []fate{kept, nil} {
			data := slices.Repeat([]fate{f}, len(d.data))
			data[i] = &torn
			out = append(out, choice{data, all})
		}
	}
	return out
}

func (d *disk) random(rnd *rand.Rand) choice {
	c := choice{data: make([]fate, len(d.data)), entries: map[string]int{}}
	for i, p := range d.data {
		switch rnd.IntN(3) {
		case 0:
			c.data[i] = kept
		case 1:
			if n := sectors(p.r); n > 1 {
				torn := make([]bool, n)
				for s := range torn {
					torn[s] = rnd.IntN(2) == 0
				}
				c.data[i] = &torn
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(d.entries)) {
		c.entries[dir] = rnd.IntN(len(d.entries[dir]) + 1)
	}
	return c
}

// sectors returns how many disk sectors a write touches; 0 for an operation
// that cannot be torn.
func sectors(r *record) int {
	if r.kind != OpWrite || len(r.data) == 0 {
		return 0
	}
	return int((r.off+int64(len(r.data))-1)/sector - r.off/sector + 1)
}

// materialise builds the state that is left.
func (d *disk) materialise(c choice) *tree {
	t := d.safe.clone()
	for i, f := range c.data {
		r := d.data[i].r
		if d.data[i].safe {
			f = kept
		}
		if f == nil {
			continue
		}
		if len(*f) == 0 {
			applyData(t.files[r.file], r)
			continue
		}
		for s, keep := range *f {
			if keep {
				part := (r.off/sector + int64(s)) * sector
				from, to := max(part, r.off), min(part+sector, r.off+int64(len(r.data)))
				t.files[r.file].write(r.data[from-r.off:to-r.off], from)
			}
		}
	}
	for dir, n := range c.entries {
		for _, e := range d.entries[dir][:n] {
			t.applyEntry(e)
		}
	}
	t.prune()
	return t
}

// prune drops what can no longer be reached from the root.
func (t *tree) prune() {
	reached := map[string]bool{"": true}
	files := map[int]bool{}
	var walk func(dir string)
	walk = func(dir string) {
		for name, e := range t.dirs[dir] {
			if e.dir {
				reached[join(dir, name)] = true
				walk(join(dir, name))
			} else {
				files[e.file] = true
			}
		}
	}
	walk("")
	maps.DeleteFunc(t.dirs, func(dir string, _ map[string]entry) bool { return !reached[dir] })
	maps.DeleteFunc(t.files, func(id int, _ *content) bool { return !files[id] })
}
