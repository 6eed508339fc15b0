package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// spyAttempts is a store that can fail and records, in words, what it is given.
type spyAttempts struct {
	mu               sync.Mutex
	held             map[attemptName]Attempt
	said             []string
	failLoad, failIt error
}

func (s *spyAttempts) LoadAttempts(context.Context, string, QueueID) (out []Attempt, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.held {
		out = append(out, a)
	}
	return out, s.failLoad
}

func (s *spyAttempts) StoreAttempt(_ context.Context, _ string, _ QueueID, a Attempt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failIt != nil {
		return s.failIt
	}
	if s.held == nil {
		s.held = map[attemptName]Attempt{}
	}
	if s.held[nameOf(&a)] = a; a.N == 0 {
		delete(s.held, nameOf(&a))
	}
	s.said = append(s.said, a.words())
	return nil
}

// holding is a store that has entries of an earlier process.
func holding(all ...Attempt) *spyAttempts {
	s := &spyAttempts{held: map[attemptName]Attempt{}}
	for _, a := range all {
		s.held[nameOf(&a)] = a
	}
	return s
}

func (s *spyAttempts) words() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.said, " ")
}

// Each attempt is stored before it is made, and again when it has an answer;
// what is settled is removed, a consumer that is away was not offered anything,
// and a panic is an answer.
func TestAttemptIsStoredBeforeItIsMade_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &spyAttempts{}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts = store })
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			if w := store.words(); !strings.HasSuffix(w, "?") {
				t.Errorf("attempt %d is made, stored is %q", n, w)
			}
			switch n {
			case 2:
				return Answer{}, errBoom
			case 3:
				panic("boom")
			case 4:
				return Answer{}, fmt.Errorf("out: %w", ErrAway)
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 2)...)
		g.pump()
		time.Sleep(time.Minute)
		g.pump()
		want(t, "stored", store.words(), "1-1:1? 1-1:0 2-2:1? 2-2:1 2-2:2? 2-2:2 2-2:3? 2-2:2 2-2:3? 2-2:0")
		want(t, "settled", c.values(), "1 2")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a process has left behind counts on; what the checkpoint has passed is
// removed.
func TestStoredAttemptsCountOn_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := SubscriptionRecord{Stream: QualifiedStreamID{Provider: "rig", StreamID: penstock.StreamID{Namespace: "n", Key: "s"}}, Name: "sub"}
		other := rec
		other.Name = "old"
		at := func(r SubscriptionRecord, lo uint64, n int) Attempt {
			t := penstock.Token{Lo: lo}
			return Attempt{Subscription: r.ID(), Incarnation: 1, First: t, End: after(t), N: n, Open: true}
		}
		store := holding(at(rec, 6, 2), at(other, 5, 2))
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.maxAttempts = store, 3 })
		g.marks = &spyMarks{stored: penstock.Token{Lo: 5}, has: true}
		c := g.subscribe("s", "sub")
		c.onDeliver = failsAt(6)
		g.start()
		want(t, "removed", store.words(), "5-5:0")
		g.feed(boxes("s", 6, 7)...)
		g.pump()
		time.Sleep(time.Minute)
		want(t, "offered", c.tries(), "6:3 7:1")
		want(t, "given up", g.stats().Skipped, 1)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A store that fails holds nothing up, and costs neither a poll nor the checkpoint.
func TestAttemptStoreThatFailsHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &spyAttempts{failLoad: errBoom, failIt: errBoom}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts = store })
		c := g.subscribe("s", "sub")
		g.marks = &spyMarks{stored: penstock.Token{Lo: 5}, has: true}
		c.onShake = func(int) (Position, error) { return at(PositionAt, 5), nil } // refused: it is below
		g.verdict = func(Failure) Verdict { return Retry }
		other := g.subscribe("s", "other")
		g.start()
		g.feed(boxes("s", 6, 8)...)
		g.pump()
		want(t, "refused", len(g.failed()) > 0, true)
		want(t, "settled", other.values(), "6 7 8")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Events during which a process has ended are delivered one after the other, so
// that an innocent one is not counted with the one that ends it; others go on.
func TestSuspectsAreDeliveredOneAtATime_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.suspects = store, make(suspects, 1) })
		gate := make(chan struct{})
		var mu sync.Mutex
		under, most := 0, 0
		names := []string{"a", "b", "c"}
		for i, s := range names {
			c := g.subscribe(s, "sub")
			c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
				if d.Items[0].Attempt == 1 {
					return Answer{}, nil
				}
				mu.Lock()
				under++
				most = max(most, under)
				mu.Unlock()
				<-gate
				mu.Lock()
				under--
				mu.Unlock()
				return Answer{}, nil
			}
			subs, err := g.registry.Subscriptions(t.Context(), g.qualified(s))
			if err != nil {
				t.Fatal(err)
			}
			first := penstock.Token{Lo: uint64(i + 1)}
			a := Attempt{Subscription: subs[0].ID(), Incarnation: subs[0].Incarnation, First: first, End: after(first), N: 1, Open: true}
			store.held[nameOf(&a)] = a
		}
		free := g.subscribe("free", "sub")
		g.start()
		g.feed(box("a", 1), box("b", 2), box("c", 3), box("free", 4))
		g.pump()
		mu.Lock()
		want(t, "suspects under way", under, 1)
		mu.Unlock()
		want(t, "another stream", free.values(), "4")
		for range names {
			gate <- struct{}{}
			synctest.Wait()
		}
		want(t, "suspects at a time", most, 1)
		for i, s := range names {
			want(t, s, g.consumers[s+"/sub"].tries(), fmt.Sprintf("%d:2", i+1))
		}
		// A suspect that hangs holds the others for a minute.
		for i, s := range names[:2] {
			subs, _ := g.registry.Subscriptions(t.Context(), g.qualified(s))
			first := penstock.Token{Lo: uint64(i + 5)}
			a := Attempt{Subscription: subs[0].ID(), Incarnation: subs[0].Incarnation, First: first, End: after(first), N: 1, Open: true}
			store.held[nameOf(&a)] = a
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
		g.start()
		g.feed(box("a", 5), box("b", 6))
		g.pump()
		time.Sleep(suspectWait - time.Second)
		mu.Lock()
		want(t, "suspects before the minute is over", under, 1)
		mu.Unlock()
		time.Sleep(2 * time.Second)
		mu.Lock()
		want(t, "suspects behind it", under, 2)
		mu.Unlock()
		close(gate)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Environment of the child process of TestEventThatEndsTheProcessIsGivenUp_G8.
const poisonDir = "PENSTOCK_TEST_POISON_DIR"

// poisoned is one life of a process that settles what it gets and ends on
// "poison". It tells what happens, and returns when "last" is settled.
func poisoned(dir string, publish bool) error {
	topic, err := OpenTopic(queue.Config[Container]{Name: "topic", Partitions: 1, Dir: filepath.Join(dir, "topic"), Durability: penstock.Written, Logger: quiet})
	if err != nil {
		return err
	}
	store, err := OpenStore(filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	p, err := Open(Config{
		Name: "shop", Factory: topic, Queues: 1, Logger: quiet, Registry: store.Registry(), Attempts: store.Attempts(), MaxAttempts: 3,
		DeadLetter: func(_ context.Context, events ...penstock.Envelope) error {
			for _, e := range events {
				fmt.Printf("dead %s after %d\n", e.Value, e.Attempt)
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	last := make(chan struct{})
	s := Of[string](p, "n", "k")
	_, err = s.Subscribe(context.Background(), "sub", func(_ context.Context, b penstock.Batch[string]) error {
		for i, v := range b.Values() {
			fmt.Printf("offered %s %d\n", v, b.Attempt(i))
			switch v {
			case "poison":
				os.Exit(3)
			case "last":
				close(last)
			}
		}
		return nil
	})
	if publish {
		for _, v := range []string{"first", "poison", "last"} {
			err = errors.Join(err, s.Publish(context.Background(), v))
		}
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ended below, and waited for
	<-last
	cancel()
	return errors.Join(<-ended, p.Close(), topic.Close(), store.Close())
}

// livesOf starts this binary again and again, at most so many times, until it
// does not end with code 3, and returns what each said.
func livesOf(t *testing.T, what string, most int) (lives []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for n := range most {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), what+"="+dir, killedLife+"="+fmt.Sprint(n))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said = append(said, lines.Text())
		}
		err = cmd.Wait()
		cancel()
		lives = append(lives, strings.Join(said, ", "))
		if code := cmd.ProcessState.ExitCode(); code != 3 {
			if err != nil {
				t.Errorf("life %d: %v: %v", n, err, said)
			}
			break
		}
	}
	return lives
}

// An event that ends the process each time that it is offered is given up after
// the attempts that it may have, because the store has counted those of earlier
// processes; what is behind it goes on.
func TestEventThatEndsTheProcessIsGivenUp_G8(t *testing.T) {
	lives := livesOf(t, poisonDir, 6)
	var poison []string
	for _, l := range lives {
		for _, s := range strings.Split(l, ", ") {
			if strings.Contains(s, "poison") {
				poison = append(poison, s)
			}
		}
	}
	if wanted := []string{"offered poison 1", "offered poison 2", "offered poison 3", `dead "poison" after 3`}; !slices.Equal(poison, wanted) {
		t.Errorf("of the poison: %q, want %q; lives %q", poison, wanted, lives)
	}
	if len(lives) != 4 || !strings.Contains(lives[len(lives)-1], "offered last 1") {
		t.Errorf("lives %q, want 4, and the last event to be offered in the last one", lives)
	}
}

// What was stored is there again, and nothing else.
func TestFileAttemptsOutliveTheProcess(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	q := QueueID{Name: "q", Number: 3}
	at := func(i byte, n int) Attempt {
		return Attempt{Subscription: SubscriptionID{i}, Incarnation: 7, First: penstock.Token{Hi: 1, Lo: uint64(i), Index: 2}, End: penstock.Token{Hi: 1, Lo: uint64(i), Index: 5}, N: n, Open: i%2 == 0}
	}
	load := func(s *Store) map[SubscriptionID]Attempt {
		t.Helper()
		all, err := s.Attempts().LoadAttempts(t.Context(), "shop", q)
		if err != nil {
			t.Fatal(err)
		}
		out := map[SubscriptionID]Attempt{}
		for _, a := range all {
			out[a.Subscription] = a
		}
		return out
	}
	for i := range byte(6) {
		for n := 1; n <= 2; n++ {
			if err := s.Attempts().StoreAttempt(t.Context(), "shop", q, at(i, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, i := range []byte{0, 4, 9} {
		if err := s.Attempts().StoreAttempt(t.Context(), "shop", q, at(i, 0)); err != nil {
			t.Fatal(err)
		}
	}
	wanted := map[SubscriptionID]Attempt{{1}: at(1, 2), {2}: at(2, 2), {3}: at(3, 2), {5}: at(5, 2)}
	for range 3 {
		if got := load(s); fmt.Sprint(got) != fmt.Sprint(wanted) {
			t.Fatalf("holds %v, want %v", got, wanted)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Attempts().StoreAttempt(t.Context(), "shop", q, at(1, 1)); !errors.Is(err, penstock.ErrClosed) {
			t.Errorf("store after close: %v", err)
		}
		s = memStore(t, m)
	}
	load(s)
	s.Close()
	path := filepath.Join("store", attemptFileName("shop", q))
	info, err := m.Stat(path)
	if err != nil || info.Size != 5*attemptSlot {
		t.Errorf("%v, %d bytes, want a head and four entries", err, info.Size)
	}
	// A damaged entry counts for nothing, a damaged head is told.
	f, err := m.Open(path, true)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int64) {
		t.Helper()
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0x20
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	for at := range int64(attemptSlot) {
		flip(at)
		s := memStore(t, m)
		_, err := s.Attempts().LoadAttempts(t.Context(), "shop", q)
		if wanted := map[bool]error{true: penstock.ErrUnsupported, false: penstock.ErrCorrupt}[at == 7]; !errors.Is(err, wanted) || !strings.Contains(err.Error(), attemptFileName("shop", q)) {
			t.Errorf("byte %d of the head flipped: %v, want %v that names the file", at, err, wanted)
		}
		s.Close()
		flip(at)
	}
	flip(2*attemptSlot + 30)
	s = memStore(t, m)
	if got := load(s); len(got) != 3 {
		t.Errorf("with a damaged entry: %v, want the other three", got)
	}
	s.Close()
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	s = memStore(t, m)
	if got := load(s); len(got) != 0 {
		t.Errorf("an empty file holds %v", got)
	}
	if err := s.Attempts().StoreAttempt(t.Context(), "shop", q, at(1, 1)); err != nil {
		t.Error(err)
	}
	s.Close()
}

// Whatever a file holds, it is read, and what is read is stored again.
func FuzzStoredAttempts(f *testing.F) {
	head := attemptHead("shop", QueueID{Number: 3})
	var one [attemptSlot]byte
	encodeAttempt(&one, Attempt{Subscription: SubscriptionID{1}, Incarnation: 2, End: penstock.Token{Lo: 1}, N: 3, Open: true})
	f.Add(head[:])
	f.Add(append(head[:], one[:]...))
	f.Add(append(append(head[:], make([]byte, attemptSlot)...), one[:]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := vfs.NewMem()
		s := memStore(t, m)
		defer s.Close()
		file, err := m.Create(filepath.Join("store", attemptFileName("shop", QueueID{Number: 3})))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		a, err := s.Attempts().LoadAttempts(t.Context(), "shop", QueueID{Number: 3})
		if err != nil {
			if !errors.Is(err, penstock.ErrCorrupt) && !errors.Is(err, penstock.ErrUnsupported) {
				t.Fatalf("%v is neither ErrCorrupt nor ErrUnsupported", err)
			}
			return
		}
		for _, x := range a {
			if x.N <= 0 {
				t.Fatalf("entry %+v", x)
			}
		}
	})
}

// Attempts are refused where tokens mean nothing to the next process.
func TestAttemptsNeedAnAdapterThatRewinds(t *testing.T) {
	q, err := OpenVisibilityQueue(VisibilityConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(Config{Name: "p", Factory: q, Attempts: &spyAttempts{}})
	var field *penstock.FieldError
	if !errors.As(err, &field) || field.Field != "Attempts" {
		t.Errorf("open: %v, want a refusal of Attempts", err)
	}
}

// A rewind is no attempt, as it is none in the ledger.
func TestRewindIsNoStoredAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &spyAttempts{}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts = store })
		c := g.subscribe("s", "sub")
		c.onDeliver = func(n int, _ *Delivery) (Answer, error) {
			switch n {
			case 1:
				return Answer{}, errBoom
			case 2:
				return Answer{Rewind: at(PositionAt, 1)}, nil
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		time.Sleep(time.Minute)
		want(t, "stored", store.words(), "1-1:1? 1-1:1 1-1:2? 1-1:1 1-1:2? 1-1:0")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// ended refuses what is stored with a context that has ended, as [FileAttempts].
type ended struct{ *spyAttempts }

func (s ended) StoreAttempt(ctx context.Context, provider string, q QueueID, a Attempt) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.spyAttempts.StoreAttempt(ctx, provider, q, a)
}

// An answer that comes when a drain was cut is stored: the event is none during
// which a process has ended.
func TestAnswerToACutDrainIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &spyAttempts{}
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts = ended{store} })
		c := g.subscribe("s", "sub")
		c.gate = make(chan struct{})
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.AfterFunc(1500*time.Millisecond, func() { close(c.gate) })
		_ = g.agent.stop(ctx) // nothing is left: the handler has returned by then
		want(t, "stored", store.words(), "1-1:1? 1-1:0")
	})
}

// Entries of what is settled are used again, and the file says when it is full.
func TestFileOfAttemptsDoesNotGrowWithWhatIsSettled(t *testing.T) {
	m := vfs.NewMem()
	s := memStore(t, m)
	defer s.Close()
	q := QueueID{Name: "q", Number: 3}
	store := func(i int, incarnation uint64, n int) error {
		id := SubscriptionID{byte(i), byte(i >> 8)}
		return s.Attempts().StoreAttempt(t.Context(), "shop", q, Attempt{Subscription: id, Incarnation: incarnation, End: penstock.Token{Lo: 1}, N: n, Open: n == 1})
	}
	for i := range 1000 {
		for _, n := range []int{1, 0} {
			if err := store(i, 1, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	info, err := m.Stat(filepath.Join("store", attemptFileName("shop", q)))
	if err != nil || info.Size != 2*attemptSlot {
		t.Errorf("%v, %d bytes, want a head and an entry", err, info.Size)
	}
	// The answer of an earlier subscription of a name does not count for the one
	// that has the name now.
	for _, a := range [][2]int{{1, 3}, {2, 4}, {1, 0}} {
		if err := store(7, uint64(a[0]), a[1]); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Attempts().LoadAttempts(t.Context(), "shop", q)
	if err != nil || len(all) != 1 || all[0].N != 4 || all[0].Incarnation != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	full := attemptFile{slots: maxStoreFile/attemptSlot - 1}
	if _, err := full.slot(); !errors.Is(err, penstock.ErrTooLarge) {
		t.Errorf("a full file: %v", err)
	}
}

// openAt is an entry of a process that ended while it made attempt n at lo.
func openAt(rec SubscriptionRecord, lo uint64, n int) Attempt {
	t := penstock.Token{Lo: lo}
	return Attempt{Subscription: rec.ID(), Incarnation: rec.Incarnation, First: t, End: after(t), N: n, Open: true}
}

// An event that was settled before and is delivered again does not take the
// place of the event during which the process ended: when the process ends
// again before that one's turn, its attempts are still known.
func TestReplayedEventKeepsTheEntryBehindIt_G8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.maxAttempts, c.suspects = store, 3, make(suspects, 1) })
		c := g.subscribe("s", "sub")
		subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		if err != nil {
			t.Fatal(err)
		}
		poison := openAt(subs[0], 3, 2)
		store.held[nameOf(&poison)] = poison
		var left []string
		c.onDeliver = func(_ int, d *Delivery) (Answer, error) {
			left = append(left, store.left())
			return Answer{}, nil
		}
		g.start()
		g.feed(boxes("s", 1, 4)...)
		g.pump()
		want(t, "offered", c.tries(), "1:1 2:1 3:3 4:1")
		want(t, "in the store during each", strings.Join(left, ", "), "1-1:1? 3-3:2?, 2-2:1? 3-3:2?, 3-3:3?, 4-4:1?")
		want(t, "in the store at the end", store.left(), "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// left returns what is held, by token.
func (s *spyAttempts) left() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.SortedFunc(maps.Values(s.held), func(a, b Attempt) int { return a.First.Compare(b.First) })
	var out []string
	for _, a := range all {
		out = append(out, a.words())
	}
	return strings.Join(out, " ")
}

func (a Attempt) words() string {
	return fmt.Sprintf("%d-%d:%d%s", a.First.Lo, a.End.Lo, a.N, map[bool]string{true: "?"}[a.Open])
}

// Environment of the child process of TestTwoStreamsThatEndTheProcessAreGivenUp.
const poisonsDir = "PENSTOCK_TEST_POISONS_DIR"

// twicePoisoned is one life of a process that ends on an event of either of two
// streams, which both have settled an event before it. A third stream, whose
// subscription nobody handles, keeps the checkpoint below all of them. It returns when both are dead letters.
func twicePoisoned(dir string, publish bool) error {
	topic, err := OpenTopic(queue.Config[Container]{Name: "topic", Partitions: 1, Dir: filepath.Join(dir, "topic"), Durability: penstock.Written, Logger: quiet})
	if err != nil {
		return err
	}
	store, err := OpenStore(filepath.Join(dir, "store"))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var once sync.Once
	dead := map[string]bool{}
	given := make(chan struct{})
	p, err := Open(Config{
		Name: "shop", Factory: topic, Queues: 1, Logger: quiet, Registry: store.Registry(), Attempts: store.Attempts(), MaxAttempts: 3,
		DeadLetter: func(_ context.Context, events ...penstock.Envelope) error {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range events {
				fmt.Printf("dead %s after %d\n", e.Stream.Key, e.Attempt)
				if dead[e.Stream.Key] = true; len(dead) == 2 {
					once.Do(func() { close(given) })
				}
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	hold := Of[string](p, "n", "hold")
	_, err = store.Registry().Subscribe(context.Background(), SubscriptionRecord{Stream: QualifiedStreamID{Provider: "shop", StreamID: penstock.StreamID{Namespace: "n", Key: "hold"}}, Name: "nobody"})
	if publish {
		err = errors.Join(err, hold.Publish(context.Background(), "held"))
	}
	var settled sync.WaitGroup // by the poison of either stream: its neighbour has settled, too
	settled.Add(2)
	for _, key := range []string{"a", "b"} {
		s := Of[string](p, "n", key)
		_, e := s.Subscribe(context.Background(), "sub", func(_ context.Context, b penstock.Batch[string]) error {
			for i, v := range b.Values() {
				fmt.Printf("offered %s %s %d\n", key, v, b.Attempt(i))
				if v == "poison" {
					settled.Wait()
					os.Exit(3)
				}
				settled.Done()
			}
			return nil
		})
		err = errors.Join(err, e)
	}
	for _, v := range []string{"first", "poison"} {
		for _, key := range []string{"a", "b"} {
			if publish {
				err = errors.Join(err, Of[string](p, "n", key).Publish(context.Background(), v))
			}
		}
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }() // ended below, and waited for
	<-given
	cancel()
	return errors.Join(<-ended, p.Close(), topic.Close(), store.Close())
}

// Two streams whose events end the process do not keep each other from being
// given up, although both are delivered an earlier event again in each life, and
// the checkpoint does not move.
func TestTwoStreamsThatEndTheProcessAreGivenUp(t *testing.T) {
	lives := livesOf(t, poisonsDir, 12)
	last := lives[len(lives)-1]
	// Each may be offered three times; the last life gives up what is left.
	if len(lives) > 7 || !strings.Contains(last, "dead a after 3") || !strings.Contains(last, "dead b after 3") {
		t.Errorf("%d lives, want at most 7: %q", len(lives), lives)
	}
}
