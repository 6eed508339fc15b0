package segfile

import (
	"encoding/binary"
	"slices"

	"github.com/penstock/penstock"
)

const cursorFixed = 40 // bytes of a stored position before its words

// stored is the payload of a cursor's slot.
type stored struct {
	group     uint64 // hash of the group's name
	committed penstock.Offset
	epoch     uint32
	synced    bool  // written at level synced: it can never be ahead of the log
	used      int64 // when it was stored, Unix nanoseconds; 0 when that is not told
	completed []uint64
	touched   bool            // stored again after its creation
	ahead     penstock.Offset // it was so far when it was found ahead of the log; 0 when it was not
}

func (s *stored) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, cursorFixed+8*len(s.completed))
	b = le.AppendUint64(b, s.group)
	b = le.AppendUint64(b, uint64(s.committed))
	b = le.AppendUint32(b, s.epoch)
	var flags uint32
	if s.synced {
		flags |= 1
	}
	if s.touched {
		flags |= 2
	}
	if s.ahead > 0 {
		flags |= 4
	}
	b = le.AppendUint32(b, flags)
	b = le.AppendUint64(b, uint64(s.used))
	b = le.AppendUint32(b, uint32(len(s.completed)))
	b = le.AppendUint32(b, 0)
	for _, w := range s.completed {
		b = le.AppendUint64(b, w)
	}
	if s.ahead > 0 {
		b = le.AppendUint64(b, uint64(s.ahead))
	}
	return b
}

func decodeStored(b []byte) (stored, error) {
	le := binary.LittleEndian
	if len(b) < cursorFixed {
		return stored{}, errSlot
	}
	flags, n := le.Uint32(b[20:]), le.Uint32(b[32:])
	if n > CompletedMax/64 || len(b) < cursorFixed+8*int(n) {
		return stored{}, errSlot
	}
	s := stored{
		group: le.Uint64(b), committed: penstock.Offset(le.Uint64(b[8:])), epoch: le.Uint32(b[16:]),
		synced: flags&1 != 0, touched: flags&2 != 0, used: int64(le.Uint64(b[24:])),
	}
	for i := range int(n) {
		s.completed = append(s.completed, le.Uint64(b[cursorFixed+8*i:]))
	}
	if rest := b[cursorFixed+8*int(n):]; flags&4 != 0 {
		if len(rest) < 8 {
			return stored{}, errSlot
		}
		s.ahead = penstock.Offset(le.Uint64(rest))
	}
	return s, nil
}

// trimWords drops zero words at the end.
func trimWords(words []uint64) []uint64 {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	return words
}

// clamp sets a position that is ahead of the log back to its end, in both
// slots, and reports whether it had to. At open, before anything is appended:
// offsets behind the end will be used again, for other events (nats-server
// 6600). Only a position written at level written can be ahead without damage.
func (s *stored) clamp(slot *slotFile, end penstock.Offset) (bool, error) {
	if s.synced {
		return false, nil
	}
	kept := trimWords(completedBelow(s.completed, s.committed, end))
	if s.committed <= end && slices.Equal(kept, s.completed) {
		return false, nil
	}
	s.committed, s.completed = min(s.committed, end), kept
	for range 2 {
		if err := slot.write(s.encode(), true); err != nil {
			return false, writeError(err)
		}
	}
	return true, nil
}

// completedBelow returns the completed bits that stand for offsets below end.
func completedBelow(words []uint64, committed, end penstock.Offset) []uint64 {
	if committed >= end {
		return nil
	}
	n := end - committed // bits that stay
	out := slices.Clone(words)
	for i := range out {
		first := penstock.Offset(i * 64)
		switch {
		case first >= n:
			out[i] = 0
		case n-first < 64:
			out[i] &= 1<<(n-first) - 1
		}
	}
	return out
}
