package segfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// RebuildConfig says of which topic topic.json is to be made anew, and what it is
// to say where nothing else tells.
type RebuildConfig struct {
	InspectConfig
	Router, Codec, Tenant string // "": what can be found, or is assumed
	// Apply makes the file. Without it nothing is changed and no lock is taken.
	Apply bool
}

// Rebuilt is what a topic.json says that is made anew.
type Rebuilt struct {
	TopicInfo
	Assumed []string // in words: what nothing told for certain
	Kept    string   // copy of the damaged file, in the directory of the topic; "" when there was none
}

// assumedRouter is the router of package queue for topics that are given none.
const assumedRouter = "roundrobin/1"

// RebuildTopic makes a topic.json that is damaged, or missing in a topic that was
// in use, anew (ADR 0100, 0106): the uuid, the codec and the number of partitions stand in what
// is left of the topic, the rest in what can still be read of the file, or is
// given, or assumed. A router, codec or tenant that is wrong changes no event: an
// open with the right one is refused and says so, and the file can be removed and
// made again. It returns nil when the file is sound. The error matches
// [penstock.ErrInvalid] when the codec has to be given or cannot be the one that
// was; [penstock.ErrCorrupt] when the files are of several topics, or of none;
// with Apply [penstock.ErrLocked].
func RebuildTopic(c RebuildConfig) (*Rebuilt, error) {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if err := checkName("Topic", c.Topic); err != nil {
		return nil, err
	}
	in := &Inspection{fs: c.FS, dir: filepath.Join(c.Dir, EscapeName(c.Topic))}
	if c.Apply {
		lock, err := lockTopic(in)
		if err != nil {
			return nil, err
		}
		defer lock.Close()
	}
	b := &rebuilding{l: &Log{cfg: Config{FS: c.FS, Dir: c.Dir, Topic: c.Topic}, dir: in.dir}, cfg: &c}
	if err := b.l.readFormat(); errors.Is(err, penstock.ErrUnsupported) {
		return nil, err
	}
	switch _, err := b.l.readTopic(); {
	case err == nil:
		return nil, nil
	case errors.Is(err, fs.ErrNotExist) && inUse(c.FS, in.dir):
	case !errors.Is(err, penstock.ErrCorrupt):
		return nil, err
	}
	t, err := b.topic()
	if err != nil {
		return nil, fmt.Errorf("topic %q: %s cannot be made anew: %w", c.Topic, topicName, err)
	}
	if c.Apply {
		if err := b.write(t); err != nil {
			return nil, fmt.Errorf("topic %q: %w", c.Topic, err)
		}
	}
	in.topic = t
	b.out.TopicInfo = in.About()
	return &b.out, nil
}

// rebuilding is a topic.json in the making.
type rebuilding struct {
	l   *Log
	cfg *RebuildConfig
	out Rebuilt

	old     []byte // the damaged file; nil when there is none
	uuids   map[uuid]bool
	codecs  map[uint64]bool // hashes
	created int64           // of the oldest segment, Unix nanoseconds; 0 when there is none
}

func (b *rebuilding) assume(format string, args ...any) {
	b.out.Assumed = append(b.out.Assumed, fmt.Sprintf(format, args...))
}

// topic finds what the file has to say.
func (b *rebuilding) topic() (*topic, error) {
	var err error
	if b.old, err = b.l.readFile(filepath.Join(b.l.dir, topicName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	n, err := b.look()
	if err != nil {
		return nil, err
	}
	if len(b.uuids) != 1 || len(b.codecs) > 1 {
		return nil, b.l.corrupt(topicName, fmt.Errorf("what is left is of %d topics and %d codecs", len(b.uuids), len(b.codecs)))
	}
	t := &topic{
		Mark: topicMark, Format: fmt.Sprintf("%d.%d", formatMajor, formatMinor), Topic: nameInFile(b.cfg.Topic),
		Partitions: n, HashVersion: penstock.HashVersion,
	}
	for id := range b.uuids {
		t.uuid, t.UUID = id, id.String()
	}
	if said, ok := b.said("partitions"); ok && said != strconv.Itoa(n) {
		b.assume("partitions %d: so many directories are there; the damaged file says %s", n, said)
	}
	if t.Codec, err = b.codec(); err != nil {
		return nil, err
	}
	t.Router, t.Tenant = b.router(), b.tenant()
	t.Created, _ = b.said("created")
	if b.created != 0 {
		t.Created = time.Unix(0, b.created).UTC().Format(time.RFC3339Nano)
	}
	return t, nil
}

// codec finds the codec: the segments have the hash of its id.
func (b *rebuilding) codec() (string, error) {
	fits := func(id string) bool { return id != "" && (len(b.codecs) == 0 || b.codecs[penstock.HashKey(id)]) }
	switch old, _ := b.said("codec"); {
	case b.cfg.Codec != "" && !fits(b.cfg.Codec):
		return "", &penstock.FieldError{Field: "Codec", Reason: fmt.Sprintf("the segments were written with another one than %q", b.cfg.Codec)}
	case b.cfg.Codec != "":
		return b.cfg.Codec, nil
	case fits(old):
		if len(b.codecs) == 0 {
			b.assume("codec %q: the damaged file says so", old)
		}
		return old, nil
	}
	for _, id := range []string{"json/1", "raw/1", "string/1", "container/1", "penstock.retry/1"} {
		if len(b.codecs) > 0 && fits(id) {
			return id, nil
		}
	}
	return "", &penstock.FieldError{Field: "Codec", Reason: "nothing tells which one the topic was made with; it has to be given"}
}

func (b *rebuilding) router() string {
	old, ok := b.said("router")
	switch {
	case b.cfg.Router != "":
		return b.cfg.Router
	case ok: // perhaps none: that of a retry log
		b.assume("router %q: the damaged file says so", old)
		return old
	}
	b.assume("router %q: nothing tells; it is that of a topic that was given none", assumedRouter)
	return assumedRouter
}

func (b *rebuilding) tenant() string {
	old, _ := b.said("tenant")
	switch {
	case b.cfg.Tenant != "":
		return b.cfg.Tenant
	case old != "":
		b.assume("tenant %q: the damaged file says so", old)
	}
	return old
}

// said returns what can still be read of a field in the damaged file.
func (b *rebuilding) said(field string) (value string, ok bool) {
	m := regexp.MustCompile(`"` + field + `":("(?:[^"\\\x00-\x1f]|\\.)*"|[0-9]+)[,}]`).FindSubmatch(b.old)
	if m == nil {
		return "", false
	}
	if json.Unmarshal(m[1], &value) != nil {
		return string(m[1]), true // a number
	}
	return value, true
}

// look collects what the files of the partitions say, and counts them. Stored
// positions are asked when nothing else says of which topic they are.
func (b *rebuilding) look() (partitions int, err error) {
	b.uuids, b.codecs = map[uuid]bool{}, map[uint64]bool{}
	names, err := b.cfg.FS.List(b.l.dir)
	if err != nil {
		return 0, err
	}
	for _, below := range []string{"", groupsDir} {
		for _, name := range names {
			id, ok := parsePartitionName(name)
			if !ok {
				continue
			}
			partitions = max(partitions, id+1)
			if err := b.lookIn(filepath.Join(b.l.dir, name, below), uint32(id)); err != nil && !(below != "" && errors.Is(err, fs.ErrNotExist)) {
				return 0, err
			}
		}
		if len(b.uuids) > 0 {
			break
		}
	}
	return partitions, nil
}

func (b *rebuilding) lookIn(dir string, partition uint32) error {
	files, err := b.cfg.FS.List(dir)
	for _, file := range files {
		if err == nil {
			err = b.lookAt(filepath.Join(dir, file), partition)
		}
	}
	return err
}

// lookAt takes what a segment or a slot file says whose checksum is right.
func (b *rebuilding) lookAt(path string, partition uint32) error {
	if strings.HasSuffix(path, slotExt) {
		slots, err := readSlots(b.cfg.FS, path)
		for _, s := range slots {
			if s.owner.partition == partition {
				b.uuids[s.owner.topic] = true
			}
		}
		return err
	}
	if _, ok := parseSegmentName(filepath.Base(path)); !ok {
		return nil
	}
	f, err := b.cfg.FS.Open(path, false)
	if err != nil {
		return err
	}
	defer f.Close()
	hdr, err := readHeader(f)
	if err == nil && hdr.partition == partition {
		b.uuids[hdr.topic], b.codecs[hdr.codec] = true, true
		if b.created == 0 || hdr.created < b.created {
			b.created = hdr.created
		}
	}
	if errors.Is(err, errHeader) {
		return nil
	}
	return err
}

// write keeps a copy of the damaged file and puts the new one in its place, in one
// step.
func (b *rebuilding) write(t *topic) error {
	for n := 1; b.old != nil; n++ {
		name := fmt.Sprintf("%s.damaged-%d", topicName, n)
		was, err := b.l.readFile(filepath.Join(b.l.dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			err = b.l.writeFile(b.l.dir, name, name+".tmp", b.old)
		} else if err == nil && string(was) != string(b.old) {
			continue
		}
		if err != nil {
			return err
		}
		b.out.Kept = name
		break
	}
	content, err := t.encode()
	if err != nil {
		return err
	}
	return b.l.writeFile(b.l.dir, topicName, topicName+".tmp", content)
}
