package segfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// A position that was stored at level synced, and the table of producers, tell
// how far the log was durable: none of them is ahead of it (ADR 0099). So they
// are asked where nothing else knows: when state.slot is lost, and when a scan
// has found an end. A log that ends before them has lost events that were
// acknowledged, and its offsets must not be used again: the group would pass by
// what comes to stand there.

// beyond returns the offset behind every event that the position knows of.
func (s *stored) beyond() penstock.Offset { return beyondOf(s.committed, s.completed) }

func beyondOf(committed penstock.Offset, completed []uint64) penstock.Offset {
	for i, w := range slices.Backward(completed) {
		if w != 0 {
			return committed + penstock.Offset(64*i+bits.Len64(w))
		}
	}
	return committed
}

// witness is the position that tells how far the log was durable.
type witness struct {
	at    penstock.Offset // it was so far, at the least
	group string
}

// witness returns the position at level synced that is the furthest.
func (f *found) witness() (w witness) {
	for i := range f.groups {
		g := &f.groups[i]
		if g.err == nil && g.stored.synced && g.stored.beyond() > w.at {
			w = witness{g.stored.beyond(), g.name}
		}
	}
	return w
}

// contradicts returns what is wrong with a log that ends at an offset; nil when
// the witness knows of nothing behind it.
func (w witness) contradicts(end penstock.Offset) error {
	if w.at <= end {
		return nil
	}
	return fmt.Errorf("the log ends at %d, and group %q has stored durably that it went to %d", end, w.group, w.at)
}

// remembered finds where a log went to that has neither a state.slot nor a
// segment: as far as any position, or the table of producers, tells. The error
// says that one of them could not be read, for a reason that is no damage.
func (in *Inspection) remembered(f *found) (end penstock.Offset, epoch uint32, err error) {
	for i := range f.groups {
		switch g := &f.groups[i]; {
		case g.err == nil:
			end, epoch = max(end, g.stored.beyond()), max(epoch, g.stored.epoch)
		case !damagedSlot(g.err):
			return 0, 0, fmt.Errorf("position of group %q: %w", g.name, g.err)
		}
	}
	table, err := peekSlot(in.fs, filepath.Join(f.dir, producersName), producersMark, in.owner(f.id))
	switch {
	case errors.Is(err, fs.ErrNotExist), err != nil && damagedSlot(err):
		return end, epoch, nil
	case err != nil:
		return 0, 0, fmt.Errorf("%s: %w", producersName, err)
	}
	t, covered, err := decodeProducers(table.payload)
	if err != nil { // its checksum is right: a later version may have written it
		return end, epoch, nil
	}
	end = max(end, covered)
	for _, e := range t.last {
		end = max(end, e.first+penstock.Offset(e.count))
	}
	return end, epoch, nil
}

// exchanged reports whether neither state.slot nor any segment is of this
// partition, and state.slot is of another: directories may have changed names
// with each other. Then nothing here tells anything of this partition's log.
func (f *found) exchanged() bool {
	own := func(s foundSegment) bool { return !errors.Is(s.err, errForeign) || s.hdr != nil }
	return errors.Is(f.lost, errForeign) && !slices.ContainsFunc(f.segs, own) && !slices.ContainsFunc(f.strays, own)
}

// damagedSlot reports whether an error says that what was read is no position, or
// that nothing can be read there.
func damagedSlot(err error) bool {
	return errors.Is(err, errNoSlot) || errors.Is(err, errSlot) || errors.Is(err, errForeign) || errors.Is(err, vfs.ErrNotRegular)
}

// told looks at the stored positions without changing anything.
func (r *recovery) told() (*Inspection, *found, error) {
	p := r.p
	in := &Inspection{fs: p.cfg.FS, dir: p.log.dir, topic: &topic{uuid: p.log.uuid}}
	f := &found{id: p.id, dir: p.dir}
	return in, f, in.lookAtGroups(f)
}

// remember is what takes the place of a lost state.slot when no segment is left
// either. Offsets are not used again that a position knows of.
func (r *recovery) remember() error {
	in, f, err := r.told()
	if err != nil {
		return err
	}
	end, epoch, err := in.remembered(f)
	end = max(end, r.st.end) // zero, or what an older slot says
	if err != nil {
		return fmt.Errorf("%s is lost, and where the log ended is not known: %w", stateName, err)
	}
	r.st.start, r.st.end, r.p.w.start = end, end, end
	r.p.w.epoch = max(r.p.w.epoch, epoch)
	r.note("%s is lost and no segment is left: the log goes on at offset %d, as far as stored positions tell", stateName, end)
	return nil
}

// ahead notes that a position at level synced is ahead of a log whose end is
// known, in both slots and before anything is appended: the log will grow, and
// what then stands before the position was never seen by the group.
func (s *stored) markAhead(slot *slotFile, end penstock.Offset) error {
	s.ahead = s.beyond()
	s.completed = trimWords(completedBelow(s.completed, s.committed, end))
	s.committed = min(s.committed, end)
	for range 2 {
		if err := slot.write(s.encode(), true); err != nil {
			return writeError(err)
		}
	}
	return nil
}

// errAhead says of a position that it was found ahead of the log.
func (s *stored) errAhead() error {
	return fmt.Errorf("when the topic was opened it was %d and ahead of the log, which ended at %d: the log or the position is from another time", s.ahead, s.committed)
}
