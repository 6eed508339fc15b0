package vfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"
)

// memFile is a handle on a file of a Mem.
type memFile struct {
	m      *Mem
	id     int
	name   string
	write  bool
	life   int
	closed atomic.Bool
}

// alive runs with m.mu held.
func (f *memFile) alive() error {
	if f.closed.Load() || f.life != f.m.life {
		return fs.ErrClosed
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if fault := f.m.before(OpRead, f.name, off, int64(len(p))); fault.Err != nil {
		return 0, pathError(OpRead, f.name, fault.Err)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.alive(); err != nil {
		return 0, pathError(OpRead, f.name, err)
	}
	n := f.m.tree.files[f.id].read(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// change runs an operation that alters the file. With mu held, build gives the
// record to apply, or an error; a record that comes with an error is applied
// too.
func (f *memFile) change(kind Kind, off, n int64, build func(Fault) (record, error)) error {
	fault := f.m.before(kind, f.name, off, n)
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	err := f.alive()
	if err == nil && !f.write && kind != OpSync {
		err = fs.ErrPermission
	}
	if err == nil {
		var r record
		if r, err = build(fault); r.kind != "" {
			r.file = f.id
			f.m.apply(r)
		}
	}
	return pathError(kind, f.name, err)
}

// room returns how far the file may grow towards size, and whether that is
// all the way. It runs with mu held.
func (f *memFile) room(size int64) (int64, error) {
	now := f.m.tree.files[f.id].size
	if f.m.space == 0 || size <= now {
		return size, nil
	}
	if free := max(f.m.space-f.m.tree.used(), 0); size > now+free {
		return now + free, ErrNoSpace
	}
	return size, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	kept := 0
	err := f.change(OpWrite, off, int64(len(p)), func(fault Fault) (record, error) {
		kept = len(p)
		end, err := f.room(off + int64(len(p)))
		if err != nil {
			kept = int(max(end-off, 0))
		}
		if fault.Err != nil {
			kept, err = min(kept, fault.Keep), fault.Err
		}
		if kept == 0 {
			return record{}, err
		}
		return record{kind: OpWrite, off: off, data: bytes.Clone(p[:kept])}, err
	})
	if err != nil && kept == len(p) {
		kept = 0 // a failed handle: nothing was written
	}
	return kept, err
}

func (f *memFile) Allocate(size int64) error {
	return f.change(OpAllocate, 0, size, func(fault Fault) (record, error) {
		now := f.m.tree.files[f.id].size
		end, err := f.room(size)
		if fault.Err != nil {
			end, err = min(end, now+int64(fault.Keep)), fault.Err
		}
		if end <= now {
			return record{}, err
		}
		return record{kind: OpAllocate, size: end}, err
	})
}

func (f *memFile) Truncate(size int64) error {
	return f.change(OpTruncate, 0, size, func(fault Fault) (record, error) {
		if fault.Err != nil {
			return record{}, fault.Err
		}
		return record{kind: OpTruncate, size: size}, nil
	})
}

func (f *memFile) Sync() error {
	return f.change(OpSync, 0, 0, func(fault Fault) (record, error) {
		return record{kind: OpSync, failed: fault.Err != nil}, fault.Err
	})
}

func (f *memFile) Size() (int64, error) {
	if fault := f.m.before(OpSize, f.name, 0, 0); fault.Err != nil {
		return 0, pathError(OpSize, f.name, fault.Err)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.alive(); err != nil {
		return 0, pathError(OpSize, f.name, err)
	}
	return f.m.tree.files[f.id].size, nil
}

// Data implements [File]. Of what no Sync covers it knows nothing, which is the
// least that is promised.
func (f *memFile) Data(off int64) (from, to int64, err error) {
	if fault := f.m.before(OpData, f.name, off, 0); fault.Err != nil {
		return 0, 0, pathError(OpData, f.name, fault.Err)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.alive(); err != nil {
		return 0, 0, pathError(OpData, f.name, err)
	}
	c := f.m.tree.files[f.id]
	known := func(i int64) bool { return c.pages[i] != nil && !f.m.unsynced(f.id, i) }
	from, to = min(off, c.size), c.size
	for from < c.size && !known(from/pageSize) {
		from = min((from/pageSize+1)*pageSize, c.size)
	}
	for i := from / pageSize; i*pageSize < c.size; i++ {
		if !known(i) {
			return from, max(from, i*pageSize), nil
		}
	}
	return from, to, nil
}

// unsynced reports whether no Sync has covered anything in page i of a file. It
// runs with m.mu held.
func (m *Mem) unsynced(file int, i int64) bool {
	synced := false
	for _, r := range slices.Backward(m.log) {
		switch {
		case r.file != file:
		case r.kind == OpSync && !r.failed:
			synced = true
		case r.kind == OpTruncate && r.size <= i*pageSize:
			return true // what was there is gone
		case r.kind == OpWrite && synced && r.off < (i+1)*pageSize && r.off+int64(len(r.data)) > i*pageSize:
			return false
		}
	}
	base := m.base.files[file]
	return base == nil || base.pages[i] == nil
}

func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return pathError("close", f.name, fs.ErrClosed)
	}
	return nil
}

// record is one operation of the log of a Mem.
type record struct {
	kind   Kind
	dir    string // of an entry operation
	name   string
	to     string // new name of a rename
	file   int    // id; of an entry operation: the file created
	off    int64
	data   []byte
	size   int64
	failed bool // a sync that failed
}

func (r *record) String() string {
	switch r.kind {
	case OpWrite:
		return fmt.Sprintf("write file %d [%d, %d)", r.file, r.off, r.off+int64(len(r.data)))
	case OpAllocate, OpTruncate:
		return fmt.Sprintf("%s file %d to %d", r.kind, r.file, r.size)
	case OpSync:
		return fmt.Sprintf("sync file %d failed=%v", r.file, r.failed)
	case OpRename:
		return fmt.Sprintf("rename %s/%s to %s", r.dir, r.name, r.to)
	}
	return fmt.Sprintf("%s %s/%s", r.kind, r.dir, r.name)
}
