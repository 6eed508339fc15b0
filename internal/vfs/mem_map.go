package vfs

import (
	"bytes"
	"io/fs"
	"sync/atomic"
)

// MemType is the name of a [Mem].
const MemType = "memory"

// Type implements [FS].
func (m *Mem) Type(string) (string, error) { return MemType, nil }

// memMapping stores into a file of a Mem. A store is recorded like a write: what
// is lost by a power loss is lost alike.
type memMapping struct {
	f        *memFile
	from, to int64
	closed   atomic.Bool
}

// Map implements [File].
func (f *memFile) Map(off, n int64) (Mapping, error) {
	if fault := f.m.before(OpMap, f.name, off, n); fault.Err != nil {
		return nil, pathError(OpMap, f.name, fault.Err)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.alive(); err != nil {
		return nil, pathError(OpMap, f.name, err)
	}
	if off < 0 || n <= 0 || !f.write || off+n > f.m.tree.files[f.id].size {
		return nil, pathError(OpMap, f.name, fs.ErrInvalid)
	}
	return &memMapping{f: f, from: off, to: off + n}, nil
}

// Store implements [Mapping]. What lies behind the end of the file, or was never
// written, has no disk space: it faults, as on a full disk.
func (m *memMapping) Store(p []byte, off int64) error {
	f := m.f
	fault := f.m.before(OpStore, f.name, off, int64(len(p)))
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	switch {
	case m.closed.Load() || f.life != f.m.life: // a mapping outlives its handle, not its process
		return pathError(OpStore, f.name, fs.ErrClosed)
	case off < m.from || off+int64(len(p)) > m.to:
		return pathError(OpStore, f.name, fs.ErrInvalid)
	}
	kept, err := f.m.tree.files[f.id].reachable(off, len(p)), fault.Err
	if err != nil {
		kept = min(kept, fault.Keep)
	} else if kept < len(p) {
		err = ErrFault
	}
	if kept > 0 {
		f.m.apply(record{kind: OpWrite, file: f.id, off: off, data: bytes.Clone(p[:kept])})
	}
	return pathError(OpStore, f.name, err)
}

// reachable returns how many of n bytes at off lie, one after the other, within
// the file and in pages that were written once.
func (c *content) reachable(off int64, n int) int {
	done := int64(0)
	for done < int64(n) {
		at := off + done
		if at >= c.size || c.pages[at/pageSize] == nil {
			break
		}
		done += min(pageSize-at%pageSize, c.size-at)
	}
	return int(min(done, int64(n)))
}

// Close implements [Mapping].
func (m *memMapping) Close() error {
	if m.closed.Swap(true) {
		return pathError("unmap", m.f.name, fs.ErrClosed)
	}
	return nil
}
