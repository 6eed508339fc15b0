package segfile

import (
	"io"

	"github.com/penstock/penstock/internal/vfs"
)

// placed is the file system of a topic that is open. Files that are open stay what
// they are when somebody moves the topic's directory away, but names do not: where
// another topic was made in its place, a new segment would lie among the files of
// that one, with everything that is acknowledged from then on, what is trimmed would
// be deleted there, and what is read would look like damage. So nothing is looked up,
// opened, made, changed or removed by its name before the place was looked at
// (ADR 0107). Only a directory is synced without: what was changed in it, just before,
// was looked at.
type placed struct {
	vfs.FS
	lock vfs.Placed
}

// inPlace returns fsys with that look, if the lock can tell. One that finds its
// directory in another place at once does not tell: there are file systems that give
// a directory another number each time.
func inPlace(fsys vfs.FS, lock io.Closer) vfs.FS {
	if l, ok := lock.(vfs.Placed); ok && l.InPlace() == nil {
		return &placed{fsys, l}
	}
	return fsys
}

// Files returns the file system of the configuration as the log uses it, for what
// else lies in the topic's directory. Where it can be told, a name is refused with
// an error that matches vfs.ErrMoved while that directory is not in its place (ADR
// 0107). It works until the log is closed, and is safe for concurrent use.
func (l *Log) Files() vfs.FS { return l.cfg.FS }

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

func (p *placed) Open(name string, write bool) (vfs.File, error) {
	if err := p.lock.InPlace(); err != nil {
		return nil, err
	}
	return p.FS.Open(name, write)
}

func (p *placed) List(name string) ([]string, error) {
	if err := p.lock.InPlace(); err != nil {
		return nil, err
	}
	return p.FS.List(name)
}

func (p *placed) Stat(name string) (vfs.Info, error) {
	if err := p.lock.InPlace(); err != nil {
		return vfs.Info{}, err
	}
	return p.FS.Stat(name)
}

func (p *placed) Lock(name, note string) (io.Closer, error) {
	if err := p.lock.InPlace(); err != nil {
		return nil, err
	}
	return p.FS.Lock(name, note)
}
