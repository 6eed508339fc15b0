package segfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// lookTries bounds how often a directory is looked at again because its owner
// changed it meanwhile. An owner that trims all the time has a moment of rest
// between two tries.
const lookTries = 50

// errMoving is the end of a look that never found a directory at rest.
var errMoving = errors.New("the directory changed each time it was looked at; try again")

// Inspection reads the files of one topic without taking part in it: it takes
// no lock, changes nothing and opens everything for reading only, so it may
// stand beside the process that has the topic open, and beside a damaged
// topic that nobody can open. What it tells was true at some moment during
// the call. It is safe for concurrent use.
type Inspection struct {
	fs    vfs.FS
	dir   string // of the topic
	topic *topic
}

// InspectConfig names a topic to be looked at.
type InspectConfig struct {
	FS    vfs.FS // nil = the operating system's
	Dir   string // data directory
	Topic string // the topic's name
}

// TopicInfo is what a topic was made with.
type TopicInfo struct {
	Topic      string    `json:"topic"`
	UUID       string    `json:"uuid"`
	Format     string    `json:"format"` // major.minor
	Partitions int       `json:"partitions"`
	Router     string    `json:"router"`
	Codec      string    `json:"codec"`
	Tenant     string    `json:"tenant,omitempty"`
	Created    time.Time `json:"created"`
}

// Topics returns the names of the topics in a data directory, sorted: those
// that are finished, and those that were in use and lost their topic.json. fsys is nil for the operating system's files. The error
// matches fs.ErrNotExist when there is no such directory.
func Topics(fsys vfs.FS, dir string) ([]string, error) {
	if fsys == nil {
		fsys = vfs.OS()
	}
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var topics []string
	for _, name := range names {
		topic, err := UnescapeName(name)
		if err != nil {
			continue
		}
		info, err := fsys.Stat(filepath.Join(dir, name))
		if err != nil || !info.Dir {
			continue
		}
		if _, err := fsys.Stat(filepath.Join(dir, name, topicName)); err == nil || inUse(fsys, filepath.Join(dir, name)) {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics, nil
}

// Inspect finds a topic. Errors: fs.ErrNotExist, there is none;
// [penstock.ErrCorrupt], its topic.json is damaged or missing beside data;
// [penstock.ErrUnsupported], another major version wrote it.
func Inspect(c InspectConfig) (*Inspection, error) {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if err := checkName("Topic", c.Topic); err != nil {
		return nil, err
	}
	in := &Inspection{fs: c.FS, dir: filepath.Join(c.Dir, EscapeName(c.Topic))}
	l := &Log{cfg: Config{FS: c.FS, Dir: c.Dir, Topic: c.Topic}, dir: in.dir}
	if err := l.readFormat(); errors.Is(err, penstock.ErrUnsupported) {
		return nil, err
	}
	t, err := l.readTopic()
	switch {
	case errors.Is(err, fs.ErrNotExist) && inUse(c.FS, in.dir):
		err = l.corrupt(topicName, errors.New("it is missing"))
	case err == nil:
		err = checkVersion(topicName, t.Format)
	}
	if err == nil && t.Topic != nameInFile(c.Topic) {
		err = l.corrupt(topicName, fmt.Errorf("it is of topic %q", t.Topic))
	}
	if err != nil {
		return nil, fmt.Errorf("topic %q: %w", c.Topic, err)
	}
	t.Topic = c.Topic // the directory has every byte of it
	in.topic = t
	return in, nil
}

// About returns what the topic was made with.
func (in *Inspection) About() TopicInfo {
	t := in.topic
	created, _ := time.Parse(time.RFC3339Nano, t.Created) // zero when it is no time
	return TopicInfo{
		Topic: t.Topic, UUID: t.UUID, Format: t.Format, Partitions: t.Partitions, Router: t.Router, Codec: t.Codec,
		Tenant: t.Tenant, Created: created,
	}
}

// found is what one look at the directory of a partition found.
type found struct {
	id      int
	dir     string
	state   state
	seq     uint64
	lost    error // why state.slot says nothing
	segs    []foundSegment
	strays  []foundSegment // have the name of a segment and no place in the log
	groups  []foundGroup
	bare    bool  // it has no directory for the positions of groups
	spare   int64 // size of the prepared segment
	blocked bool  // a directory has its name
	others  []string
}

// foundSegment is a segment file. seg is nil when err says why the file is no
// segment of this place.
type foundSegment struct {
	base penstock.Offset
	size int64
	seg  *segment
	err  error
	hdr  *segmentHeader // of a whole segment of this partition that has another base than its name
	file string         // its name, when it is not that of its base
}

func (s *foundSegment) name() string {
	if s.file != "" {
		return s.file
	}
	return segmentName(s.base)
}

type foundGroup struct {
	name    string
	stored  stored
	err     error
	spoiled error // what is wrong with one of its slots
}

// look reads the state, the names, the headers and the positions of a
// partition, again until the state before and after is the same: then no
// segment was taken away in between.
func (in *Inspection) look(id int) (*found, error) {
	for range lookTries {
		f := &found{id: id, dir: filepath.Join(in.dir, partitionName(id))}
		if err := in.lookOnce(f); errors.Is(err, errMoving) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("partition %d: %w", id, err)
		}
		return f, nil
	}
	return nil, fmt.Errorf("partition %d: %w", id, errMoving)
}

func (in *Inspection) lookOnce(f *found) error {
	p, st, err := in.state(f)
	f.seq, f.state, f.lost = p.seq, st, err
	names, err := in.fs.List(f.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := in.lookAt(f, name); err != nil {
			return err
		}
	}
	in.rename(f)
	slices.SortFunc(f.segs, func(a, b foundSegment) int { return cmp.Compare(a.base, b.base) })
	in.setAside(f)
	if err := in.lookAtGroups(f); err != nil {
		return err
	}
	if f.lost != nil && !refused(f.lost) && len(f.segs) == 0 && !f.exchanged() {
		end, epoch, err := in.remembered(f)
		if err != nil {
			return err
		}
		end = max(end, f.state.end) // zero, or what an older slot says
		f.state = state{start: end, end: end, epoch: max(epoch, f.state.epoch)}
	}
	p, _, err = in.state(f)
	if p.seq != f.seq || (err == nil) != (f.lost == nil) {
		return errMoving
	}
	return nil
}

func (in *Inspection) owner(id int) owner { return owner{topic: in.topic.uuid, partition: uint32(id)} }

// state reads state.slot. With one of its slots damaged it counts as lost: the
// other one may be from before the last session.
func (in *Inspection) state(f *found) (peeked, state, error) {
	p, err := peekSlot(in.fs, filepath.Join(f.dir, stateName), stateMark, in.owner(f.id))
	if err != nil {
		return p, state{}, err
	}
	st, err := decodeState(p.payload)
	if err == nil {
		err = p.spoiled
	}
	return p, st, err
}

// lookAt sorts one name of the directory in.
func (in *Inspection) lookAt(f *found, name string) error {
	path := filepath.Join(f.dir, name)
	base, ok := parseSegmentName(name)
	if !ok {
		switch {
		case name == stateName, name == producersName, name == groupsDir, name == quarantineDir:
		case name == spareName:
			info, err := in.fs.Stat(path)
			if err == nil {
				f.spare, f.blocked = info.Size, info.Dir
			}
		default:
			f.others = append(f.others, name)
		}
		return nil
	}
	s := foundSegment{base: base}
	if s.err = in.lookAtSegment(f, &s); errors.Is(s.err, fs.ErrNotExist) {
		return errMoving
	}
	f.segs = append(f.segs, s)
	return nil
}

func (in *Inspection) lookAtSegment(f *found, s *foundSegment) error {
	file, err := in.fs.Open(filepath.Join(f.dir, segmentName(s.base)), false)
	if err != nil {
		return err
	}
	defer file.Close()
	if s.size, err = file.Size(); err != nil {
		return err
	}
	hdr, err := readHeader(file)
	if err != nil {
		return err
	}
	if err := hdr.belongs(in.owner(f.id), s.base, in.topic.Codec); err != nil {
		if hdr.belongs(in.owner(f.id), hdr.base, in.topic.Codec) == nil {
			s.hdr = &hdr
		}
		return err
	}
	s.seg = newSegment(in.fs, f.dir, hdr)
	return nil
}

// lookAtGroups reads the stored positions.
func (in *Inspection) lookAtGroups(f *found) error {
	dir := filepath.Join(f.dir, groupsDir)
	names, err := in.fs.List(dir)
	if f.bare = errors.Is(err, fs.ErrNotExist); f.bare {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		escaped, ok := strings.CutSuffix(name, slotExt)
		group, uerr := UnescapeName(escaped)
		if !ok || uerr != nil {
			f.others = append(f.others, filepath.Join(groupsDir, name))
			continue
		}
		g := foundGroup{name: group}
		p, err := peekSlot(in.fs, filepath.Join(dir, name), cursorMark, in.owner(f.id))
		if g.spoiled = p.spoiled; err == nil {
			g.stored, err = decodeStored(p.payload)
		}
		if err == nil && g.stored.group != penstock.HashKey(group) {
			err = fmt.Errorf("%w: of another group", errForeign)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return errMoving
		}
		g.err = err
		f.groups = append(f.groups, g)
	}
	return nil
}
