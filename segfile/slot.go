package segfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// A slot file holds two slots of 4 KiB, A and B. A change overwrites the older
// one in place, so that a torn write loses only the change. The valid slot
// with the higher sequence counts.
//
//	0  mark (8 bytes)   8  u64 sequence   16  topic uuid   32  u32 partition
//
// 36  u32 payload length  40  payload ... 4092  u32 crc32c of [0, 4092)
const (
	slotSize    = 4096
	slotPayload = 40
	slotRoom    = slotSize - slotPayload - 4
	stateMark   = "PSTKSTA\n"
	cursorMark  = "PSTKCUR\n"
)

var (
	errSlot    = errors.New("slot is damaged")
	errNoSlot  = errors.New("no valid slot")
	errForeign = errors.New("belongs to another topic or partition")
)

// owner names the partition that a slot file belongs to.
type owner struct {
	topic     uuid
	partition uint32
}

func encodeSlot(mark string, seq uint64, o owner, payload []byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, slotSize)
	copy(b, mark)
	le.PutUint64(b[8:], seq)
	copy(b[16:], o.topic[:])
	le.PutUint32(b[32:], o.partition)
	le.PutUint32(b[36:], uint32(len(payload)))
	if copy(b[slotPayload:slotSize-4], payload) < len(payload) {
		panic("segfile: slot payload too large")
	}
	le.PutUint32(b[slotSize-4:], crc32.Checksum(b[:slotSize-4], castagnoli))
	return b
}

// decodeSlot checks one slot and returns its sequence and payload, a part of b.
func decodeSlot(b []byte, mark string, o owner) (uint64, []byte, error) {
	le := binary.LittleEndian
	if len(b) < slotSize || string(b[:8]) != mark {
		return 0, nil, errSlot
	}
	if le.Uint32(b[slotSize-4:]) != crc32.Checksum(b[:slotSize-4], castagnoli) {
		return 0, nil, fmt.Errorf("%w: checksum does not match", errSlot)
	}
	if [16]byte(b[16:32]) != o.topic || le.Uint32(b[32:]) != o.partition {
		return 0, nil, errForeign
	}
	n := le.Uint32(b[36:])
	if n > slotRoom {
		return 0, nil, errSlot
	}
	return le.Uint64(b[8:]), b[slotPayload : slotPayload+n], nil
}

// slotFile is an open slot file. One goroutine at a time uses it.
//
// Invariants: the slot at safe holds the newest payload that is known to be
// durable, and is not overwritten before the other one is durable. seq is the
// sequence of the newest payload written.
type slotFile struct {
	file   vfs.File
	mark   string
	owner  owner
	seq    uint64
	newest int // index of the slot with seq
	safe   int // index; -1 after open, when the newest may be in the page cache only

	found   []byte // the newest payload of an earlier process; nil when it is known to be durable
	spoiled error  // what was wrong with the other slot when the file was opened; nil also when it was never written
}

// createSlot makes a slot file with its first payload in one step, durable
// when it returns, except for the sync of the directory, which is the
// caller's. Without a payload neither slot is valid.
func createSlot(fsys vfs.FS, dir, name, mark string, o owner, payload []byte) (*slotFile, error) {
	tmp := filepath.Join(dir, name+".tmp")
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return nil, err
	}
	s := &slotFile{file: f, mark: mark, owner: o, newest: 1, safe: 1}
	if err = f.Allocate(2 * slotSize); err == nil {
		if payload == nil {
			err = f.Sync()
		} else {
			err = s.write(payload, true)
		}
	}
	if err == nil {
		err = fsys.Rename(tmp, filepath.Join(dir, name))
	}
	if err != nil {
		_ = f.Close()        // the file goes with it
		_ = fsys.Remove(tmp) // what is left is removed at the next open
		return nil, err
	}
	return s, nil
}

// openSlot opens a slot file and returns the payload that counts. The error
// matches errNoSlot when neither slot is valid; the file is then returned
// too, ready for a new payload.
func openSlot(fsys vfs.FS, path, mark string, o owner) (*slotFile, []byte, error) {
	f, err := fsys.Open(path, true)
	if err != nil {
		return nil, nil, err
	}
	b := make([]byte, 2*slotSize)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		_ = f.Close()
		return nil, nil, err
	}
	s := &slotFile{file: f, mark: mark, owner: o, safe: -1}
	seq, newest, payload, cause := newestSlot(b[:n], mark, o)
	if payload == nil {
		return s, nil, cause
	}
	s.seq, s.newest, s.found = seq, newest, payload
	s.spoiled = otherSlot(b[:n], seq, newest, mark, o)
	return s, payload, nil
}

// newestSlot returns the slot that counts of a file's bytes, and what is wrong
// with the other, or with both when payload is nil.
func newestSlot(b []byte, mark string, o owner) (seq uint64, newest int, payload []byte, cause error) {
	cause = errNoSlot
	for i := range 2 {
		q, p, err := decodeSlot(b[min(i*slotSize, len(b)):], mark, o)
		switch {
		case err != nil:
			cause = fmt.Errorf("%w; slot %c: %w", cause, 'A'+rune(i), err)
		case payload == nil || q > seq:
			seq, newest, payload = q, i, p
		}
	}
	return seq, newest, payload, cause
}

// otherSlot returns what is wrong with the slot that is not the newest; nil also
// when it was never written, which only the first payload leaves so.
func otherSlot(b []byte, seq uint64, newest int, mark string, o owner) error {
	other := b[min((1-newest)*slotSize, len(b)):min((2-newest)*slotSize, len(b))]
	if _, _, err := decodeSlot(other, mark, o); err != nil && (seq > 1 || len(other) < slotSize || lastNonZero(other) >= 0) {
		return fmt.Errorf("slot %c: %w", 'B'-rune(newest), err)
	}
	return nil
}

// peekTries is how often a slot file that somebody may be writing is read
// before a bad slot counts as bad.
const peekTries = 3

// peeked is what a look at a slot file found.
type peeked struct {
	seq     uint64
	payload []byte
	spoiled error // what is wrong with the other slot; nil also when it was never written
}

// peekSlot reads a slot file that somebody else may be writing. It changes
// nothing. The error matches errNoSlot when neither slot is valid.
func peekSlot(fsys vfs.FS, path, mark string, o owner) (peeked, error) {
	f, err := fsys.Open(path, false)
	if err != nil {
		return peeked{}, err
	}
	defer f.Close()
	b := make([]byte, 2*slotSize)
	for try := 1; ; try++ {
		n, err := f.ReadAt(b, 0)
		if err != nil && err != io.EOF {
			return peeked{}, err
		}
		seq, newest, payload, cause := newestSlot(b[:n], mark, o)
		p := peeked{seq: seq, payload: payload}
		if payload != nil {
			p.spoiled, cause = otherSlot(b[:n], seq, newest, mark, o), nil
		}
		if try == peekTries || cause == nil && p.spoiled == nil { // before, a slot may have been in the middle of a write
			return p, cause
		}
	}
}

// write overwrites the slot that is not the safe one. With sync it is durable
// on return.
func (s *slotFile) write(payload []byte, sync bool) error {
	if s.safe < 0 {
		if err := s.sync(); err != nil {
			return err
		}
	}
	target := 1 - s.safe
	if _, err := s.file.WriteAt(encodeSlot(s.mark, s.seq+1, s.owner, payload), int64(target)*slotSize); err != nil {
		return err
	}
	s.seq, s.newest = s.seq+1, target
	if !sync {
		return nil
	}
	return s.sync()
}

// sync makes the newest payload durable. One that an earlier process has left is
// written again: when a sync of that process failed, the system may have given up
// what it still has in memory, and would sync nothing.
func (s *slotFile) sync() error {
	if s.found != nil {
		if _, err := s.file.WriteAt(encodeSlot(s.mark, s.seq, s.owner, s.found), int64(s.newest)*slotSize); err != nil {
			return err
		}
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.safe, s.found = s.newest, nil
	return nil
}

// state is the payload of state.slot.
type state struct {
	start    penstock.Offset // log start: nothing below it is kept
	end      penstock.Offset // known safe: everything below it was synced
	segment  penstock.Offset // base of the segment that end lies in
	position int64           // in that segment, behind the last safe frame
	epoch    uint32
	rolling  uint32 // rolling checksum of the segment's frames before position
	clean    bool   // closed cleanly: end and position are the end of the log
	sealed   bool   // position lies behind a seal frame
	whole    bool   // the segment's file has its full size, durably, unless it ends with a seal
}

const stateSize = 48

func (s *state) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, stateSize)
	b = le.AppendUint64(b, uint64(s.start))
	b = le.AppendUint64(b, uint64(s.end))
	b = le.AppendUint64(b, uint64(s.segment))
	b = le.AppendUint64(b, uint64(s.position))
	b = le.AppendUint32(b, s.epoch)
	b = le.AppendUint32(b, s.rolling)
	var flags uint64
	if s.clean {
		flags |= 1
	}
	if s.sealed {
		flags |= 2
	}
	if s.whole {
		flags |= 4
	}
	return le.AppendUint64(b, flags)
}

func decodeState(b []byte) (state, error) {
	if len(b) < stateSize { // a later minor version may have more
		return state{}, errSlot
	}
	le := binary.LittleEndian
	s := state{
		start: penstock.Offset(le.Uint64(b)), end: penstock.Offset(le.Uint64(b[8:])),
		segment: penstock.Offset(le.Uint64(b[16:])), position: int64(le.Uint64(b[24:])),
		epoch: le.Uint32(b[32:]), rolling: le.Uint32(b[36:]),
		clean: le.Uint64(b[40:])&1 != 0, sealed: le.Uint64(b[40:])&2 != 0, whole: le.Uint64(b[40:])&4 != 0,
	}
	if s.start > s.end || s.segment > s.end || s.position < 0 {
		return state{}, errSlot
	}
	return s, nil
}
