package stream

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

var update = flag.Bool("update", false, "write the golden files anew")

func memStore(t testing.TB, m *vfs.Mem) *Store {
	t.Helper()
	s, err := openStore(m, "store")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantedSub(name string) SubscriptionRecord {
	return SubscriptionRecord{Stream: QualifiedStreamID{Provider: "shop", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}, Name: name}
}

// contents is everything a registry holds, in words.
func contents(t testing.TB, f *FileRegistry) string {
	t.Helper()
	f.live.mu.Lock()
	defer f.live.mu.Unlock()
	var out []string
	for _, e := range f.live.streams {
		for _, r := range e.subs {
			out = append(out, fmt.Sprintf("%s/%s/%s=%d,%d,%q", r.Stream.Provider, r.Stream.Key, r.Name, r.Incarnation, r.Attached, r.Filter))
		}
		for _, r := range e.faulted {
			out = append(out, fmt.Sprintf("%s/%s/%s=%d,%d,faulted", r.Stream.Provider, r.Stream.Key, r.Name, r.Incarnation, r.Attached))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// registrySteps are changes, each of which changes something.
func registrySteps(ctx context.Context, f *FileRegistry) []func() error {
	sub := func(name string) func() error {
		return func() error { _, err := f.Subscribe(ctx, wantedSub(name)); return err }
	}
	return []func() error{
		sub("a"),
		func() error { return f.KeepMapper(ctx, "shop", "m1", false) },
		sub("b"),
		sub("a"),
		func() error {
			subs, err := f.Subscriptions(ctx, wantedSub("").Stream)
			if err != nil {
				return err
			}
			if done, err := f.Fault(ctx, subs[0]); err != nil || !done {
				return errors.Join(err, fmt.Errorf("fault %s: %v", subs[0].Name, done))
			}
			return nil
		},
		func() error { return f.Unsubscribe(ctx, wantedSub("b")) },
		func() error { return f.Reset(ctx, wantedSub("a")) },
		sub("c"),
	}
}

// Whatever a power loss leaves, the store opens, and its subscriptions are
// those of a moment between the last acknowledged change and the last begun.
func TestRegistrySurvivesPowerLossAnywhere(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	states := []string{""}
	var begun, acked []int // operations when a change began and when it was acknowledged
	for _, step := range registrySteps(t.Context(), s.Registry()) {
		begun = append(begun, m.Ops())
		if err := step(); err != nil {
			t.Fatal(err)
		}
		acked = append(acked, m.Ops())
		states = append(states, contents(t, s.Registry()))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	images := 0
	for img := range m.Images(vfs.Crashes{Seed: 1}) {
		images++
		again, err := openStore(img.FS, "store")
		if err != nil {
			t.Fatalf("%s: %v", img.Desc, err)
		}
		got := contents(t, again.Registry())
		least, most := 0, 0
		for i := range acked {
			if acked[i] <= img.After {
				least = i + 1
			}
			if begun[i] < img.After {
				most = i + 1
			}
		}
		if !slices.Contains(states[least:most+1], got) {
			t.Fatalf("%s: %q, want one of %q", img.Desc, got, states[least:most+1])
		}
		rec, err := again.Registry().Subscribe(t.Context(), wantedSub("later"))
		if err != nil || strings.Contains(got, fmt.Sprintf("=%d,", rec.Incarnation)) {
			t.Fatalf("%s: subscribing anew: %+v, %v", img.Desc, rec, err)
		}
	}
	if images < 100 {
		t.Errorf("only %d images", images)
	}
}

// Every operation of the file system fails once: a change says what became of
// it, and the registry goes on.
func TestRegistryTellsWhatBecameOfAChange_OR150(t *testing.T) {
	broken := errors.New("disk says no")
	for n, done := 1, false; !done; n++ {
		m := vfs.NewMem()
		s := memStore(t, m)
		r := s.Registry()
		if _, err := r.Subscribe(t.Context(), wantedSub("old")); err != nil {
			t.Fatal(err)
		}
		before := contents(t, r)
		hit := ""
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.N == n {
				hit = string(op.Kind)
				return vfs.Fault{Err: broken, Keep: 3}
			}
			return vfs.Fault{}
		})
		_, err := r.Subscribe(t.Context(), wantedSub("new"))
		m.SetFault(nil)
		m.Kill()
		after, openErr := openStore(m, "store")
		if openErr != nil {
			t.Fatalf("operation %d (%s): %v", n, hit, openErr)
		}
		got := contents(t, after.Registry())
		switch has := got != before; {
		case hit == "":
			done = true
			if err != nil || !has {
				t.Errorf("without a fault: %v, %q", err, got)
			}
		case err == nil && !has:
			t.Errorf("operation %d (%s): acknowledged and not there", n, hit)
		case err != nil && !errors.Is(err, broken):
			t.Errorf("operation %d (%s): %v", n, hit, err)
		case err != nil && has && !errors.Is(err, penstock.ErrUnknownOutcome):
			t.Errorf("operation %d (%s): refused (%v) and there", n, hit, err)
		}
		if n > 100 {
			t.Fatal("no end")
		}
	}
}

// After a change of unknown outcome the registry looks at the disk, tells the
// producers what it finds, and goes on.
func TestRegistryGoesOnAfterAnUnknownOutcome_ORC124(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	r := s.Registry()
	p := &spyProducer{id: "agent"}
	if _, err := r.RegisterProducer(t.Context(), wantedSub("").Stream, p); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Subscribe(t.Context(), wantedSub("1")); err != nil {
		t.Fatal(err)
	}
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSyncDir {
			return vfs.Fault{Err: errors.New("no")}
		}
		return vfs.Fault{}
	})
	if _, err := r.Subscribe(t.Context(), wantedSub("2")); !errors.Is(err, penstock.ErrUnknownOutcome) {
		t.Errorf("subscribe with a failing directory sync: %v, want ErrUnknownOutcome", err)
	}
	m.SetFault(nil)
	if _, err := r.Subscribe(t.Context(), wantedSub("2")); err != nil {
		t.Errorf("subscribe again: %v", err)
	}
	subs, err := r.Subscriptions(t.Context(), wantedSub("").Stream)
	want(t, "subscriptions", names(subs), "1 2")
	p.mu.Lock()
	last := p.rs[len(p.rs)-1]
	p.mu.Unlock()
	want(t, "the producer was told", names(last.Subscriptions), "1 2")
	if err != nil || s.Close() != nil {
		t.Error(err)
	}
	again := memStore(t, m)
	want(t, "after a restart", contents(t, again.Registry()), contents(t, r))
}

// Changes that are asked for while one is written share the next write.
func TestRegistryChangesShareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		s := memStore(t, m)
		release, waiting := make(chan struct{}), make(chan struct{}, 1)
		writes := 0
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpRename {
				if writes++; writes == 1 {
					waiting <- struct{}{}
					<-release
				}
			}
			return vfs.Fault{}
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := s.Registry().Subscribe(t.Context(), wantedSub(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
		}
		<-waiting
		synctest.Wait()
		// One whose context ends while it waits takes itself back.
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() { // ends with cancel
			_, err := s.Registry().Subscribe(ctx, wantedSub("late"))
			gaveUp <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnknownOutcome) {
			t.Errorf("a change taken back: %v", err)
		}
		close(release)
		wg.Wait()
		want(t, "writes", writes, 2)
		m.Kill()
		again := memStore(t, m)
		want(t, "subscriptions", len(strings.Fields(contents(t, again.Registry()))), 20)
	})
}

func TestStoreHasOneOpener(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(dir); !errors.Is(err, penstock.ErrLocked) {
		t.Errorf("second opener: %v, want ErrLocked", err)
	}
	if _, err := s.Registry().Subscribe(t.Context(), wantedSub("a")); err != nil {
		t.Error(err)
	}
	q := QueueID{Name: "q", Number: 1}
	if _, ok, err := s.Checkpoints().SwapCheckpoint(t.Context(), "shop", q, Checkpoint{}, Checkpoint{Stored: true}); err != nil || !ok {
		t.Error(ok, err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.Registry().Subscribe(t.Context(), wantedSub("b")); !errors.Is(err, penstock.ErrClosed) {
		t.Errorf("subscribe after Close: %v, want ErrClosed", err)
	}
	s, err = OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	subs, _ := s.Registry().Subscriptions(t.Context(), wantedSub("").Stream)
	want(t, "subscriptions after a restart", names(subs), "a")
	if _, err := OpenStore(""); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
}

func TestDamagedStoreIsRefused(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	if _, err := s.Registry().Subscribe(t.Context(), wantedSub("a")); err != nil {
		t.Fatal(err)
	}
	q := QueueID{Name: "q", Number: 3}
	if _, _, err := s.Checkpoints().SwapCheckpoint(t.Context(), "shop", q, Checkpoint{}, Checkpoint{Stored: true, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	names, err := m.List("store")
	if err != nil || len(names) != 3 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if name == storeLock {
			continue
		}
		path := filepath.Join("store", name)
		f, err := m.Open(path, true)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		for at := range size {
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x20
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
			again, err := openStore(m, "store")
			if err == nil {
				_, err = again.Checkpoints().LoadCheckpoint(t.Context(), "shop", q)
				again.Close()
			}
			if !errors.Is(err, penstock.ErrCorrupt) || !strings.Contains(err.Error(), name) {
				t.Fatalf("byte %d of %s flipped: %v, want ErrCorrupt that names it", at, name, err)
			}
			b[0] ^= 0x20
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The stored form is fixed by docs/format.md.
func TestStoredFormsAreFixed(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	r := s.Registry()
	for _, step := range registrySteps(t.Context(), r)[:5] {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	named := wantedSub("d")
	named.Filter = "only 7"
	if _, err := r.Subscribe(t.Context(), named); err != nil {
		t.Fatal(err)
	}
	q := QueueID{Name: "shop", Number: 3, Ring: 9}
	to := Checkpoint{Position: penstock.Token{Hi: 1, Lo: 2}, Stored: true, Epoch: 5}
	if _, _, err := s.Checkpoints().SwapCheckpoint(t.Context(), "shop", q, Checkpoint{}, to); err != nil {
		t.Fatal(err)
	}
	at := Attempt{Subscription: SubscriptionID{1, 15: 2}, Incarnation: 3, First: penstock.Token{Hi: 1, Lo: 2, Index: 3}, End: penstock.Token{Hi: 1, Lo: 5, Index: 6}, N: 7, Open: true}
	if err := s.Attempts().StoreAttempt(t.Context(), "shop", q, at); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, name := range []string{registryFile, checkpointFile("shop", q)} {
		data, err := s.load(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s %x\n", name, data)
	}
	data, err := m.Open(filepath.Join("store", attemptFileName("shop", q)), false)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := readAll(data)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&got, "%s %x\n", attemptFileName("shop", q), whole)
	golden := filepath.Join("testdata", "store.txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fixed, err := os.ReadFile(golden)
	if err != nil || !bytes.Equal(bytes.ReplaceAll(fixed, []byte("\r\n"), []byte("\n")), got.Bytes()) {
		t.Errorf("%v; the stored form is\n%swant\n%s", err, got.Bytes(), fixed)
	}
}

func FuzzStoredRegistry(f *testing.F) {
	s := registryState{revision: 3, mappers: map[string]string{"p": "m"}, records: []storedRecord{{SubscriptionRecord: wantedSub("a")}}}
	data, err := s.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(registryMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		a := registryState{mappers: map[string]string{}}
		if err := a.decode(data); err != nil {
			if !errors.Is(err, penstock.ErrCorrupt) && !errors.Is(err, penstock.ErrUnsupported) {
				t.Fatalf("%v is neither ErrCorrupt nor ErrUnsupported", err)
			}
			return
		}
		again, err := a.encode()
		if err != nil {
			t.Fatal(err)
		}
		b := registryState{mappers: map[string]string{}}
		if err := b.decode(again); err != nil || len(b.records) != len(a.records) {
			t.Fatalf("%v, %d records of %d", err, len(b.records), len(a.records))
		}
	})
}

func TestTooLongNamesAreRefused(t *testing.T) {
	s := memStore(t, vfs.NewMem())
	long := wantedSub(strings.Repeat("x", penstock.MaxFieldBytes+1))
	if _, err := s.Registry().Subscribe(t.Context(), long); !errors.Is(err, penstock.ErrTooLarge) {
		t.Errorf("a name of 64 KiB: %v, want ErrTooLarge", err)
	}
	state := registryState{}
	for range 1100 {
		r := wantedSub("x")
		r.Filter = strings.Repeat("x", penstock.MaxFieldBytes)
		state.records = append(state.records, storedRecord{SubscriptionRecord: r})
	}
	if _, err := state.encode(); !errors.Is(err, penstock.ErrTooLarge) {
		t.Errorf("more than 64 MiB: %v, want ErrTooLarge", err)
	}
}

func TestMapperIsKept_OR16(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	ring := func(n int) string {
		r, err := NewRingMapper("shop", n)
		if err != nil {
			t.Fatal(err)
		}
		return Fingerprint(r)
	}
	ctx := t.Context()
	if err := s.Registry().KeepMapper(ctx, "shop", ring(8), false); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = memStore(t, m)
	k := MapperKeeper(s.Registry())
	if err := k.KeepMapper(ctx, "shop", ring(8), false); err != nil {
		t.Errorf("the same mapper: %v", err)
	}
	var e *MapperError
	if err := k.KeepMapper(ctx, "shop", ring(9), false); !errors.Is(err, ErrMapperChanged) || !errors.As(err, &e) || e.Kept != ring(8) {
		t.Errorf("another mapper: %v, want ErrMapperChanged", err)
	}
	if err := k.KeepMapper(ctx, "other", ring(9), false); err != nil {
		t.Errorf("another provider: %v", err)
	}
	if err := k.KeepMapper(ctx, "shop", ring(9), true); err != nil {
		t.Errorf("forced: %v", err)
	}
	if err := k.KeepMapper(ctx, "shop", ring(9), false); err != nil {
		t.Errorf("after it was forced: %v", err)
	}
}

// A provider whose mapper is another one than before does not open unless it
// is told to.
func TestProviderRefusesAnotherMapper_OR16(t *testing.T) {
	s := memStore(t, vfs.NewMem())
	open := func(queues int, remap bool) error {
		p, err := Open(Config{Name: "shop", Factory: &fixedFactory{}, Queues: queues, Registry: s.Registry(), RemapQueues: remap})
		if err == nil {
			p.Close()
		}
		return err
	}
	if err := open(4, false); err != nil {
		t.Fatal(err)
	}
	if err := open(5, false); !errors.Is(err, ErrMapperChanged) {
		t.Errorf("5 queues instead of 4: %v, want ErrMapperChanged", err)
	}
	if err := open(5, true); err != nil {
		t.Errorf("forced: %v", err)
	}
	if err := open(5, false); err != nil {
		t.Errorf("after it was forced: %v", err)
	}
}

// mirrored has the queues of a ring and puts streams elsewhere.
type mirrored struct{ *RingMapper }

func (m mirrored) QueueFor(s penstock.StreamID) QueueID {
	n := len(m.Queues())
	return m.Queues()[n-1-m.RingMapper.QueueFor(s).Number]
}

func TestFingerprintTellsMappersApart_OR16(t *testing.T) {
	ring := func(name string, n int) *RingMapper {
		r, err := NewRingMapper(name, n)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want(t, "fingerprint of 8 queues", Fingerprint(ring("shop", 8)), "m1:8:80badf081639d342")
	seen := map[string]string{}
	for name, m := range map[string]Mapper{
		"8": ring("shop", 8), "9": ring("shop", 9), "name": ring("store", 8), "hash": mirrored{ring("shop", 8)},
	} {
		fp := Fingerprint(m)
		if other := seen[fp]; other != "" {
			t.Errorf("%s and %s have the fingerprint %s", name, other, fp)
		}
		seen[fp] = name
	}
}

// slowCheckpoints is a store whose calls are recorded and can fail or wait.
type slowCheckpoints struct {
	*MemoryCheckpoints
	mu      sync.Mutex
	saves   []string
	fail    int // so many next calls of Swap
	lost    int // so many next calls of Swap take effect and fail
	block   chan struct{}
	running int
	overlap bool
}

func (s *slowCheckpoints) SwapCheckpoint(ctx context.Context, p string, q QueueID, from, to Checkpoint) (Checkpoint, bool, error) {
	s.mu.Lock()
	s.saves = append(s.saves, fmt.Sprint(to.Position.Lo))
	s.running++
	s.overlap = s.overlap || s.running > 1
	fail, lost, block := s.fail > 0, s.lost > 0, s.block
	s.fail, s.lost = max(s.fail-1, 0), max(s.lost-1, 0)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	if block != nil {
		<-block
	}
	if fail {
		return Checkpoint{}, false, errors.New("store is down")
	}
	now, ok, err := s.MemoryCheckpoints.SwapCheckpoint(ctx, p, q, from, to)
	if lost {
		return Checkpoint{}, false, fmt.Errorf("reply lost: %w", penstock.ErrUnknownOutcome)
	}
	return now, ok, err
}

func (s *slowCheckpoints) saved() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.saves, " ")
}

func TestCheckpointerHoldsBack_OR143(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowCheckpoints{MemoryCheckpoints: NewMemoryCheckpoints()}
		q := QueueID{Name: "q"}
		c, err := NewCheckpointer(store, "shop", q, CheckpointerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		update := func(n uint64) {
			t.Helper()
			if err := c.Update(ctx, penstock.Token{Lo: n, Index: 4}, time.Now()); err != nil {
				t.Error(err)
			}
		}
		if _, ok, err := c.Load(ctx); ok || err != nil {
			t.Error(ok, err)
		}
		update(5)
		update(5)
		update(4)
		update(7)
		want(t, "the first is saved at once", store.saved(), "5")
		time.Sleep(time.Minute - 1)
		update(9)
		want(t, "held back", store.saved(), "5")
		time.Sleep(time.Nanosecond)
		update(8)
		want(t, "the newest after the interval", store.saved(), "5 9")
		time.Sleep(time.Hour)
		update(9)
		want(t, "nothing new", store.saved(), "5 9")
		update(10)
		update(11)
		if err := c.Flush(ctx); err != nil {
			t.Error(err)
		}
		if err := c.Flush(ctx); err != nil {
			t.Error(err)
		}
		want(t, "flushed once", store.saved(), "5 9 10 11")
	})
}

func TestFlushTriesOnceMore_OR143(t *testing.T) {
	store := &slowCheckpoints{MemoryCheckpoints: NewMemoryCheckpoints(), fail: 1}
	q := QueueID{Name: "q"}
	c, _ := NewCheckpointer(store, "shop", q, CheckpointerConfig{})
	if err := c.Update(t.Context(), penstock.Token{Lo: 3}, time.Now()); err == nil {
		t.Error("a failed save is no error")
	}
	store.fail = 1
	if err := c.Flush(t.Context()); err != nil {
		t.Errorf("flush that fails once: %v", err)
	}
	want(t, "saves", store.saved(), "3 3 3")
	if err := c.Update(t.Context(), penstock.Token{Lo: 4}, time.Now()); err != nil {
		t.Error(err)
	}
	store.fail = 2
	if err := c.Flush(t.Context()); err == nil {
		t.Error("flush that fails twice is no error")
	}
	store.lost = 1
	if err := c.Flush(t.Context()); err != nil {
		t.Errorf("flush whose reply is lost: %v", err)
	}
	want(t, "saves", store.saved(), "3 3 3 4 4 4")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("flush with an ended context: %v", err)
	}
}

func TestSavesNeverOverlap_OR143(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowCheckpoints{MemoryCheckpoints: NewMemoryCheckpoints(), block: make(chan struct{})}
		c, _ := NewCheckpointer(store, "shop", QueueID{}, CheckpointerConfig{Interval: 1})
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.Update(t.Context(), penstock.Token{Lo: 1}, time.Now()) })
		synctest.Wait()
		wg.Go(func() { _ = c.Update(t.Context(), penstock.Token{Lo: 2}, time.Now().Add(time.Hour)) })
		wg.Go(func() { _ = c.Flush(t.Context()) })
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() { gaveUp <- c.Flush(ctx) }() // ends with cancel
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("a flush that waits for a save: %v", err)
		}
		close(store.block)
		wg.Wait()
		if store.overlap {
			t.Error("two saves at once")
		}
	})
}

func TestStaleWriterCannotMoveItBack_OR144(t *testing.T) {
	store := NewMemoryCheckpoints()
	q := QueueID{Name: "q"}
	ctx := t.Context()
	old, _ := NewCheckpointer(store, "shop", q, CheckpointerConfig{Interval: 1})
	fresh, _ := NewCheckpointer(store, "shop", q, CheckpointerConfig{Interval: 1})
	now := time.Now()
	if err := old.Update(ctx, penstock.Token{Lo: 10}, now); err != nil {
		t.Fatal(err)
	}
	if _, _, err := fresh.Load(ctx); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Update(ctx, penstock.Token{Lo: 20}, now); err != nil {
		t.Fatal(err)
	}
	if err := old.Update(ctx, penstock.Token{Lo: 15}, now.Add(time.Hour)); err != nil {
		t.Errorf("the stale writer adopts what is stored: %v", err)
	}
	c, _ := store.LoadCheckpoint(ctx, "shop", q)
	want(t, "stored", c.Position.Lo, 20)
	if err := old.Update(ctx, penstock.Token{Lo: 25}, now.Add(2*time.Hour)); err != nil {
		t.Errorf("ahead of what is stored: %v", err)
	}
	c, _ = store.LoadCheckpoint(ctx, "shop", q)
	want(t, "stored", c.Position.Lo, 25)
}

func TestLowerEpochIsRefused_OR145(t *testing.T) {
	store := NewMemoryCheckpoints()
	q := QueueID{Name: "q"}
	ctx := t.Context()
	old, _ := NewCheckpointer(store, "shop", q, CheckpointerConfig{Interval: 1, Epoch: 3})
	fresh, _ := NewCheckpointer(store, "shop", q, CheckpointerConfig{Interval: 1, Epoch: 4})
	now := time.Now()
	if err := old.Update(ctx, penstock.Token{Lo: 10}, now); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Update(ctx, penstock.Token{Lo: 11}, now); err != nil {
		t.Fatal(err)
	}
	if err := old.Update(ctx, penstock.Token{Lo: 30}, now.Add(time.Hour)); !errors.Is(err, ErrNotOwner) {
		t.Errorf("the old owner: %v, want ErrNotOwner", err)
	}
	if err := old.Flush(ctx); !errors.Is(err, ErrNotOwner) {
		t.Errorf("its flush: %v, want ErrNotOwner", err)
	}
	c, _ := store.LoadCheckpoint(ctx, "shop", q)
	want(t, "stored", c, Checkpoint{Position: penstock.Token{Lo: 11}, Stored: true, Epoch: 4})
}

func TestCheckpointerConfigNamesTheBadField(t *testing.T) {
	var f *penstock.FieldError
	if _, err := NewCheckpointer(NewMemoryCheckpoints(), "p", QueueID{}, CheckpointerConfig{Interval: -1}); !errors.As(err, &f) || f.Field != "Interval" {
		t.Error(err)
	}
	if _, err := NewCheckpointer(nil, "p", QueueID{}, CheckpointerConfig{}); !errors.As(err, &f) || f.Field != "store" {
		t.Error(err)
	}
}

// A checkpoint on disk survives power loss anywhere: what is found is not below
// what was acknowledged, and never what was not asked for.
func TestCheckpointSurvivesPowerLossAnywhere(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	q := QueueID{Name: "q", Number: 2}
	var acked []int
	from := Checkpoint{}
	for i := range uint64(6) {
		to := Checkpoint{Position: penstock.Token{Lo: i + 1}, Stored: true, Epoch: i / 2}
		now, ok, err := s.Checkpoints().SwapCheckpoint(t.Context(), "shop", q, from, to)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		from = now
		acked = append(acked, m.Ops())
	}
	s.Close()
	for img := range m.Images(vfs.Crashes{Seed: 2}) {
		again, err := openStore(img.FS, "store")
		if err != nil {
			t.Fatalf("%s: %v", img.Desc, err)
		}
		c, err := again.Checkpoints().LoadCheckpoint(t.Context(), "shop", q)
		least := uint64(0)
		for i, n := range acked {
			if n <= img.After {
				least = uint64(i + 1)
			}
		}
		if err != nil || c.Position.Lo < least || c.Position.Lo > least+1 {
			t.Fatalf("%s: %v, %v; want %d or the next", img.Desc, c, err, least)
		}
	}
}

// A save whose outcome is unknown is looked at before the next one.
func TestCheckpointGoesOnAfterAnUnknownOutcome(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	c, err := NewCheckpointer(s.Checkpoints(), "shop", QueueID{Name: "q"}, CheckpointerConfig{Interval: 1})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpSyncDir {
			return vfs.Fault{Err: errors.New("no")}
		}
		return vfs.Fault{}
	})
	if err := c.Update(t.Context(), penstock.Token{Lo: 1}, now); !errors.Is(err, penstock.ErrUnknownOutcome) {
		t.Errorf("save: %v, want ErrUnknownOutcome", err)
	}
	m.SetFault(nil)
	if err := c.Update(t.Context(), penstock.Token{Lo: 2}, now.Add(time.Hour)); err != nil {
		t.Errorf("the next save: %v", err)
	}
	m.Kill()
	got, err := memStore(t, m).Checkpoints().LoadCheckpoint(t.Context(), "shop", QueueID{Name: "q"})
	want(t, "stored", got.Position.Lo, 2)
	if err != nil {
		t.Error(err)
	}
}
