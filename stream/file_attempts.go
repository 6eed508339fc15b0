package stream

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// FileAttempts are the attempts of a [Store]: one file per queue of a provider,
// with an entry of 72 bytes for each range of events that a subscription was
// offered and has not settled, at most 932,066. Unlike the other files of a store it is written in
// place and not flushed: it outlives the process, not a loss of power, after
// which attempts may count anew. An attempt costs two such writes, of about a
// microsecond each. It is safe for concurrent use.
type FileAttempts struct {
	store *Store

	mu    sync.Mutex
	known map[checkpointKey]*attemptFile
}

// attemptFile is one file. The fields below turn belong to whoever has put
// something in; an entry is written in the turn, too, so that table and file agree.
//
// Invariant: each slot in [1, slots] is in use or free.
type attemptFile struct {
	turn   chan struct{} // of capacity 1
	file   vfs.File      // nil: not open
	held   map[attemptName]*heldAttempt
	slots  int64
	free   []int64
	closed bool
}

// attemptName names an entry of a file.
type attemptName struct {
	id          SubscriptionID
	incarnation uint64
	first       penstock.Token
}

func nameOf(a *Attempt) attemptName { return attemptName{a.Subscription, a.Incarnation, a.First} }

// heldAttempt is an entry, and its number in the file.
type heldAttempt struct {
	Attempt
	slot int64
}

const (
	attemptMagic = "PNSTATT1"
	attemptSlot  = 72 // bytes of the head, and of each entry
)

// attemptFileName names the file of a queue, as checkpointFile does.
func attemptFileName(provider string, q QueueID) string {
	return fmt.Sprintf("attempts-%016x-%05d", penstock.HashKey(provider), q.Number)
}

// enter returns the file's record, open, with its turn taken; the caller gives
// it back.
func (f *FileAttempts) enter(ctx context.Context, provider string, q QueueID) (*attemptFile, error) {
	if err := penstock.ContextError(ctx); err != nil {
		return nil, err
	}
	key := checkpointKey{provider, QueueID{Number: q.Number}}
	f.mu.Lock()
	a := f.known[key]
	if a == nil {
		a = &attemptFile{turn: make(chan struct{}, 1)}
		f.known[key] = a
	}
	f.mu.Unlock()
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, penstock.ContextError(ctx)
	}
	err := error(nil)
	switch {
	case a.closed || f.store.closed.Load():
		err = fmt.Errorf("store %q: %w", f.store.dir, penstock.ErrClosed)
	case a.file == nil:
		if err = f.open(a, provider, q); err != nil {
			err = fmt.Errorf("store %q: %s: %w", f.store.dir, attemptFileName(provider, q), err)
		}
	}
	if err != nil {
		<-a.turn
		return nil, err
	}
	return a, nil
}

// LoadAttempts implements [AttemptStore]. The error matches
// penstock.ErrCorrupt when the head of the file is damaged; removing the file
// makes attempts count anew. A damaged entry counts for nothing.
func (f *FileAttempts) LoadAttempts(ctx context.Context, provider string, q QueueID) ([]Attempt, error) {
	a, err := f.enter(ctx, provider, q)
	if err != nil {
		return nil, err
	}
	defer func() { <-a.turn }()
	var out []Attempt
	for _, h := range a.held {
		if h.N > 0 {
			out = append(out, h.Attempt)
		}
	}
	return out, nil
}

// StoreAttempt implements [AttemptStore]. The error matches penstock.ErrTooLarge
// when the file has as many entries as it can have.
func (f *FileAttempts) StoreAttempt(ctx context.Context, provider string, q QueueID, at Attempt) error {
	a, err := f.enter(ctx, provider, q)
	if err != nil {
		return err
	}
	defer func() { <-a.turn }()
	if err := a.store(at); err != nil {
		return fmt.Errorf("store %q: %s: %w", f.store.dir, attemptFileName(provider, q), err)
	}
	return nil
}

// store writes an entry, or takes one out.
func (a *attemptFile) store(at Attempt) error {
	name := nameOf(&at)
	h := a.held[name]
	switch {
	case h == nil && at.N <= 0:
		return nil
	case at.N <= 0:
		if _, err := a.file.WriteAt(make([]byte, attemptSlot), h.slot*attemptSlot); err != nil {
			return err
		}
		delete(a.held, name)
		a.free = append(a.free, h.slot)
		return nil
	}
	place := int64(0)
	if h != nil {
		place = h.slot
	} else {
		var err error
		if place, err = a.slot(); err != nil {
			return err
		}
	}
	var b [attemptSlot]byte
	encodeAttempt(&b, at)
	if _, err := a.file.WriteAt(b[:], place*attemptSlot); err != nil {
		if h == nil {
			a.free = append(a.free, place)
		}
		return err
	}
	a.held[name] = &heldAttempt{at, place}
	return nil
}

// slot returns one that is free.
func (a *attemptFile) slot() (int64, error) {
	if n := len(a.free); n > 0 {
		s := a.free[n-1]
		a.free = a.free[:n-1]
		return s, nil
	}
	if (a.slots+2)*attemptSlot > maxStoreFile {
		return 0, fmt.Errorf("%d entries: %w", a.slots, penstock.ErrTooLarge)
	}
	a.slots++
	return a.slots, nil
}

// open opens or makes the file and reads it.
func (f *FileAttempts) open(a *attemptFile, provider string, q QueueID) error {
	name := filepath.Join(f.store.dir, attemptFileName(provider, q))
	file, err := f.store.fs.Open(name, true)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = f.store.fs.Create(name)
	}
	if err != nil {
		return err
	}
	if err := a.read(file, attemptHead(provider, q)); err != nil {
		return errors.Join(err, file.Close())
	}
	a.file = file
	return nil
}

// read takes over what a file holds, and gives an empty one its head. After a
// loss of power a file may hold zeros.
func (a *attemptFile) read(file vfs.File, head [attemptSlot]byte) error {
	size, err := file.Size()
	if err != nil {
		return err
	}
	if size > maxStoreFile {
		return fmt.Errorf("%d bytes, at most %d: %w", size, maxStoreFile, penstock.ErrCorrupt)
	}
	data := make([]byte, size)
	if _, err := file.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	a.held, a.slots, a.free = map[attemptName]*heldAttempt{}, 0, nil
	if len(data) < attemptSlot || [attemptSlot]byte(data) == [attemptSlot]byte{} {
		if err := file.Truncate(0); err != nil {
			return err
		}
		_, err := file.WriteAt(head[:], 0)
		return err
	}
	if [attemptSlot]byte(data) != head {
		if s := string(data[:8]); strings.HasPrefix(s, attemptMagic[:7]) && s != attemptMagic {
			return fmt.Errorf("begins with %q: %w", s, penstock.ErrUnsupported)
		}
		return fmt.Errorf("the head is that of another file, or damaged: %w", penstock.ErrCorrupt)
	}
	// Entries move to the front: the file is as long as it has entries.
	for data = data[attemptSlot:]; len(data) >= attemptSlot; data = data[attemptSlot:] {
		if at, ok := decodeAttempt([attemptSlot]byte(data)); ok && a.held[nameOf(&at)] == nil {
			a.held[nameOf(&at)] = &heldAttempt{at, int64(len(a.held)) + 1}
		}
	}
	a.slots, a.free = int64(len(a.held)), nil
	return a.pack(file, size)
}

// pack writes the entries to the front of the file. An end of the process in
// between leaves each entry at one of its places, or at both.
func (a *attemptFile) pack(file vfs.File, size int64) error {
	whole := int64(len(a.held)+1) * attemptSlot
	if size == whole {
		return nil
	}
	for _, h := range slices.SortedFunc(maps.Values(a.held), func(a, b *heldAttempt) int { return cmp.Compare(a.slot, b.slot) }) {
		var b [attemptSlot]byte
		encodeAttempt(&b, h.Attempt)
		if _, err := file.WriteAt(b[:], h.slot*attemptSlot); err != nil {
			return err
		}
	}
	return file.Truncate(whole)
}

// quiesce closes the files; nothing is stored any more.
func (f *FileAttempts) quiesce() error {
	f.mu.Lock()
	all := make([]*attemptFile, 0, len(f.known))
	for _, a := range f.known {
		all = append(all, a)
	}
	f.mu.Unlock()
	var errs []error
	for _, a := range all {
		a.turn <- struct{}{}
		a.closed = true
		if a.file != nil {
			errs = append(errs, a.file.Close())
			a.file = nil
		}
		<-a.turn
	}
	return errors.Join(errs...)
}

func attemptHead(provider string, q QueueID) (b [attemptSlot]byte) {
	copy(b[:], attemptMagic)
	binary.LittleEndian.PutUint64(b[8:], penstock.HashKey(provider))
	binary.LittleEndian.PutUint64(b[16:], uint64(q.Number))
	seal(&b)
	return b
}

func seal(b *[attemptSlot]byte) {
	binary.LittleEndian.PutUint32(b[attemptSlot-4:], crc32.Checksum(b[:attemptSlot-4], storeCRC))
}

// openBit of the number of attempts says that the last one has no answer.
const openBit = 1 << 31

func encodeAttempt(b *[attemptSlot]byte, a Attempt) {
	copy(b[:], a.Subscription[:])
	for i, v := range [...]uint64{a.Incarnation, a.First.Hi, a.First.Lo, a.End.Hi, a.End.Lo} {
		binary.LittleEndian.PutUint64(b[16+8*i:], v)
	}
	n := uint32(min(a.N, openBit-1))
	if a.Open {
		n |= openBit
	}
	for i, v := range [...]uint32{a.First.Index, a.End.Index, n} {
		binary.LittleEndian.PutUint32(b[56+4*i:], v)
	}
	seal(b)
}

// decodeAttempt reports false for an entry that holds nothing, or is damaged.
func decodeAttempt(b [attemptSlot]byte) (a Attempt, ok bool) {
	sum := binary.LittleEndian.Uint32(b[attemptSlot-4:])
	if crc32.Checksum(b[:attemptSlot-4], storeCRC) != sum {
		return Attempt{}, false
	}
	copy(a.Subscription[:], b[:16])
	for i, v := range [...]*uint64{&a.Incarnation, &a.First.Hi, &a.First.Lo, &a.End.Hi, &a.End.Lo} {
		*v = binary.LittleEndian.Uint64(b[16+8*i:])
	}
	n := uint32(0)
	for i, v := range [...]*uint32{&a.First.Index, &a.End.Index, &n} {
		*v = binary.LittleEndian.Uint32(b[56+4*i:])
	}
	a.N, a.Open = int(n&^openBit), n&openBit != 0
	return a, a.N > 0
}
