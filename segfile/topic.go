package segfile

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

const (
	topicName   = "topic.json"
	topicMark   = "penstock-topic"
	formatName  = "FORMAT"
	formatMark  = "penstock data"
	topicMax    = 64 << 10 // bytes that are read at most
	crcField    = `,"crc32c":"`
	crcFieldLen = len(crcField) + 8 + len(`"}`) + 1
)

// topic is what topic.json says: one JSON object on one line, whose last field
// is the CRC32C of all bytes before the comma in front of it.
type topic struct {
	Mark        string `json:"magic"`
	Format      string `json:"format"` // major.minor
	UUID        string `json:"uuid"`
	Topic       string `json:"topic"`
	Partitions  int    `json:"partitions"`
	Router      string `json:"router"`
	HashVersion int    `json:"hash_version"`
	Codec       string `json:"codec"`
	Layout      int    `json:"layout_generation"`
	Tenant      string `json:"tenant,omitempty"`
	Created     string `json:"created"`

	uuid uuid
}

func (t *topic) encode() ([]byte, error) {
	b, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-1] // the closing brace
	return fmt.Appendf(b, "%s%08x\"}\n", crcField, crc32.Checksum(b, castagnoli)), nil
}

var errTopic = errors.New("not a topic file")

func decodeTopic(b []byte) (*topic, error) {
	body := len(b) - crcFieldLen
	if body < 0 || !bytes.HasPrefix(b[body:], []byte(crcField)) {
		return nil, errTopic
	}
	sum, err := hex.DecodeString(string(b[body+len(crcField):][:8]))
	if err != nil || binary.BigEndian.Uint32(sum) != crc32.Checksum(b[:body], castagnoli) || !bytes.HasSuffix(b, []byte("\"}\n")) {
		return nil, fmt.Errorf("%w: checksum does not match", errTopic)
	}
	var t topic
	if err := json.Unmarshal(append(bytes.Clone(b[:body]), '}'), &t); err != nil {
		return nil, fmt.Errorf("%w: %w", errTopic, err)
	}
	id, err := hex.DecodeString(strings.ReplaceAll(t.UUID, "-", ""))
	if err != nil || len(id) != len(t.uuid) || t.Mark != topicMark {
		return nil, errTopic
	}
	t.uuid = uuid(id)
	return &t, nil
}

// checkVersion refuses another major version and takes any minor one.
func checkVersion(what, version string) error {
	major, _, _ := strings.Cut(version, ".")
	if major != fmt.Sprint(formatMajor) {
		return fmt.Errorf("%s has format %q, this version reads format %d: %w", what, version, formatMajor, penstock.ErrUnsupported)
	}
	return nil
}

// nameInFile returns a topic's name as topic.json gives it back: a byte that is
// no UTF-8 became U+FFFD. The name of the directory has every byte.
func nameInFile(name string) string { return string([]rune(name)) }

// check compares the configuration with what the topic was made with (BQ-37).
func (t *topic) check(c *Config) error {
	if err := checkVersion(topicName, t.Format); err != nil {
		return err
	}
	for _, f := range []struct {
		field     string
		made, now any
	}{
		{"Topic", t.Topic, nameInFile(c.Topic)},
		{"Partitions", t.Partitions, c.Partitions},
		{"Router", t.Router, c.Router},
		{"HashVersion", t.HashVersion, penstock.HashVersion},
		{"Codec", t.Codec, c.Codec},
		{"Tenant", t.Tenant, c.Tenant},
	} {
		if f.made != f.now {
			return &penstock.FieldError{Field: f.field, Reason: fmt.Sprintf("the topic was made with %#v and cannot be opened with %#v", f.made, f.now)}
		}
	}
	return nil
}

// readFile reads a small file whole.
func (l *Log) readFile(path string) ([]byte, error) {
	f, err := l.cfg.FS.Open(path, false)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, topicMax))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return b, err
}

// writeFile makes a small file in one step, durable with its name.
func (l *Log) writeFile(dir, name, tmp string, content []byte) error {
	fsys, path := l.cfg.FS, filepath.Join(dir, tmp)
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = fsys.Rename(path, filepath.Join(dir, name))
	}
	if err != nil {
		_ = fsys.Remove(path) // what is left is removed at the next open
		return err
	}
	return fsys.SyncDir(dir)
}

func (l *Log) readTopic() (*topic, error) {
	b, err := l.readFile(filepath.Join(l.dir, topicName))
	if err != nil {
		return nil, err
	}
	t, err := decodeTopic(b)
	if err != nil {
		return nil, l.corrupt(topicName, err)
	}
	return t, nil
}

// createTopic makes the partitions and, as the last step, topic.json: a topic
// without it was never finished, and one with it is complete.
func (l *Log) createTopic() (*topic, error) {
	if err := l.noData(); err != nil {
		return nil, err
	}
	t := &topic{
		Mark: topicMark, Format: fmt.Sprintf("%d.%d", formatMajor, formatMinor), Topic: nameInFile(l.cfg.Topic),
		Partitions: l.cfg.Partitions, Router: l.cfg.Router, HashVersion: penstock.HashVersion, Codec: l.cfg.Codec,
		Tenant: l.cfg.Tenant, Created: l.seams.now().UTC().Format(time.RFC3339Nano), uuid: l.newUUID(),
	}
	t.UUID = t.uuid.String()
	for id := range l.cfg.Partitions {
		if err := l.createPartition(id, owner{topic: t.uuid, partition: uint32(id)}); err != nil {
			return nil, fmt.Errorf("partition %d: %w", id, err)
		}
	}
	b, err := t.encode()
	if err == nil {
		err = l.cfg.FS.SyncDir(l.dir)
	}
	if err == nil {
		err = l.writeFile(l.dir, topicName, topicName+".tmp", b)
	}
	return t, err
}

// noData refuses to make a topic over one that lost its topic.json.
func (l *Log) noData() error {
	what, err := remains(l.cfg.FS, l.dir)
	if err != nil || what == "" {
		return err
	}
	return l.corrupt(topicName, fmt.Errorf("it is missing, and %s", what))
}

func partitionName(id int) string { return fmt.Sprintf("p%05d", id) }

func parsePartitionName(name string) (id int, ok bool) {
	id, err := strconv.Atoi(strings.TrimPrefix(name, "p"))
	return id, err == nil && id >= 0 && partitionName(id) == name
}

func (l *Log) createPartition(id int, o owner) error {
	fsys, dir := l.cfg.FS, filepath.Join(l.dir, partitionName(id))
	for _, d := range []string{dir, filepath.Join(dir, groupsDir)} {
		if err := fsys.Mkdir(d); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	st := state{epoch: 1, clean: true}
	slot, err := createSlot(fsys, dir, stateName, stateMark, o, st.encode())
	if err != nil {
		return err
	}
	if err := slot.file.Close(); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

func (l *Log) newUUID() (u uuid) {
	binary.BigEndian.PutUint64(u[:8], l.seams.random())
	binary.BigEndian.PutUint64(u[8:], l.seams.random())
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80 // version 4
	return u
}

// checkFormat reads the data directory's FORMAT file and makes it when it is
// missing. Topics are made by several processes at once, so the temporary
// name is drawn at random, and losing the race is no error.
func (l *Log) checkFormat() error {
	err := l.readFormat()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content := fmt.Sprintf("%s\nformat %d.%d\ncreated %s\nuuid %s\n", formatMark, formatMajor, formatMinor,
		l.seams.now().UTC().Format(time.RFC3339Nano), l.newUUID())
	err = l.writeFile(l.cfg.Dir, formatName, fmt.Sprintf("%s-%016x.tmp", formatName, l.seams.random()), []byte(content))
	if err != nil {
		return err
	}
	return l.readFormat()
}

// readFormat reads and checks FORMAT.
func (l *Log) readFormat() error {
	b, err := l.readFile(filepath.Join(l.cfg.Dir, formatName))
	if err != nil {
		return err
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 2 || lines[0] != formatMark {
		return l.corrupt(formatName, errNoFormat)
	}
	version, ok := strings.CutPrefix(lines[1], "format ")
	if !ok {
		return l.corrupt(formatName, fmt.Errorf("%w: there is no format in %q", errNoFormat, lines[1]))
	}
	return checkVersion(formatName, version)
}
