package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/segfile"
)

// Orders for the parked events of a group lie in the topic's directory, a file
// per partition that has any (ADR 0071):
//
//	retry-orders/p00003.<group>
//
// It is replaced as a whole, by one of the same name with a prefix that no
// partition begins with. docs/format.md draws it.
const (
	ordersDir    = "retry-orders"
	ordersNew    = "new-"
	ordersMagic  = "PSTKORD\n"
	ordersFormat = 1

	// ordersMax is the largest file that is read. All that a group parks, each
	// event under a key of its own of the greatest length, takes a third of it.
	ordersMax = 64 << 20
)

// orderFile is where the orders of one group and partition lie. Its methods are
// called one at a time.
type orderFile struct {
	fs        vfs.FS
	dir, name string
	topic     string
	partition int
	group     string
	events    int  // how many the stored orders name
	doubt     bool // what is stored may be what a failed write was to store
}

func newOrderFile[T any](c *Config[T], group string, partition int) *orderFile {
	return &orderFile{
		fs: c.fs, dir: filepath.Join(c.topicDir(), ordersDir), name: partitionDir(partition) + "." + segfile.EscapeName(group),
		topic: c.Name, partition: partition, group: group,
	}
}

func (f *orderFile) path() string { return filepath.Join(f.dir, f.name) }

// write replaces what is stored, durably; without an order there is no file.
func (f *orderFile) write(list []order) error {
	if err := f.replace(list); err != nil {
		return fmt.Errorf("orders %s: %w", f.path(), fullDisk(err))
	}
	f.events = eventsOf(list)
	return nil
}

func (f *orderFile) replace(list []order) error {
	if len(list) == 0 {
		err := f.fs.Remove(f.path())
		switch {
		case errors.Is(err, fs.ErrNotExist) && !f.doubt:
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
		return f.syncNames()
	}
	if err := makeDir(f.fs, f.dir); err != nil {
		return err
	}
	fresh := filepath.Join(f.dir, ordersNew+f.name)
	if err := f.fs.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.make(fresh, f.encode(list)); err != nil {
		return err
	}
	f.doubt = true
	if err := f.fs.Rename(fresh, f.path()); err != nil {
		return err
	}
	return f.syncNames()
}

// syncNames makes durable which file there is.
func (f *orderFile) syncNames() error {
	err := f.fs.SyncDir(f.dir)
	f.doubt = err != nil
	return err
}

// make makes a file with a content that is synced.
func (f *orderFile) make(name string, content []byte) error {
	file, err := f.fs.Create(name)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, 0)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// read returns what is stored, none when there is no file.
func (f *orderFile) read() ([]order, error) {
	file, err := f.fs.Open(f.path(), false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	size, err := file.Size()
	if err == nil && size > ordersMax {
		err = fmt.Errorf("%w: it has %d bytes", penstock.ErrCorrupt, size)
	}
	var list []order
	if err == nil {
		b := make([]byte, size)
		if _, err = file.ReadAt(b, 0); err == nil {
			list, err = f.decode(b)
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("orders %s: %w", f.path(), err)
	}
	f.events = eventsOf(list)
	return list, nil
}

// eventsOf returns how many events orders name.
func eventsOf(list []order) (n int) {
	for _, o := range list {
		n += len(o.events)
	}
	return n
}

func (f *orderFile) encode(list []order) []byte {
	b := append(make([]byte, 0, 256), ordersMagic...)
	b = append(b, ordersFormat, 0, 0, 0, 0)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	text(f.topic)
	b = binary.AppendUvarint(b, uint64(f.partition))
	text(f.group)
	for _, o := range list {
		kind := byte(0)
		if o.discard {
			kind = 1
		}
		b = append(b, kind)
		text(o.key)
		b = binary.AppendUvarint(b, uint64(len(o.events)))
		last := penstock.Offset(0)
		for _, e := range o.events {
			b = binary.AppendUvarint(b, uint64(e.offset-last))
			b = binary.AppendUvarint(b, uint64(e.attempt))
			last = e.offset
		}
	}
	at := len(ordersMagic) + 1
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[at+4:], castagnoli))
	return b
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decode is the inverse of encode.
func (f *orderFile) decode(b []byte) ([]order, error) {
	at := len(ordersMagic) + 1
	switch {
	case len(b) < at+4 || string(b[:at-1]) != ordersMagic:
		return nil, fmt.Errorf("%w: not a file of orders", penstock.ErrCorrupt)
	case b[at-1] != ordersFormat:
		return nil, fmt.Errorf("format %d, want %d: %w", b[at-1], ordersFormat, penstock.ErrUnsupported)
	case binary.LittleEndian.Uint32(b[at:]) != crc32.Checksum(b[at+4:], castagnoli):
		return nil, fmt.Errorf("%w: wrong checksum", penstock.ErrCorrupt)
	}
	r := orderReader{b: b[at+4:]}
	if topic, partition, group := r.text(), r.number(), r.text(); topic != f.topic || partition != uint64(f.partition) || group != f.group {
		return nil, fmt.Errorf("%w: orders of another topic, partition or group", penstock.ErrCorrupt)
	}
	var list []order
	for len(r.b) > 0 && !r.bad {
		o := order{discard: r.number() == 1, key: r.text()}
		last := penstock.Offset(0)
		for n := r.number(); n > 0 && !r.bad; n-- {
			last += penstock.Offset(r.number())
			o.events = append(o.events, ordered{offset: last, attempt: int(r.number())})
		}
		list = append(list, o)
	}
	if r.bad {
		return nil, fmt.Errorf("%w: it ends too early", penstock.ErrCorrupt)
	}
	return list, nil
}

// orderReader takes a file of orders apart; bad sticks.
type orderReader struct {
	b   []byte
	bad bool
}

func (r *orderReader) number() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *orderReader) text() string {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.bad = true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// removeOrders removes what a deleted group has ordered.
func (c *Config[T]) removeOrders(group string) error {
	files, dir := c.fs, filepath.Join(c.topicDir(), ordersDir)
	names, err := list(files, dir)
	if err != nil {
		return err
	}
	escaped := segfile.EscapeName(group)
	names = slices.DeleteFunc(names, func(name string) bool {
		_, of, ok := strings.Cut(name, ".")
		return !ok || of != escaped
	})
	for _, name := range names {
		if err := files.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return files.SyncDir(dir)
}
