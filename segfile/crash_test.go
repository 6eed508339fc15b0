package segfile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// history is what a workload did, and when it was promised to last.
type history struct {
	appended  [][]string // batches in the order of their appends
	acked     []int      // for each, operations that had happened when it was acknowledged; -1 = not
	commits   []promise  // synced commits
	trims     []promise  // trims that returned
	attempted penstock.Offset
}

type promise struct {
	at     int // operations that had happened
	offset penstock.Offset
}

// flat returns the records of all batches.
func (h *history) flat() []string {
	var all []string
	for _, b := range h.appended {
		all = append(all, b...)
	}
	return all
}

// ackedBy returns how many records were acknowledged after n operations.
func (h *history) ackedBy(n int) penstock.Offset {
	var count, done penstock.Offset
	for i, b := range h.appended {
		count += penstock.Offset(len(b))
		if h.acked[i] >= 0 && h.acked[i] <= n {
			done = count
		}
	}
	return done
}

func latest(ps []promise, n int) (o penstock.Offset) {
	for _, p := range ps {
		if p.at <= n {
			o = max(o, p.offset)
		}
	}
	return o
}

// workload is one scenario of the crash tests: it appends single events and
// batches over several segments, commits and trims.
func workload(t *testing.T, m *vfs.Mem, c Config, h *history, rounds int) {
	t.Helper()
	l, err := Open(c)
	must(t, err)
	p := l.Partition(0)
	cursors, err := l.Cursors("g", StartEarliest)
	must(t, err)
	for i := range rounds {
		batch := []string{fmt.Sprintf("%03d-%s", len(h.flat()), strings.Repeat("a", 700))}
		for j := 1; j <= i%3; j++ {
			batch = append(batch, fmt.Sprintf("%03d", len(h.flat())+j))
		}
		h.appended = append(h.appended, batch)
		mustAppend(t, p, batch...)
		h.acked = append(h.acked, m.Ops())
		if i%4 == 3 {
			to := p.Readable() - 1
			h.attempted = to
			must(t, cursors[0].Store(to, []uint64{0b10}, i%8 == 3))
			if i%8 == 3 {
				h.commits = append(h.commits, promise{m.Ops(), to})
			}
			must(t, p.Trim(to))
			h.trims = append(h.trims, promise{m.Ops(), p.Earliest()})
		}
	}
	must(t, l.Close())
}

// check opens an image and compares it with the history: nothing acknowledged
// is lost, nothing is out of order or invented, the log takes appends, and
// they are there at the next open. level tells what is promised.
func (h *history) check(img vfs.Image, c Config, what string) error {
	c.FS = img.FS
	l, err := Open(c)
	if err != nil {
		return fmt.Errorf("%s: open: %w", what, err)
	}
	defer l.Close()
	p := l.Partition(0)
	if f := p.Fault(); f != nil {
		return fmt.Errorf("%s: a power loss is no damage: %w", what, f)
	}
	all := h.flat()
	first := p.Earliest()
	if low := h.attempted; first > low {
		return fmt.Errorf("%s: earliest %d, nothing above %d was trimmed", what, first, low)
	}
	if want := h.ackedBy(img.After); c.Durability == penstock.Synced && p.Readable() < want {
		return fmt.Errorf("%s: ends at %d, %d were acknowledged", what, p.Readable(), want)
	}
	got, err := readAll(p, first)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	end := int(first) + len(got)
	if end > len(all) || strings.Join(got, "|") != strings.Join(all[first:end], "|") {
		return fmt.Errorf("%s: records [%d, %d) differ from what was appended", what, first, end)
	}
	if whole := h.boundary(end); !whole {
		return fmt.Errorf("%s: ends at %d, inside a batch", what, end)
	}
	if err := h.checkCursor(l, img, what); err != nil {
		return err
	}
	// Append over whatever was there, reopen, and look again.
	if _, err := tryAppend(p, "new-1", "new-2"); err != nil {
		return fmt.Errorf("%s: append: %w", what, err)
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("%s: close: %w", what, err)
	}
	l2, err := Open(c)
	if err != nil {
		return fmt.Errorf("%s: second open: %w", what, err)
	}
	defer l2.Close()
	again, err := readAll(l2.Partition(0), first)
	if err != nil || strings.Join(again, "|") != strings.Join(append(got, "new-1", "new-2"), "|") {
		return fmt.Errorf("%s: after an append and a reopen: %d records, %v, want %d", what, len(again), err, len(got)+2)
	}
	return nil
}

func (h *history) boundary(end int) bool {
	n := 0
	for _, b := range h.appended {
		if n == end {
			return true
		}
		n += len(b)
	}
	return n == end
}

func (h *history) checkCursor(l *Log, img vfs.Image, what string) error {
	cs, err := l.Cursors("g", StartEarliest)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	at, p := cs[0].Committed(), l.Partition(0)
	if at > p.Readable() || at > h.attempted {
		return fmt.Errorf("%s: committed %d, log ends at %d, at most %d was committed", what, at, p.Readable(), h.attempted)
	}
	if want := latest(h.commits, img.After); at < want {
		return fmt.Errorf("%s: committed %d, the commit of %d was synced", what, at, want)
	}
	return nil
}

// crashEverywhere opens every image of a recorded run. With second, the open
// itself is recorded, and every crash during it too.
func crashEverywhere(t *testing.T, m *vfs.Mem, c Config, h *history, second func(n int) bool) {
	t.Helper()
	images, twice := 0, 0
	for img := range m.Images(vfs.Crashes{Seed: 7}) {
		images++
		if err := h.check(img, c, img.Desc); err != nil {
			t.Fatal(err)
		}
		if !second(images) {
			continue
		}
		// check changed the image: opening, cursors, an append, a close, another
		// open. A second power loss at any moment of that:
		for again := range img.FS.Images(vfs.Crashes{Seed: 8}) {
			twice++
			if err := h.checkSecond(again, c, img.After, img.Desc+"; then "+again.Desc); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d images, %d after a second crash", images, twice)
	if images < 300 {
		t.Fatalf("%d images are too few to mean anything", images)
	}
}

// checkSecond is check after a second power loss: the records may end with
// the two that check appended.
func (h *history) checkSecond(img vfs.Image, c Config, firstAfter int, what string) error {
	c.FS = img.FS
	l, err := Open(c)
	if err != nil {
		return fmt.Errorf("%s: open: %w", what, err)
	}
	defer l.Close()
	p := l.Partition(0)
	if f := p.Fault(); f != nil {
		return fmt.Errorf("%s: a power loss is no damage: %w", what, f)
	}
	got, err := readAll(p, p.Earliest())
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if n := len(got); n >= 2 && got[n-1] == "new-2" {
		got = got[:n-2]
	}
	all, first := h.flat(), int(p.Earliest())
	end := first + len(got)
	if end > len(all) || strings.Join(got, "|") != strings.Join(all[first:end], "|") || !h.boundary(end) {
		return fmt.Errorf("%s: records [%d, %d) differ from what was appended", what, first, end)
	}
	if want := h.ackedBy(firstAfter); c.Durability == penstock.Synced && penstock.Offset(end) < want {
		return fmt.Errorf("%s: ends at %d, %d were acknowledged before the first crash", what, end, want)
	}
	return nil
}

// writeWay is a level and how frames are written at it.
type writeWay struct {
	level penstock.Durability
	path  WritePath
}

var writeWays = []writeWay{
	{penstock.Synced, WritePwrite}, {penstock.Written, WritePwrite}, {penstock.Written, WriteMapping},
}

func (w writeWay) String() string { return w.level.String() + "/" + w.path.String() }

func (w writeWay) set(c *Config) { c.Durability, c.WritePath = w.level, w.path }

func TestNothingAcknowledgedIsLostByPowerLossAnywhere(t *testing.T) {
	for _, way := range writeWays {
		t.Run(way.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			way.set(&c)
			stores, _ := countStores(m)
			h := &history{}
			rounds, every := 14, 301 // without the race detector: more
			if raceEnabled {
				rounds, every = 9, 1501
			}
			workload(t, m, c, h, rounds)
			m.SetFault(nil)
			if got := stores.Load(); (got > 0) != (way.path == WriteMapping) {
				t.Fatalf("%d stores", got)
			}
			crashEverywhere(t, m, c, h, func(n int) bool { return n%every == 0 })
		})
	}
}

func TestKilledThenPowerLossKeepsWhatRecoveryServed(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.Durability = penstock.Written
	h := &history{}
	l, err := Open(c)
	must(t, err)
	for i := range 5 {
		h.appended = append(h.appended, []string{fmt.Sprint(i)})
		h.acked = append(h.acked, 0)
		mustAppend(t, l.Partition(0), fmt.Sprint(i))
	}
	m.Kill()
	_ = l.Close() // every operation of the dead process fails
	c.Durability = penstock.Synced
	l2, err := Open(c)
	must(t, err)
	wantRecords(t, l2.Partition(0), 0, "0", "1", "2", "3", "4")
	for i := range h.acked {
		h.acked[i] = m.Ops() // served at level synced: durable from here on
	}
	must(t, l2.Close())
	for img := range m.Images(vfs.Crashes{From: m.Ops() - 3, Seed: 1}) {
		if err := h.check(img, c, img.Desc); err != nil {
			t.Fatal(err)
		}
	}
}

// faultWorkload runs appends, a roll, commits, a trim and a reopen against a
// file system that fails, and returns what was acknowledged.
func faultWorkload(c Config, note func(records []string, err error)) error {
	var errs []error
	for session := range 2 {
		l, err := Open(c)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		p := l.Partition(0)
		cs, err := l.Cursors("g", StartEarliest)
		errs = append(errs, err)
		for i := range 14 {
			batch := []string{fmt.Sprintf("%d-%02d-%s", session, i, strings.Repeat("b", 600))}
			_, err := tryAppend(p, batch...)
			note(batch, err)
			errs = append(errs, err)
			if i == 9 && cs != nil {
				errs = append(errs, cs[0].Store(min(4, p.Readable()), nil, true), p.Trim(1))
			}
		}
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

func TestEveryOperationFailsInTurn(t *testing.T) {
	eio := errors.New("input/output error")
	for name, fault := range map[string]vfs.Fault{
		"error":   {Err: eio},
		"short":   {Err: eio, Keep: 100},
		"full":    {Err: vfs.ErrNoSpace},
		"partial": {Err: vfs.ErrNoSpace, Keep: 600},
	} {
		for _, way := range []writeWay{writeWays[0], writeWays[2]} {
			t.Run(name+"/"+way.String(), func(t *testing.T) {
				for n := 1; ; n++ {
					if !failOnce(t, n, fault, way) {
						if n < 100 {
							t.Fatalf("the workload has %d operations, too few to mean anything", n)
						}
						return
					}
				}
			})
		}
	}
}

// failOnce fails operation n and reports whether there was one.
func failOnce(t *testing.T, n int, fault vfs.Fault, way writeWay) bool {
	t.Helper()
	m := vfs.NewMem()
	c := small(m, "data")
	way.set(&c)
	hit := false
	var failed vfs.Op
	var mu sync.Mutex
	m.SetFault(func(op vfs.Op) vfs.Fault {
		mu.Lock()
		defer mu.Unlock()
		if op.N != n {
			return vfs.Fault{}
		}
		hit, failed = true, op
		return fault
	})
	var acked, unsure []string
	err := faultWorkload(c, func(records []string, err error) {
		switch {
		case err == nil:
			acked = append(acked, records...)
		case errors.Is(err, penstock.ErrUnknownOutcome):
			unsure = append(unsure, records...)
		}
	})
	m.SetFault(nil)
	mu.Lock()
	defer mu.Unlock()
	what := fmt.Sprintf("operation %d (%s %s) failed with %q; workload: %v", n, failed.Kind, failed.Name, fault.Err, err)
	l, err := Open(c)
	if err != nil {
		t.Fatalf("%s: reopen: %v", what, err)
	}
	defer l.Close()
	p := l.Partition(0)
	if f := p.Fault(); f != nil {
		t.Fatalf("%s: reopen found %v", what, f)
	}
	got, err := readAll(p, p.Earliest())
	if err != nil {
		t.Fatalf("%s: read: %v", what, err)
	}
	if int(p.Earliest()) > len(acked) {
		t.Fatalf("%s: earliest %d of %d", what, p.Earliest(), len(acked))
	}
	// What was read is what was acknowledged, with none, some or all of the
	// unsure ones between, in order.
	want := acked[p.Earliest():]
	for _, r := range got {
		switch {
		case len(want) > 0 && r == want[0]:
			want = want[1:]
		case len(unsure) > 0 && contains(unsure, r):
		default:
			t.Fatalf("%s: record %.10q was not acknowledged, or is out of order", what, r)
		}
	}
	if len(want) > 0 {
		t.Fatalf("%s: %d acknowledged records are lost, the first is %.10q", what, len(want), want[0])
	}
	mustAppend(t, p, "on it goes")
	names, err := m.List("data/orders/p00000")
	must(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, ".tmp") && name != spareName {
			t.Fatalf("%s: %s is left over", what, name)
		}
	}
	return hit
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

func TestFullDiskFailsWholeAppendsAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		c := small(m, "data")
		l := openLog(t, c)
		p := l.Partition(0)
		cs, err := l.Cursors("g", StartEarliest)
		must(t, err)
		big := strings.Repeat("x", 900)
		m.SetSpace(m.Used() + 2*8192 + 3000) // the next segment has some of its room, not all
		n, used := 0, int64(0)
		for ; ; n++ {
			synctest.Wait() // for a segment that is being prepared
			used = m.Used()
			if _, err := tryAppend(p, big); err != nil {
				wantErr(t, err, penstock.ErrDiskFull)
				break
			}
		}
		for range 1000 { // nothing litters the disk (nsq 938)
			_, err := tryAppend(p, big)
			wantErr(t, err, penstock.ErrDiskFull)
		}
		if names, err := m.List("data/orders/p00000"); err != nil || slices.Contains(names, spareName) { // rustix 1682
			t.Fatalf("what could not be prepared keeps its space: %q, %v", names, err)
		}
		if got := m.Used(); got > used || p.Readable() != penstock.Offset(n) {
			t.Fatalf("%d bytes used after failures, %d before; readable %d, want %d", got, used, p.Readable(), n)
		}
		got, err := readAll(p, 0)
		if err != nil || len(got) != n {
			t.Fatalf("%d records, %v, want %d", len(got), err, n)
		}
		must(t, cs[0].Store(penstock.Offset(n), nil, true)) // commits need no room
		must(t, p.Trim(penstock.Offset(n)))
		if o := mustAppend(t, p, big); o != penstock.Offset(n) {
			t.Fatalf("appended at %d when there was room again, want %d", o, n)
		}
		must(t, l.Close())
		l = openLog(t, c)
		defer l.Close()
		if l.Partition(0).Readable() != penstock.Offset(n+1) || l.Partition(0).Fault() != nil {
			t.Fatalf("reopened: %+v", l.Partition(0).Stats())
		}
	})
}

func TestFailedSyncIsStickyAndNeverRepeated(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	p := l.Partition(0)
	mustAppend(t, p, "safe")
	eio := errors.New("input/output error")
	syncs := 0
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, segmentExt) || op.Kind == vfs.OpSync && strings.HasSuffix(op.Name, spareName) {
			if syncs++; syncs == 1 {
				return vfs.Fault{Err: eio}
			}
		}
		return vfs.Fault{}
	})
	_, err := tryAppend(p, "in doubt")
	wantErr(t, err, penstock.ErrUnknownOutcome)
	wantErr(t, err, eio)
	_, err = tryAppend(p, "refused")
	wantErr(t, err, eio)
	wantErr(t, p.Fault(), eio)
	wantRecords(t, p, 0, "safe")
	_ = l.Close() // reports the same error; what matters is what it must not do:
	if syncs != 1 {
		t.Fatalf("%d syncs of the segment, want 1: a failed sync is not repeated", syncs)
	}
	m.SetFault(nil)
	l = openLog(t, c)
	if r := l.Recovery()[0]; r.Clean {
		t.Fatal("a partition that stopped was marked clean")
	}
	if _, err := appendAsync(l.Partition(0), "again"); err != nil {
		t.Fatal(err)
	}
}

func TestWaitersOfOneGroupShareOneFailure(t *testing.T) {
	m := vfs.NewMem()
	l := openLog(t, small(m, "data"))
	p := l.Partition(0)
	mustAppend(t, p, "first")
	eio := errors.New("input/output error")
	release, entered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind != vfs.OpSync {
			return vfs.Fault{}
		}
		once.Do(func() { close(entered) })
		<-release
		return vfs.Fault{Err: eio}
	})
	r1, err := appendAsync(p, "one")
	must(t, err)
	select {
	case <-entered:
	case <-r1.Done():
		t.Fatal("acknowledged before a sync began")
	}
	var waiting []Receipt
	for range 5 {
		r, err := appendAsync(p, "more")
		must(t, err)
		waiting = append(waiting, r)
	}
	close(release)
	_, err = r1.Wait(context.Background())
	wantErr(t, err, penstock.ErrUnknownOutcome)
	for _, r := range waiting {
		_, err = r.Wait(context.Background())
		wantErr(t, err, eio)
	}
	m.SetFault(nil)
}

// A disk that has room for one segment only: the active one can make room, and
// nothing else can.
func TestFullDiskWithOneSegmentComesBackWhenAllIsConsumed_QC66(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	l := openLog(t, c)
	p := l.Partition(0)
	big := strings.Repeat("x", 900)
	m.SetSpace(m.Used() + 8192 + 4096)
	n := penstock.Offset(0)
	for round := range 5 {
		for ; ; n++ {
			if _, err := tryAppend(p, big); err != nil {
				wantErr(t, err, penstock.ErrDiskFull)
				break
			}
		}
		must(t, p.Trim(n-1)) // one event is still needed
		wantRecords(t, p, n-1, big)
		_, err := tryAppend(p, big)
		wantErr(t, err, penstock.ErrDiskFull)
		must(t, p.Trim(n))
		if o, err := tryAppend(p, big); err != nil || o != n {
			t.Fatalf("round %d: appended at %d, %v, when all was consumed; want %d", round, o, err, n)
		}
		n++
	}
	must(t, l.Close())
	p = openLog(t, c).Partition(0)
	if p.Readable() != n || p.Fault() != nil {
		t.Fatalf("reopened: %+v, want an end at %d", p.Stats(), n)
	}
}
