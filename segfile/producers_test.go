package segfile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// number appends records as a numbered frame.
func number(p *Partition, producer uint32, sequence uint64, records ...string) (Receipt, penstock.Offset, error) {
	tag, err := penstock.NewProducerTag(producer, sequence)
	if err != nil {
		return Receipt{}, 0, err
	}
	f := NewFrame(len(records))
	for _, r := range records {
		f.Add([]byte(r))
	}
	f.SetTag(tag)
	r, err := p.Append(context.Background(), f)
	if err != nil {
		return r, 0, err
	}
	first, err := r.Wait(context.Background())
	return r, first, err
}

func wantNumbered(t *testing.T, p *Partition, producer uint32, sequence uint64, at penstock.Offset, repeats bool, records ...string) {
	t.Helper()
	r, first, err := number(p, producer, sequence, records...)
	must(t, err)
	if first != at || r.Repeats() != repeats || r.Len() != len(records) {
		t.Fatalf("producer %d, sequence %d: at %d, repeats %t, %d records; want %d, %t, %d",
			producer, sequence, first, r.Repeats(), r.Len(), at, repeats, len(records))
	}
}

func wantRefused(t *testing.T, p *Partition, producer uint32, sequence, last uint64) {
	t.Helper()
	_, _, err := number(p, producer, sequence, "x")
	var e *SequenceError
	if !errors.As(err, &e) || e.Producer != producer || e.Sequence != sequence || e.Last != last || e.Gap() {
		t.Fatalf("producer %d, sequence %d: %v; want it refused as older than %d", producer, sequence, err, last)
	}
}

// TestRepeatedAppendIsAnsweredAndNotAppended: at both levels, at once, after a
// clean end, after a kill, and when the events are long gone.
func TestRepeatedAppendIsAnsweredAndNotAppended(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.Durability, c.SegmentEvents = level, 4
			l := openLog(t, c)
			p := l.Partition(0)
			wantNumbered(t, p, 7, 1, 0, false, "a", "b")
			wantNumbered(t, p, 8, 5, 2, false, "c") // a producer may begin anywhere
			wantNumbered(t, p, 7, 1, 0, true, "a", "b")
			wantNumbered(t, p, 7, 2, 3, false, "d")
			wantRefused(t, p, 7, 1, 2)
			wantNumbered(t, p, 7, 9, 4, false, "e") // other partitions may have the others
			_, _, err := number(p, 7, 9, "e", "f")
			wantErr(t, err, penstock.ErrInvalid)
			mustAppend(t, p, "nobody's", "nobody's")
			check := func() {
				t.Helper()
				wantNumbered(t, p, 7, 9, 4, true, "e")
				wantNumbered(t, p, 8, 5, 2, true, "c")
				wantRefused(t, p, 7, 8, 9)
				if p.Readable() != 7 {
					t.Fatalf("the log ends at %d, want 7", p.Readable())
				}
			}
			check()
			must(t, l.Close())
			l = openLog(t, c)
			p = l.Partition(0)
			check()
			m.Kill()
			_ = l.Close() // every operation of the dead process fails
			l = openLog(t, c)
			p = l.Partition(0)
			check()
			must(t, p.Trim(7)) // only sealed segments go
			check()
			must(t, l.Close())
			l = openLog(t, c)
			p = l.Partition(0)
			if p.Earliest() != 4 {
				t.Fatalf("the first event kept is %d, want 4", p.Earliest())
			}
			check()
		})
	}
}

// TestConcurrentRepetitionsAreOneAppend: whoever comes meanwhile waits and is
// answered.
func TestConcurrentRepetitionsAreOneAppend(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		m := vfs.NewMem()
		c := small(m, "data")
		c.Durability = level
		p := openLog(t, c).Partition(0)
		for sequence := uint64(1); sequence <= 20; sequence++ {
			var wg sync.WaitGroup
			firsts, errs := make([]penstock.Offset, 8), make([]error, 8)
			for i := range firsts {
				wg.Go(func() { // one producer: ends after one append; waited for below
					_, firsts[i], errs[i] = number(p, 1, sequence, "x", "y")
				})
			}
			wg.Wait()
			must(t, errors.Join(errs...))
			for _, first := range firsts {
				if first != penstock.Offset(2*(sequence-1)) {
					t.Fatalf("sequence %d: answered with %v", sequence, firsts)
				}
			}
		}
		if p.Readable() != 40 {
			t.Fatalf("the log ends at %d, want 40", p.Readable())
		}
	}
}

// TestProducersAreForgottenFromTheOldest: the table is bounded.
func TestProducersAreForgottenFromTheOldest(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	for id := uint32(1); id <= ProducersMax; id++ {
		wantNumbered(t, l.Partition(0), id, 3, penstock.Offset(id-1), false, "x")
	}
	wantNumbered(t, l.Partition(0), 1, 4, ProducersMax, false, "x") // now 2 is the oldest
	wantNumbered(t, l.Partition(0), ProducersMax+1, 1, ProducersMax+1, false, "x")
	for range 2 {
		p := l.Partition(0)
		if n := len(p.producers.last); n != ProducersMax {
			t.Fatalf("%d producers are remembered, want %d", n, ProducersMax)
		}
		for id := uint32(1); id <= ProducersMax+1; id++ {
			if _, _, _, known := p.LastOf(id); known != (id != 2) {
				t.Fatalf("producer %d is known: %t", id, known)
			}
		}
		must(t, l.Close())
		l = openLog(t, c)
	}
}

// TestRefusedNumberedAppendMayBeRepeated: a full disk keeps nothing of it.
func TestRefusedNumberedAppendMayBeRepeated(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	p := openLog(t, c).Partition(0)
	big := strings.Repeat("x", 900)
	wantNumbered(t, p, 1, 1, 0, false, big)
	m.SetSpace(m.Used())
	sequence := uint64(2)
	for ; ; sequence++ {
		if _, _, err := number(p, 1, sequence, big); err != nil {
			wantErr(t, err, penstock.ErrDiskFull)
			break
		}
	}
	m.SetSpace(1 << 30)
	wantNumbered(t, p, 1, sequence, penstock.Offset(sequence-1), false, big)
	wantNumbered(t, p, 1, sequence, penstock.Offset(sequence-1), true, big)
}

// numberedHistory is what a run of numbered appends was promised.
type numberedHistory struct {
	acked   []int // for sequence i+1, operations that had happened when it was acknowledged
	trimmed penstock.Offset
}

func (h *numberedHistory) run(t *testing.T, m *vfs.Mem, c Config, rounds int) {
	l, err := Open(c)
	must(t, err)
	p := l.Partition(0)
	for i := range rounds {
		if i%5 == 4 {
			mustAppend(t, p, fmt.Sprintf("0-%d", i))
		}
		records := make([]string, 1+i%2)
		for j := range records {
			records[j] = fmt.Sprintf("%d-%s", i+1, strings.Repeat("r", 700))
		}
		_, _, err := number(p, 3, uint64(i+1), records...)
		must(t, err)
		h.acked = append(h.acked, m.Ops())
		if i%6 == 5 {
			h.trimmed = p.Readable()
			must(t, p.Trim(h.trimmed))
		}
		if i == rounds/2 {
			must(t, l.Close())
			l, err = Open(c)
			must(t, err)
			p = l.Partition(0)
		}
	}
	must(t, l.Close())
}

// check opens an image: what the partition knows of the producer is what is in
// the log, and nothing that was acknowledged is appended again.
func (h *numberedHistory) check(img vfs.Image, c Config) error {
	c.FS = img.FS
	l, err := Open(c)
	if err != nil {
		return fmt.Errorf("%s: open: %w", img.Desc, err)
	}
	defer l.Close()
	p := l.Partition(0)
	if f := p.Fault(); f != nil {
		return fmt.Errorf("%s: %w", img.Desc, f)
	}
	got, err := readAll(p, p.Earliest())
	if err != nil {
		return fmt.Errorf("%s: %w", img.Desc, err)
	}
	last, at := uint64(0), penstock.Offset(0)
	for i, r := range got {
		var n uint64
		if _, err := fmt.Sscanf(r, "%d-", &n); err != nil {
			return err
		}
		if n > last {
			last, at = n, p.Earliest()+penstock.Offset(i)
		}
	}
	acked := uint64(0)
	for i, n := range h.acked {
		if n <= img.After {
			acked = uint64(i + 1)
		}
	}
	sequence, first, n, known := p.LastOf(3)
	switch {
	case last > 0 && (sequence != last || first != at):
		return fmt.Errorf("%s: sequence %d at %d is the last known, %d at %d the last in the log [%d, %d)", img.Desc, sequence, first, last, at, p.Earliest(), p.Readable())
	case known && first+penstock.Offset(n) > p.Readable():
		return fmt.Errorf("%s: sequence %d is known at %d, and the log ends at %d", img.Desc, sequence, first, p.Readable())
	case c.Durability == penstock.Synced && sequence < acked:
		return fmt.Errorf("%s: sequence %d is known, %d was acknowledged", img.Desc, sequence, acked)
	}
	end := p.Readable()
	if known {
		records := make([]string, n)
		r, where, err := number(p, 3, sequence, records...)
		if err != nil || !r.Repeats() || where != first || p.Readable() != end {
			return fmt.Errorf("%s: the repetition of %d is answered with %d, %v, and the log ends at %d, not %d", img.Desc, sequence, where, err, p.Readable(), end)
		}
	}
	if _, where, err := number(p, 3, sequence+1, fmt.Sprintf("%d-next", sequence+1)); err != nil || where != end {
		return fmt.Errorf("%s: the next sequence is appended at %d, %w, want %d", img.Desc, where, err, end)
	}
	return nil
}

// TestRepetitionsAreKnownAfterPowerLossAnywhere: at every operation of numbered
// appends, rolls, trims, a close and an open, and with a second power loss.
func TestRepetitionsAreKnownAfterPowerLossAnywhere(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.Durability = level
			h := &numberedHistory{}
			rounds, every := 20, 301
			if raceEnabled {
				rounds, every = 12, 1501
			}
			h.run(t, m, c, rounds)
			images, twice := 0, 0
			for img := range m.Images(vfs.Crashes{Seed: 11}) {
				images++
				if err := h.check(img, c); err != nil {
					t.Fatal(err)
				}
				if images%every != 0 {
					continue
				}
				for again := range img.FS.Images(vfs.Crashes{Seed: 12}) {
					twice++
					again.After = img.After // what was acknowledged before the first one
					if err := h.check(again, c); err != nil {
						t.Fatalf("%s; then %v", img.Desc, err)
					}
				}
			}
			t.Logf("%d images, %d after a second power loss", images, twice)
			if images < 300 || twice < 20 {
				t.Fatal("too few images to mean anything")
			}
		})
	}
}

// TestDamagedTableOfProducersIsMadeAnew: from the events that are kept.
func TestDamagedTableOfProducersIsMadeAnew(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	wantNumbered(t, l.Partition(0), 5, 1, 0, false, "a")
	wantNumbered(t, l.Partition(0), 5, 2, 1, false, "b")
	must(t, l.Close())
	f, err := m.Open("data/orders/p00000/"+producersName, true)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 2*slotSize), 0)
	must(t, err)
	must(t, f.Close())
	l = openLog(t, c)
	if notes := strings.Join(l.Recovery()[0].Notes, "; "); !strings.Contains(notes, producersName) {
		t.Fatalf("the report says %q", notes)
	}
	wantNumbered(t, l.Partition(0), 5, 2, 1, true, "b")
	wantRefused(t, l.Partition(0), 5, 1, 2)
}

// TestTableThatCoversMoreThanTheLogIsNotBelieved: the end of the log was cut
// off, by a repair or by hand.
func TestTableThatCoversMoreThanTheLogIsNotBelieved(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	wantNumbered(t, l.Partition(0), 5, 1, 0, false, "a")
	must(t, l.Close())
	was := readWhole(t, m, "data/orders/p00000/"+stateName)
	segment := readWhole(t, m, "data/orders/p00000/"+segmentName(0))
	l = openLog(t, c)
	wantNumbered(t, l.Partition(0), 5, 2, 1, false, "b")
	must(t, l.Close())
	replaceFile(t, m, "data/orders/p00000/"+stateName, was)
	replaceFile(t, m, "data/orders/p00000/"+segmentName(0), segment)
	l = openLog(t, c)
	if r := l.Recovery()[0]; l.Partition(0).Readable() != 1 || !strings.Contains(strings.Join(r.Notes, "; "), producersName) {
		t.Fatalf("the log ends at %d; the report says %q", l.Partition(0).Readable(), r.Notes)
	}
	wantNumbered(t, l.Partition(0), 5, 1, 0, true, "a")
	wantNumbered(t, l.Partition(0), 5, 2, 1, false, "b")
}

func readWhole(t *testing.T, m *vfs.Mem, path string) []byte {
	t.Helper()
	f, err := m.Open(path, false)
	must(t, err)
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	_, err = f.ReadAt(b, 0)
	must(t, err)
	must(t, f.Close())
	return b
}

func replaceFile(t *testing.T, m *vfs.Mem, path string, b []byte) {
	t.Helper()
	f, err := m.Open(path, true)
	must(t, err)
	must(t, f.Truncate(int64(len(b))))
	_, err = f.WriteAt(b, 0)
	must(t, err)
	must(t, f.Close())
}
