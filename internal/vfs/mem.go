package vfs

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Kind is a kind of operation.
type Kind string

// The operations of [FS] and [File] as [Mem] counts them.
const (
	OpCreate   Kind = "create"
	OpOpen     Kind = "open"
	OpMkdir    Kind = "mkdir"
	OpRename   Kind = "rename"
	OpRemove   Kind = "remove"
	OpSyncDir  Kind = "syncdir"
	OpList     Kind = "list"
	OpStat     Kind = "stat"
	OpLock     Kind = "lock"
	OpRead     Kind = "read"
	OpWrite    Kind = "write"
	OpAllocate Kind = "allocate"
	OpTruncate Kind = "truncate"
	OpSync     Kind = "sync"
	OpSize     Kind = "size"
	OpData     Kind = "data"
	OpMap      Kind = "map"
	OpStore    Kind = "store"
)

// Op is one operation that is about to happen.
type Op struct {
	N    int // 1 for the first operation after SetFault
	Kind Kind
	Name string
	Off  int64 // of a read or a write
	Len  int64 // of a read or a write; the size of an allocation or truncation
}

// Fault is what is to happen instead. The zero Fault lets the operation pass.
type Fault struct {
	Err  error
	Keep int // bytes of a write, or of growth by Allocate, that take effect in spite of Err
}

// Mem is a file system in memory. See the package comment for what it does
// on power loss.
//
// Invariants: log holds every operation that changed something, in the order
// in which they took effect; replaying it from base gives tree. mu is held for
// no longer than one operation and never while the fault function runs.
type Mem struct {
	mu    sync.Mutex
	base  *tree // durable state when recording began
	tree  *tree // what the running process sees
	log   []record
	locks map[string]bool
	life  int   // bumped by Kill: older handles are dead
	space int64 // bytes of all files together; 0 = no limit
	fault func(Op) Fault
	count int
}

// NewMem returns an empty file system that holds the root directory. Paths
// with and without a leading separator mean the same.
func NewMem() *Mem { return newMem(newTree()) }

func newMem(base *tree) *Mem {
	return &Mem{base: base, tree: base.clone(), locks: map[string]bool{}}
}

// Clone returns a file system of its own with the same content, all of it
// durable, and without the locks, the faults and the limit.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return newMem(m.tree.clone())
}

// SetFault makes fn decide about each operation from now on; nil ends that. It
// runs without a lock, on the goroutine of the operation, and may block.
func (m *Mem) SetFault(fn func(Op) Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault, m.count = fn, 0
}

// SetSpace limits the sum of all file sizes; 0 ends that. Like ext4, an
// allocation that fails leaves the file grown as far as there was room.
func (m *Mem) SetSpace(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space = bytes
}

// Used returns the sum of all file sizes in bytes.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tree.used()
}

// Ops returns how many operations that change something took effect so far.
// What a workload was promised before it reads n here must be found in each
// [Image] with After >= n.
func (m *Mem) Ops() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.log)
}

// Kill ends the life of the process that uses the file system, as kill -9
// does: every open file is dead, every lock is free, and what was written
// stays, synced or not.
func (m *Mem) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	clear(m.locks)
}

// before consults the fault function.
func (m *Mem) before(kind Kind, name string, off, n int64) Fault {
	m.mu.Lock()
	m.count++
	op, fn := Op{N: m.count, Kind: kind, Name: name, Off: off, Len: n}, m.fault
	m.mu.Unlock()
	if fn == nil {
		return Fault{}
	}
	return fn(op)
}

// apply records the operation and carries it out. It runs with mu held.
func (m *Mem) apply(r record) {
	m.log = append(m.log, r)
	m.tree.apply(&r)
}

func clean(name string) string {
	return strings.TrimPrefix(filepath.ToSlash(filepath.Clean("/"+name)), "/")
}

func split(name string) (dir, base string) {
	name = clean(name)
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i], name[i+1:]
	}
	return "", name
}

func pathError(kind Kind, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: string(kind), Path: name, Err: err}
}

// entryOp runs an operation on a directory entry: check decides with mu held
// and gives the record to apply.
func (m *Mem) entryOp(kind Kind, name string, check func(dir, base string) (record, error)) error {
	if f := m.before(kind, name, 0, 0); f.Err != nil {
		return pathError(kind, name, f.Err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base := split(name)
	if m.tree.dirs[dir] == nil {
		return pathError(kind, name, fs.ErrNotExist)
	}
	r, err := check(dir, base)
	if err != nil {
		return pathError(kind, name, err)
	}
	r.kind, r.dir, r.name = kind, dir, base
	m.apply(r)
	return nil
}

// Create implements [FS].
func (m *Mem) Create(name string) (File, error) {
	var id int
	err := m.entryOp(OpCreate, name, func(dir, base string) (record, error) {
		if _, taken := m.tree.dirs[dir][base]; taken {
			return record{}, fs.ErrExist
		}
		id = m.tree.nextID
		return record{file: id}, nil
	})
	if err != nil {
		return nil, err
	}
	return m.handle(id, name, true), nil
}

func (m *Mem) handle(id int, name string, write bool) File {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memFile{m: m, id: id, name: name, write: write, life: m.life}
}

// lookup returns the id of the regular file. It runs with mu held.
func (m *Mem) lookup(name string) (int, error) {
	dir, base := split(name)
	e, ok := m.tree.dirs[dir][base]
	switch {
	case !ok && m.tree.dirs[clean(name)] == nil:
		return 0, fs.ErrNotExist
	case !ok || e.dir:
		return 0, ErrNotRegular
	}
	return e.file, nil
}

// Open implements [FS].
func (m *Mem) Open(name string, write bool) (File, error) {
	if f := m.before(OpOpen, name, 0, 0); f.Err != nil {
		return nil, pathError(OpOpen, name, f.Err)
	}
	m.mu.Lock()
	id, err := m.lookup(name)
	m.mu.Unlock()
	if err != nil {
		return nil, pathError(OpOpen, name, err)
	}
	return m.handle(id, name, write), nil
}

// Mkdir implements [FS].
func (m *Mem) Mkdir(name string) error {
	return m.entryOp(OpMkdir, name, func(dir, base string) (record, error) {
		if _, taken := m.tree.dirs[dir][base]; taken || base == "" {
			return record{}, fs.ErrExist
		}
		return record{}, nil
	})
}

// Rename implements [FS].
func (m *Mem) Rename(from, to string) error {
	return m.entryOp(OpRename, from, func(dir, base string) (record, error) {
		toDir, toBase := split(to)
		if toDir != dir {
			return record{}, fs.ErrInvalid
		}
		if _, err := m.lookup(from); err != nil {
			return record{}, err
		}
		if e, ok := m.tree.dirs[dir][toBase]; ok && e.dir {
			return record{}, fs.ErrExist
		}
		return record{to: toBase}, nil
	})
}

// Remove implements [FS].
func (m *Mem) Remove(name string) error {
	return m.entryOp(OpRemove, name, func(dir, base string) (record, error) {
		e, ok := m.tree.dirs[dir][base]
		switch {
		case !ok:
			return record{}, fs.ErrNotExist
		case e.dir && len(m.tree.dirs[clean(name)]) > 0:
			return record{}, errNotEmpty
		}
		return record{}, nil
	})
}

var errNotEmpty = errors.New("directory not empty")

// SyncDir implements [FS].
func (m *Mem) SyncDir(name string) error {
	f := m.before(OpSyncDir, name, 0, 0)
	if f.Err != nil {
		return pathError(OpSyncDir, name, f.Err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := clean(name)
	if m.tree.dirs[dir] == nil {
		return pathError(OpSyncDir, name, fs.ErrNotExist)
	}
	m.apply(record{kind: OpSyncDir, dir: dir})
	return nil
}

// List implements [FS].
func (m *Mem) List(name string) ([]string, error) {
	if f := m.before(OpList, name, 0, 0); f.Err != nil {
		return nil, pathError(OpList, name, f.Err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	entries := m.tree.dirs[clean(name)]
	if entries == nil {
		return nil, pathError(OpList, name, fs.ErrNotExist)
	}
	return slices.Sorted(maps.Keys(entries)), nil
}

// Stat implements [FS].
func (m *Mem) Stat(name string) (Info, error) {
	if f := m.before(OpStat, name, 0, 0); f.Err != nil {
		return Info{}, pathError(OpStat, name, f.Err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tree.dirs[clean(name)] != nil {
		return Info{Dir: true}, nil
	}
	id, err := m.lookup(name)
	if err != nil {
		return Info{}, pathError(OpStat, name, err)
	}
	return Info{Size: m.tree.files[id].size}, nil
}

// Lock implements [FS]. The note is kept as the content of the file.
func (m *Mem) Lock(name, note string) (io.Closer, error) {
	if f := m.before(OpLock, name, 0, 0); f.Err != nil {
		return nil, pathError(OpLock, name, f.Err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := clean(name)
	dir, base := split(name)
	if m.tree.dirs[dir] == nil {
		return nil, pathError(OpLock, name, fs.ErrNotExist)
	}
	if _, ok := m.tree.dirs[dir][base]; !ok {
		m.apply(record{kind: OpCreate, dir: dir, name: base, file: m.tree.nextID})
	}
	id, err := m.lookup(name)
	if err != nil {
		return nil, pathError(OpLock, name, err)
	}
	if m.locks[key] {
		held := make([]byte, min(m.tree.files[id].size, maxNote))
		m.tree.files[id].read(held, 0)
		return nil, &HeldError{Note: string(held)}
	}
	m.locks[key] = true
	m.apply(record{kind: OpTruncate, file: id})
	m.apply(record{kind: OpWrite, file: id, data: []byte(note)})
	return &memLock{m: m, key: key, life: m.life}, nil
}

type memLock struct {
	m    *Mem
	key  string
	life int
	once sync.Once
}

func (l *memLock) Close() error {
	l.once.Do(func() {
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		if l.life == l.m.life {
			delete(l.m.locks, l.key)
		}
	})
	return nil
}
