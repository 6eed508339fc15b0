package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock/penstock"
)

// FileCheckpoints are the checkpoints of a [Store], one file per queue of a
// provider, which is written as a whole. A queue is known by its number: its
// name and its place on the ring are the mapper's, which the registry looks
// after. It is safe for concurrent use; checkpoints of different queues do not
// wait for each other.
type FileCheckpoints struct {
	store *Store

	mu    sync.Mutex
	known map[checkpointKey]*fileCheckpoint
}

// fileCheckpoint is one file. The fields below turn belong to whoever has put
// something in.
type fileCheckpoint struct {
	turn chan struct{} // of capacity 1
	now  Checkpoint
	read bool // now is what the file holds
}

const checkpointMagic = "PNSTCKP1"

// enter returns the file's record with its turn taken; the caller gives it
// back.
func (f *FileCheckpoints) enter(ctx context.Context, provider string, q QueueID) (*fileCheckpoint, error) {
	if len(provider) > penstock.MaxFieldBytes {
		return nil, &penstock.FieldError{Field: "provider", Reason: fmt.Sprintf("%d bytes, at most %d", len(provider), penstock.MaxFieldBytes)}
	}
	if err := penstock.ContextError(ctx); err != nil {
		return nil, err
	}
	key := checkpointKey{provider, QueueID{Number: q.Number}}
	f.mu.Lock()
	c := f.known[key]
	if c == nil {
		c = &fileCheckpoint{turn: make(chan struct{}, 1)}
		f.known[key] = c
	}
	f.mu.Unlock()
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, penstock.ContextError(ctx)
	}
	if !c.read {
		now, err := f.load(provider, q)
		if err != nil {
			<-c.turn
			return nil, err
		}
		c.now, c.read = now, true
	}
	return c, nil
}

// LoadCheckpoint implements [CheckpointStore]. The error matches
// penstock.ErrCorrupt when the file is damaged; removing the file makes the
// queue begin anew.
func (f *FileCheckpoints) LoadCheckpoint(ctx context.Context, provider string, q QueueID) (Checkpoint, error) {
	c, err := f.enter(ctx, provider, q)
	if err != nil {
		return Checkpoint{}, err
	}
	defer func() { <-c.turn }()
	return c.now, nil
}

// SwapCheckpoint implements [CheckpointStore].
func (f *FileCheckpoints) SwapCheckpoint(ctx context.Context, provider string, q QueueID, from, to Checkpoint) (Checkpoint, bool, error) {
	c, err := f.enter(ctx, provider, q)
	if err != nil {
		return Checkpoint{}, false, err
	}
	defer func() { <-c.turn }()
	now, swapped := c.now.swap(from, to)
	if !swapped {
		return now, false, nil
	}
	if err := f.store.replace(checkpointFile(provider, q), encodeCheckpoint(provider, q, now)); err != nil {
		c.read = !errors.Is(err, penstock.ErrUnknownOutcome)
		return c.now, false, err
	}
	c.now = now
	return now, true, nil
}

// quiesce waits until nothing is being written.
func (f *FileCheckpoints) quiesce() {
	f.mu.Lock()
	all := make([]*fileCheckpoint, 0, len(f.known))
	for _, c := range f.known {
		all = append(all, c)
	}
	f.mu.Unlock()
	for _, c := range all {
		c.turn <- struct{}{}
		<-c.turn
	}
}

// checkpointFile names the file of a queue by a hash of its provider's name,
// so that every name and every file system will do; the name stands in it.
func checkpointFile(provider string, q QueueID) string {
	return fmt.Sprintf("checkpoint-%016x-%05d", penstock.HashKey(provider), q.Number)
}

func encodeCheckpoint(provider string, q QueueID, c Checkpoint) []byte {
	b := append([]byte(nil), checkpointMagic...)
	for _, v := range []uint64{c.Position.Hi, c.Position.Lo, c.Epoch} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.AppendUvarint(b, uint64(q.Number))
	return append(binary.AppendUvarint(b, uint64(len(provider))), provider...)
}

func (f *FileCheckpoints) load(provider string, q QueueID) (Checkpoint, error) {
	name := checkpointFile(provider, q)
	data, err := f.store.load(name)
	if data == nil || err != nil {
		return Checkpoint{}, err
	}
	rest, ok := strings.CutPrefix(string(data), checkpointMagic)
	if !ok {
		err := penstock.ErrCorrupt
		if strings.HasPrefix(string(data), checkpointMagic[:7]) {
			err = penstock.ErrUnsupported // of a later version
		}
		return Checkpoint{}, fmt.Errorf("store %q: %s begins with %q: %w", f.store.dir, name, data[:min(len(data), 8)], err)
	}
	d := stateDecoder{b: rest}
	c := Checkpoint{Stored: true}
	c.Position.Hi, c.Position.Lo, c.Epoch = d.u64(), d.u64(), d.u64()
	number, owner := d.uvarint(), d.text()
	if d.err == nil && (len(d.b) > 0 || number != uint64(q.Number) || owner != provider) {
		d.fail(fmt.Errorf("holds queue %d of provider %q: %w", number, owner, penstock.ErrCorrupt))
	}
	if d.err != nil {
		return Checkpoint{}, fmt.Errorf("store %q: %s: %w", f.store.dir, name, d.err)
	}
	return c, nil
}
