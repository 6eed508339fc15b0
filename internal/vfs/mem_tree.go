package vfs

import "maps"

// tree is one state of the file system: entries by directory path, contents
// by file id.
type tree struct {
	dirs   map[string]map[string]entry
	files  map[int]*content
	nextID int
}

type entry struct {
	dir  bool
	file int
}

func newTree() *tree {
	return &tree{dirs: map[string]map[string]entry{"": {}}, files: map[int]*content{}, nextID: 1}
}

func (t *tree) clone() *tree {
	c := &tree{
		dirs:   make(map[string]map[string]entry, len(t.dirs)),
		files:  make(map[int]*content, len(t.files)),
		nextID: t.nextID,
	}
	for path, entries := range t.dirs {
		c.dirs[path] = maps.Clone(entries)
	}
	for id, f := range t.files {
		c.files[id] = f.clone()
	}
	return c
}

// used returns the bytes of the files that have a name.
func (t *tree) used() (sum int64) {
	for _, entries := range t.dirs {
		for _, e := range entries {
			if !e.dir {
				sum += t.files[e.file].size
			}
		}
	}
	return sum
}

// apply carries out one operation.
func (t *tree) apply(r *record) {
	switch r.kind {
	case OpWrite, OpAllocate, OpTruncate:
		applyData(t.files[r.file], r)
	case OpSync, OpSyncDir:
	default:
		if r.kind == OpCreate {
			t.files[r.file] = newContent()
			t.nextID = max(t.nextID, r.file+1)
		}
		t.applyEntry(r)
	}
}

func applyData(c *content, r *record) {
	switch r.kind {
	case OpWrite:
		c.write(r.data, r.off)
	case OpAllocate:
		c.size = max(c.size, r.size)
	case OpTruncate:
		c.truncate(r.size)
	}
}

// applyEntry changes the entries of one directory. The directory may be absent
// where a power loss took it away.
func (t *tree) applyEntry(r *record) {
	entries := t.dirs[r.dir]
	if entries == nil {
		return
	}
	switch r.kind {
	case OpCreate:
		entries[r.name] = entry{file: r.file}
	case OpMkdir:
		entries[r.name] = entry{dir: true}
		if path := join(r.dir, r.name); t.dirs[path] == nil {
			t.dirs[path] = map[string]entry{} // else: its own entries reached the disk before it did
		}
	case OpRename:
		e := entries[r.name]
		delete(entries, r.name)
		entries[r.to] = e // also when it is the same name
	case OpRemove:
		if entries[r.name].dir {
			delete(t.dirs, join(r.dir, r.name))
		}
		delete(entries, r.name)
	}
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
