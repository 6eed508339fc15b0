package segfile

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock"
)

// Usage says what a topic takes on disk, by what it is for, in sizes of files.
type Usage struct {
	Topic      string
	Segments   penstock.Bytes // whole files, with what the last ones have in reserve
	Prepared   penstock.Bytes // next segments that are made and empty
	Positions  penstock.Bytes // state of the partitions and positions of the groups
	Quarantine penstock.Bytes // what was cut from torn tails
	RetryLogs  penstock.Bytes // of the groups of the topic
	Other      penstock.Bytes // topic.json, LOCK, and what is none of ours
	Files      int
}

// Total is all of it.
func (u *Usage) Total() penstock.Bytes {
	return u.Segments + u.Prepared + u.Positions + u.Quarantine + u.RetryLogs + u.Other
}

// Usage adds up the files below the topic's directory. Files that go meanwhile
// are left out.
func (in *Inspection) Usage() (Usage, error) {
	u := Usage{Topic: in.topic.Topic}
	return u, in.add(&u, in.dir, "")
}

// add adds what lies below dir; rel is the path below the topic's directory.
func (in *Inspection) add(u *Usage, dir, rel string) error {
	names, err := in.fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := in.fs.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil: // a pipe or a link is none of ours
			u.Files++
			continue
		case info.Dir:
			err := in.add(u, path, filepath.ToSlash(filepath.Join(rel, name)))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		u.Files++
		*u.share(filepath.ToSlash(filepath.Join(rel, name))) += penstock.Bytes(info.Size)
	}
	return nil
}

// share returns the sum that a file belongs to, by its path below the topic's
// directory.
func (u *Usage) share(path string) *penstock.Bytes {
	first, rest, nested := strings.Cut(path, "/")
	_, isSegment := parseSegmentName(rest)
	switch {
	case first == "retry" || first == "retry-made": // of package queue; see docs/format.md
		return &u.RetryLogs
	case !nested:
		return &u.Other
	case isSegment:
		return &u.Segments
	case rest == spareName:
		return &u.Prepared
	case rest == stateName || rest == producersName || strings.HasPrefix(rest, groupsDir+"/"):
		return &u.Positions
	case strings.HasPrefix(rest, quarantineDir+"/"):
		return &u.Quarantine
	}
	return &u.Other
}
