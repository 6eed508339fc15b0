package queue

import (
	"encoding/binary"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
	"github.com/penstock/penstock/seglog"
)

// fillMin is how many events a window holds at the least when they are there:
// it spreads the cost of a fill over many small batches. Beyond what was asked
// for, fillBytes bounds what is decoded for it: where events are large a fill
// costs little beside them, and a window holds them all.
const (
	fillMin   = 256
	fillBytes = 256 << 10
)

// fileSource decodes one partition for one group.
//
// Invariants: values, metas and times back the last window that was not
// lasting, which begins at first. values and metas hold nothing in [0, gone), nor
// beyond their lengths.
type fileSource[T any] struct {
	engine *fileEngine[T]
	part   *segfile.Partition
	cursor *segfile.Cursor
	era    uint64          // of the cursor; see seek.go
	passed segfile.Passed  // at the open of the group
	reader *segfile.Reader // nil before the first fill
	values []T
	metas  []penstock.Meta
	times  []penstock.TimeRun
	first  penstock.Offset
	gone   int
	words  []uint64 // of the completions that are being stored
}

func (s *fileSource[T]) end() penstock.Offset               { return s.part.Readable() }
func (s *fileSource[T]) endBy(*seglog.Look) penstock.Offset { return s.part.Readable() }

// fill decodes events from the offset on into memory of its own, or into
// fresh memory when the window is to last.
func (s *fileSource[T]) fill(at, _ penstock.Offset, max int, lasting bool) (window[T], error) {
	if err := s.seek(at); err != nil {
		return window[T]{}, err
	}
	f := filling[T]{source: s, least: max, w: window[T]{First: at}}
	if !lasting {
		f.w.Values, f.w.Times, f.metas = s.values[:0], s.times[:0], s.metas[:0]
	}
	err := f.run()
	if !lasting {
		s.keep(at, f.w.Values, f.metas)
		s.times = f.w.Times
	}
	if len(f.w.Values) > 0 {
		return f.w, nil // an error comes again at the next fill, which begins there
	}
	return f.w, err
}

// keep makes values and metas those of the last window, and drops what the one
// before had beyond them.
func (s *fileSource[T]) keep(first penstock.Offset, values []T, metas []penstock.Meta) {
	if len(values) < len(s.values) {
		clear(s.values[len(values):])
	}
	if len(metas) < len(s.metas) {
		clear(s.metas[len(metas):])
	}
	s.first, s.gone, s.values, s.metas = first, 0, values, metas
}

// seek makes the reader stand at an offset.
func (s *fileSource[T]) seek(at penstock.Offset) (err error) {
	switch {
	case s.reader == nil:
		s.reader, err = s.part.NewReader(at)
	case s.reader.Offset() != at:
		err = s.reader.Seek(at)
	}
	return err
}

// filling is one fill under way.
type filling[T any] struct {
	source *fileSource[T]
	least  int // events, if so many are there
	w      window[T]
	metas  []penstock.Meta
	bytes  int // of the events of the window, as they are stored
}

// more returns how many events are still to be decoded: what was asked for, and
// then as many times that as are taken to fit. A window that ends inside a pull
// costs a seek back, and what is behind its last whole pull is decoded again.
func (f *filling[T]) more() int {
	n := len(f.w.Values)
	if n == 0 || n < f.least {
		return f.least - n
	}
	fit := n + min(fillMin-n, (fillBytes-f.bytes)/(f.bytes/n+1))
	return max(fit/f.least*f.least, (n+f.least-1)/f.least*f.least) - n
}

func (f *filling[T]) run() error {
	for n := f.more(); n > 0; n = f.more() {
		rec, err := f.source.reader.Next(n)
		if err != nil || rec.N == 0 {
			return err
		}
		if len(f.w.Values) > 0 && rec.Epoch != f.w.Epoch {
			return nil // the next window begins here
		}
		f.w.Epoch = rec.Epoch
		before := len(f.w.Values)
		err = f.decode(rec)
		if n := len(f.w.Values) - before; n > 0 {
			f.stamp(n, rec.Time)
		}
		if n := len(f.w.Values) - before; err != nil {
			return newUndecodable(rec, n, err)
		} else if n < rec.N {
			return nil // the reader is ahead; the next fill finds the frame at hand
		}
	}
	return nil
}

// stamp notes the append time of n events.
func (f *filling[T]) stamp(n int, unixNano int64) {
	if last := len(f.w.Times) - 1; last >= 0 && f.w.Times[last].UnixNano == unixNano {
		f.w.Times[last].N += n
		return
	}
	f.w.Times = append(f.w.Times, penstock.TimeRun{N: n, UnixNano: unixNano})
}

// decode appends the records' events to the window. It stops at the first
// that cannot be decoded, and leaves that one out; and at the end of a pull
// once the window is full, for those that follow may be larger than was taken.
func (f *filling[T]) decode(rec segfile.Records) (err error) {
	e := f.source.engine
	good := len(f.w.Values)
	defer func() {
		clear(f.w.Values[good:])
		f.w.Values = f.w.Values[:good]
	}()
	defer e.caught(&err)
	enveloped := rec.Enveloped()
	for i := range rec.N {
		if f.bytes >= fillBytes && good >= f.least && good%f.least == 0 {
			return nil
		}
		payload := rec.At(i)
		f.bytes += len(payload)
		var m penstock.Meta
		if enveloped {
			if m, payload, err = penstock.DecodeEnvelope(payload); err != nil {
				return err
			}
		}
		if good < cap(f.w.Values) {
			f.w.Values = f.w.Values[:good+1]
		} else {
			var zero T
			f.w.Values = append(f.w.Values, zero)
		}
		if err = e.codec.Decode(payload, &f.w.Values[good]); err != nil {
			return err
		}
		if enveloped || f.w.Metas != nil {
			f.setMeta(good, m)
		}
		good++
	}
	return nil
}

// setMeta sets the metadata of event n, with none for those before it that
// had none.
func (f *filling[T]) setMeta(n int, m penstock.Meta) {
	for len(f.metas) < n {
		f.metas = append(f.metas, penstock.Meta{})
	}
	f.metas = append(f.metas, m)
	f.w.Metas = f.metas
}

// release empties the window below low, so that it keeps nothing alive: all of it
// at once, a part of it now and then.
func (s *fileSource[T]) release(low penstock.Offset) {
	if low <= s.first || len(s.values) == 0 {
		return
	}
	n := int(min(low-s.first, penstock.Offset(len(s.values))))
	if n < len(s.values) && n-s.gone < sweepPointers {
		return
	}
	clear(s.values[s.gone:n])
	clear(s.metas[min(s.gone, len(s.metas)):min(n, len(s.metas))])
	if s.gone = n; n == len(s.values) {
		s.gone, s.values, s.metas = 0, s.values[:0], s.metas[:0]
	}
}

// store keeps the commit, synced at level synced.
func (s *fileSource[T]) store(commit penstock.Offset, completed []byte) error {
	s.words = s.words[:0]
	for len(completed) > 0 {
		var w [8]byte
		completed = completed[copy(w[:], completed):]
		s.words = append(s.words, binary.LittleEndian.Uint64(w[:]))
	}
	return s.cursor.StoreIn(s.era, commit, s.words, s.engine.topic.config.Durability == penstock.Synced)
}

// completed returns the stored completions in the form of
// settle.Config.Completed.
func (s *fileSource[T]) completed() []byte {
	var b []byte
	for _, w := range s.cursor.Completed() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}

// close gives the segment that is open back.
func (s *fileSource[T]) close() {
	if s.reader == nil {
		return
	}
	if err := s.reader.Close(); err != nil {
		s.engine.topic.logger.Warn("segment did not close", "partition", s.part.ID(), "err", err)
	}
	s.reader = nil
}
