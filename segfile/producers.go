package segfile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock"
)

// A producer that numbers its appends ([Frame.SetTag]) can repeat one whose
// outcome it does not know: the partition remembers the last append of each
// producer, answers it again, and refuses what is older (ADR 0080).
//
// producers.slot keeps the table up to an offset that was durable when it was
// written; what lies behind it is read at open. It is made by the first
// numbered append and rewritten when a segment is sealed, with state.slot, at
// close, and before a trim passes what it covers, always in place: a full disk
// does not stop it.
const (
	producersName  = "producers.slot"
	producersMark  = "PSTKPRD\n"
	producersFixed = 16
	producerSize   = 20
)

// ProducersMax is how many producers a partition remembers. Another one takes
// the place of the one whose last append is the oldest.
const ProducersMax = 200

// SequenceError refuses a numbered append: an older one than the last of its
// producer, which was answered before, or, from package queue, one behind a
// gap.
type SequenceError struct {
	Producer uint32
	Sequence uint64
	Last     uint64 // the last one that was appended; 0 when none is known
}

func (e *SequenceError) Error() string {
	if e.Gap() {
		return fmt.Sprintf("producer %d sends sequence %d, and %d is next: a request is missing, or the producer was forgotten", e.Producer, e.Sequence, e.Last+1)
	}
	return fmt.Sprintf("producer %d repeats sequence %d, and %d was appended since", e.Producer, e.Sequence, e.Last)
}

// Gap reports whether a request before this one is missing; otherwise this one
// is too old.
func (e *SequenceError) Gap() bool { return e.Sequence > e.Last }

// produced is the last append of a producer.
type produced struct {
	sequence uint64
	first    penstock.Offset
	count    uint32
}

// producers is what a partition knows of numbered appends; guarded by its mu.
//
// Invariant: a producer with an entry in busy has a frame that is queued or
// being written; its entry in last is of an append that has reached its level.
type producers struct {
	last  map[uint32]produced
	busy  map[uint32]chan struct{} // closed when the frame has ended
	made  bool                     // producers.slot is there
	dirty bool                     // last holds what producers.slot does not
}

// LastOf returns the last numbered append of a producer that has reached its
// level: its sequence and the offsets [first, first+n) of its records; false
// when none is known.
func (p *Partition) LastOf(producer uint32) (sequence uint64, first penstock.Offset, n int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.producers.last[producer]
	return e.sequence, e.first, int(e.count), ok
}

// Forgets reports whether the partition remembers as many producers as it can: one
// that it does not know may have been forgotten.
func (p *Partition) Forgets() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.producers.last) >= ProducersMax
}

// numbered reports whether the frame is one of a producer's.
func (f *Frame) numbered() bool { return f.tag.Producer() != 0 }

// admitTagLocked lets a numbered frame in, or returns the receipt of the append
// that it repeats. While another frame of the producer is under way it waits.
// It runs with mu held and gives it up while it blocks.
func (p *Partition) admitTagLocked(ctx context.Context, f *Frame) (r Receipt, repeats bool, err error) {
	producer, sequence := f.tag.Producer(), f.tag.Sequence()
	for {
		if err := p.refusalLocked(); err != nil {
			return r, false, err
		}
		if !p.producers.made {
			p.mu.Unlock()
			err := p.do(p.makeProducers, false)
			p.mu.Lock()
			if err != nil {
				return r, false, err
			}
			continue
		}
		busy := p.producers.busy[producer]
		if busy == nil {
			break
		}
		p.mu.Unlock()
		select {
		case <-busy:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return r, false, penstock.ContextError(ctx)
		}
	}
	e, known := p.producers.last[producer]
	switch {
	case f.unchecked || !known || sequence > e.sequence:
		if p.producers.busy == nil {
			p.producers.busy = make(map[uint32]chan struct{})
		}
		p.producers.busy[producer] = make(chan struct{})
		return r, false, nil
	case sequence < e.sequence:
		return r, false, &SequenceError{Producer: producer, Sequence: sequence, Last: e.sequence}
	case int(e.count) != f.Len():
		return r, false, &penstock.FieldError{Field: "sequence", Reason: fmt.Sprintf("%d of producer %d has %d records now, and %d when it was appended", sequence, producer, f.Len(), e.count)}
	}
	return Receipt{first: e.first, n: f.Len(), level: p.cfg.Durability, repeats: true}, true, nil
}

// endTag ends the append of a numbered frame, at its level or failed.
func (p *Partition) endTag(f *Frame, first penstock.Offset, appended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if appended {
		p.producers.note(f.tag, first, f.Len())
	}
	if busy := p.producers.busy[f.tag.Producer()]; busy != nil {
		close(busy)
		delete(p.producers.busy, f.tag.Producer())
	}
}

// note remembers an append.
func (t *producers) note(tag penstock.ProducerTag, first penstock.Offset, n int) {
	producer := tag.Producer()
	e, known := t.last[producer]
	if producer == 0 || known && e.sequence >= tag.Sequence() {
		return
	}
	if t.last == nil {
		t.last = make(map[uint32]produced)
	}
	if !known && len(t.last) >= ProducersMax {
		oldest, at := uint32(0), penstock.Offset(0)
		for id, x := range t.last {
			if oldest == 0 || x.first < at {
				oldest, at = id, x.first
			}
		}
		delete(t.last, oldest)
	}
	t.last[producer] = produced{tag.Sequence(), first, uint32(n)}
	t.dirty = true
}

func (t *producers) encode(covered penstock.Offset) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, producersFixed+producerSize*len(t.last))
	b = le.AppendUint64(b, uint64(covered))
	b = le.AppendUint32(b, uint32(len(t.last)))
	b = le.AppendUint32(b, 0)
	ids := make([]uint32, 0, len(t.last))
	for id := range t.last {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		e := t.last[id]
		tag, _ := penstock.NewProducerTag(id, e.sequence) // both came out of a tag
		b = le.AppendUint64(b, uint64(tag))
		b = le.AppendUint64(b, uint64(e.first))
		b = le.AppendUint32(b, e.count)
	}
	return b
}

// decodeProducers reads the table, and the offset up to which it is complete.
func decodeProducers(b []byte) (t producers, covered penstock.Offset, err error) {
	le := binary.LittleEndian
	if len(b) < producersFixed {
		return t, 0, errSlot
	}
	covered = penstock.Offset(le.Uint64(b))
	n := int(le.Uint32(b[8:]))
	if n > ProducersMax || len(b) < producersFixed+n*producerSize {
		return t, 0, errSlot
	}
	for i := range n {
		e := b[producersFixed+i*producerSize:]
		t.note(penstock.ProducerTag(le.Uint64(e)), penstock.Offset(le.Uint64(e[8:])), int(le.Uint32(e[16:])))
	}
	t.dirty = false
	return t, covered, nil
}

// makeProducers makes producers.slot, durably. It needs the baton.
func (p *Partition) makeProducers() error {
	if err := p.open(); err != nil || p.w.producers != nil {
		return err
	}
	slot, err := createSlot(p.cfg.FS, p.dir, producersName, producersMark, p.owner(), (&producers{}).encode(p.Durable()))
	if err != nil {
		return unwritten(err)
	}
	if err := p.syncDirectory(); err != nil {
		_ = slot.file.Close() // the error of the sync says more
		return p.stop(writeError(err))
	}
	p.w.producers = slot
	p.mu.Lock()
	p.producers.made = true
	p.mu.Unlock()
	return nil
}

// saveProducers stores the table. Everything in it is durable. It needs the
// baton. A failure is sticky: a sync is never repeated.
func (p *Partition) saveProducers() error {
	p.mu.Lock()
	slot, dirty := p.w.producers, p.producers.dirty
	if slot == nil || !dirty {
		p.mu.Unlock()
		return nil
	}
	payload := p.producers.encode(p.written.end)
	p.mu.Unlock()
	if p.w.producersErr == nil {
		if err := slot.write(payload, true); err != nil {
			p.w.producersErr = writeError(fmt.Errorf("%s: %w", producersName, err))
		}
	}
	if p.w.producersErr != nil {
		return p.w.producersErr
	}
	p.mu.Lock()
	p.producers.dirty = false
	p.mu.Unlock()
	return nil
}

// coverProducers makes the table durable before the events go that it would be
// read from. It needs the baton.
func (p *Partition) coverProducers() error {
	p.mu.Lock()
	dirty, ahead := p.producers.dirty, p.written.end > p.Durable()
	p.mu.Unlock()
	if !dirty {
		if slot := p.w.producers; slot != nil && slot.found != nil && p.w.producersErr == nil {
			if err := slot.sync(); err != nil { // an earlier process may have been killed before it could
				p.w.producersErr = writeError(fmt.Errorf("%s: %w", producersName, err))
			}
		}
		return p.w.producersErr
	}
	if ahead {
		if err := p.syncLog(); err != nil {
			return err
		}
	}
	return p.saveProducers()
}

// producers reads the table and what was appended behind what it covers.
func (r *recovery) producers(ctx context.Context) error {
	p := r.p
	slot, payload, err := openSlot(p.cfg.FS, filepath.Join(p.dir, producersName), producersMark, p.owner())
	if errors.Is(err, fs.ErrNotExist) {
		r.cover = math.MaxUint64 // there were none
		return nil
	}
	if slot == nil {
		return err
	}
	p.w.producers = slot
	if err := r.namedTable(slot); err != nil {
		return err
	}
	table, covered := producers{}, penstock.Offset(0)
	if err == nil {
		table, covered, err = decodeProducers(payload)
	}
	if r.cover = covered; err == nil && covered > p.Readable() {
		err = fmt.Errorf("it covers offset %d, and the log ends at %d", covered, p.Readable())
	}
	if err != nil {
		r.note("%s: %v; numbered appends are looked for in all that is kept", producersName, err)
		table, covered = producers{}, 0
	}
	table.made = true
	p.producers = table
	if p.fault != nil {
		return nil // it takes no appends
	}
	return r.readTags(ctx, max(covered, p.Earliest()))
}

// readTags notes the numbered appends from an offset on.
func (r *recovery) readTags(ctx context.Context, from penstock.Offset) error {
	p := r.p
	reader, err := p.NewReader(from)
	if err != nil {
		return err
	}
	for reader.Offset() < p.Readable() && err == nil {
		if ctx.Err() != nil {
			err = penstock.ContextError(ctx)
			break
		}
		rec, next := reader.Next(1 << 30)
		if damage, ok := errors.AsType[*penstock.CorruptError](next); ok {
			r.note("numbered appends in [%d, %d] cannot be read: repetitions of them will not be noticed", damage.First, damage.Last)
			next = reader.Seek(min(damage.Last+1, p.Readable()))
		} else if next == nil {
			p.producers.note(rec.tag, rec.First, rec.N)
		}
		err = next
	}
	return errors.Join(err, reader.Close())
}
