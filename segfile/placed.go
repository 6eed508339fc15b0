package segfile

import (
	"io"

	"github.com/penstock/penstock/internal/vfs"
)

// placed is the file system of a topic that is open. Files that are open stay what
// they are when somebody moves the topic's directory away, but names do not: where
// another topic was made in its place, a new segment would lie among the files of
// that one, with everything that is acknowledged from then on, and what is trimmed
// would be deleted there. So no name is made, changed or removed before the place
// was looked at (ADR 0107).
type placed struct {
	vfs.FS
	lock vfs.Placed
}

// inPlace returns fsys with that look, if the lock can tell.
func inPlace(fsys vfs.FS, lock io.Closer) vfs.FS {
	if l, ok := lock.(vfs.Placed); ok {
		return &placed{fsys, l}
	}
	return fsys
}

func (p *placed) Create(name string) (vfs.File, error) {
	if err := p.lock.InPlace(); err != nil {
		return nil, err
	}
	return p.FS.Create(name)
}

func (p *placed) Mkdir(name string) error {
	if err := p.lock.InPlace(); err != nil {
		return err
	}
	return p.FS.Mkdir(name)
}

func (p *placed) Rename(from, to string) error {
	if err := p.lock.InPlace(); err != nil {
		return err
	}
	return p.FS.Rename(from, to)
}

func (p *placed) Remove(name string) error {
	if err := p.lock.InPlace(); err != nil {
		return err
	}
	return p.FS.Remove(name)
}
