package queue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// orderedLife is one life of a process in which three keys are parked, one of
// them is discarded and one is retried while the group runs or when it does not.
type orderedLife struct {
	m       *vfs.Mem
	ordered int // operations of the disk when both orders had been given
	parked  int // and when everything was parked
}

// orderedGroup has a backoff that is longer than all lives of a test together.
func orderedGroup() queue.GroupConfig {
	p := parkPolicy()
	p.Attempts, p.Backoff.Min, p.Backoff.Max = -1, 50_000*time.Hour, 50_000*time.Hour
	return queue.GroupConfig{BatchMax: 1, Drain: time.Second, Retry: p}
}

func (l *orderedLife) live(t *testing.T, c queue.Config[string], running bool) {
	t.Helper()
	topic, g := openKeyed(t, c, orderedGroup(), queue.DeadLetter(func(context.Context, ...penstock.Event[string]) error { return nil }))
	defer closeTopic(t, topic)
	produce(t, topic, "a1", "b1", "c1", "a2", "b2", "c2")
	run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return errHandler })
	time.Sleep(time.Second)
	if n := g.Stats().Parked.Events; n != 6 {
		t.Fatalf("%d events parked, want 6", n)
	}
	if !running {
		run.mustStop(t)
	}
	l.parked = l.m.Ops()
	for key, give := range map[string]func(string) (int, error){"a": g.DiscardParked, "b": g.RetryParked} {
		if n, err := give(key); n != 2 || err != nil {
			t.Fatalf("order for %s = %d, %v, want 2", key, n, err)
		}
	}
	l.ordered = l.m.Ops()
	time.Sleep(time.Second)
	if running {
		run.mustStop(t)
	}
}

// rest is the next life, of a minute: the handler takes everything. It returns
// what came, with "dead" before dead letters.
func (l *orderedLife) rest(t *testing.T, c queue.Config[string], what string) (all []string) {
	t.Helper()
	topic, err := queue.Open(c)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer closeTopic(t, topic)
	take := func(v string) { all = append(all, v) }
	g, err := topic.Group("g", orderedGroup(), queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
		for _, e := range events {
			if !strings.HasPrefix(e.Origin.Cause, "discarded by DiscardParked; the last failure was: "+errHandler.Error()) && e.Value != "a2" {
				t.Errorf("%s: cause %q", what, e.Origin.Cause)
			}
			take("dead " + e.Value)
		}
		return nil
	}))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	produce(t, topic, "a3") // is not what was ordered
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = g.Run(ctx, func(_ context.Context, b penstock.Batch[string]) error {
		for _, v := range b.All() {
			take(v)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return all
}

// Wherever the power goes after an order was given, it is carried out: what was
// discarded is handed over and never comes to the handler again, and what was
// to be retried comes at once.
func TestOrdersForParkedEventsOutliveACrash(t *testing.T) {
	for _, level := range levels {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, running %v", level, running), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := &orderedLife{m: vfs.NewMem()}
					c := keyedOnDisk("data", l.m)
					c.Durability, c.Capacity = level, 100
					l.live(t, c, running)
					n, after := 0, 0
					known := map[uint64]bool{}
					for img := range l.m.Images(vfs.Crashes{From: l.parked, Seed: 1}) {
						if sum := img.FS.Sum(); known[sum] && img.After < l.ordered {
							continue
						} else {
							known[sum] = true
						}
						if n++; testing.Short() && n%4 > 0 {
							continue
						}
						all := l.rest(t, queue.WithFS(c, img.FS), img.Desc)
						if slices.Contains(all, "dead a3") || slices.Contains(all, "c1") {
							t.Fatalf("%s: what was not ordered is carried out: %v", img.Desc, all)
						}
						if img.After < l.ordered {
							continue
						}
						after++
						if slices.Contains(all, "a1") || slices.Contains(all, "a2") || !slices.Contains(all, "a3") {
							t.Fatalf("%s: discarded events come again, or hold what came later: %v", img.Desc, all)
						}
						if !running && (!slices.Contains(all, "dead a1") || !slices.Contains(all, "dead a2") ||
							!slices.Contains(all, "b1") || !slices.Contains(all, "b2")) {
							t.Fatalf("%s: orders are forgotten: %v", img.Desc, all)
						}
					}
					if after < 10 {
						t.Errorf("only %d of %d images lie behind the orders", after, n)
					}
				})
			})
		}
	}
}

// An order is in force for the run after the one that it was given in, too.
func TestOrdersStandUntilTheyAreCarriedOut(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		down := true
		var dead []string
		g, err := topic.Group("g", orderedGroup(), queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
			if down {
				return errHandler
			}
			for _, e := range events {
				dead = append(dead, e.Value)
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, "a1", "a2")
		w := handleWords(failUntil(9, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		if n, err := g.DiscardParked("a"); n != 2 || err != nil {
			t.Errorf("DiscardParked = %d, %v, want 2", n, err)
		}
		time.Sleep(time.Second)
		run.mustStop(t)
		down = false
		run = startRun(t, g, w.handle)
		time.Sleep(2 * time.Hour)
		run.mustStop(t)
		nothingIsParked(t, g)
		want(t, dead, "a1", "a2")
		w.want(t, "0s a1")
		if st := g.Stats(); st.Discarded != 2 {
			t.Errorf("%d discarded, want 2", st.Discarded)
		}
	})
}

// An order that cannot be stored is not given, and says why.
func TestOrderThatCannotBeStoredIsNotGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		topic, g := openKeyed(t, keyedOnDisk("data", m), orderedGroup())
		defer closeTopic(t, topic)
		produce(t, topic, "a1", "b1")
		w := handleWords(failUntil(2, "a1", "b1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		m.SetFault(func(op vfs.Op) vfs.Fault {
			if strings.Contains(op.Name, "retry-orders") && op.Kind == vfs.OpWrite {
				return vfs.Fault{Err: vfs.ErrNoSpace}
			}
			return vfs.Fault{}
		})
		n, err := g.RetryParked("a")
		if wantErr(t, err, penstock.ErrDiskFull); n != 0 || !strings.Contains(err.Error(), "retry-orders") {
			t.Errorf("RetryParked = %d, %v", n, err)
		}
		time.Sleep(time.Second)
		w.want(t, "0s a1", "0s b1")
		m.SetFault(nil)
		if n, err := g.RetryParked("a"); n != 1 || err != nil {
			t.Errorf("RetryParked = %d, %v, want 1", n, err)
		}
		time.Sleep(time.Second)
		w.want(t, "0s a1", "0s b1", "2s a1 2")
		run.mustStop(t)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = g.RetryParked("b")
		wantErr(t, err, penstock.ErrClosed)
	})
}

// The sync of an order fails after its file has got its name. The call said that
// the order is not given, so the next run does not carry it out, and a crash in
// that one does not bring it back.
func TestOrderThatWasNotGivenIsNotCarriedOutByTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		c := queue.GroupConfig{BatchMax: 1, Drain: time.Second, Retry: parkPolicy()}
		var dead []string
		bury := queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
			for _, e := range events {
				dead = append(dead, e.Value)
			}
			return nil
		})
		topic, g := openKeyed(t, keyedOnDisk("data", m), c, bury)
		produce(t, topic, "a1", "a2")
		w := handleWords(failUntil(2, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		m.SetFault(func(op vfs.Op) (f vfs.Fault) {
			if op.Kind == vfs.OpSyncDir && strings.HasSuffix(op.Name, "retry-orders") {
				f.Err = errors.New("input/output error")
			}
			return f
		})
		if _, err := g.DiscardParked("a"); err == nil {
			t.Fatal("DiscardParked returned no error")
		}
		m.SetFault(nil)
		run.mustStop(t)
		run = startRun(t, g, w.handle)
		synctest.Wait()
		left := m.Clone()
		time.Sleep(time.Minute)
		run.mustStop(t)
		closeTopic(t, topic)
		w.want(t, "0s a1", "2s a1 2", "2s a2")

		topic, g = openKeyed(t, keyedOnDisk("data", left), c, bury)
		w = handleWords(nil)
		run = startRun(t, g, w.handle)
		time.Sleep(time.Minute)
		run.mustStop(t)
		closeTopic(t, topic)
		if len(w.calls) != 2 || len(dead) > 0 {
			t.Errorf("calls %v, want a1 and a2; given up %v", w.calls, dead)
		}
	})
}

// Orders that are damaged stop their group, name the file, and go with the
// group.
func TestDamagedOrdersStopTheirGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := keyedOnDisk(dir, nil)
		topic, g := openKeyed(t, c, orderedGroup())
		produce(t, topic, "a1")
		run := startRun(t, g, handleWords(failUntil(9, "a1")).handle)
		time.Sleep(time.Second)
		run.mustStop(t)
		if _, err := g.DiscardParked("a"); err != nil {
			t.Fatal(err)
		}
		closeTopic(t, topic)
		file := filepath.Join(dir, "topic", "retry-orders", "p00000.g")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-1] ^= 1
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		topic, g = openKeyed(t, c, orderedGroup())
		defer closeTopic(t, topic)
		err = g.Run(t.Context(), func(context.Context, penstock.Batch[string]) error {
			t.Error("the handler was called")
			return nil
		})
		wantErr(t, err, penstock.ErrCorrupt)
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v does not name %s", err, file)
		}
		if err := errors.Join(g.Close(), topic.DeleteGroup("g")); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) > 0 {
			t.Errorf("after DeleteGroup there is %v, %v", left, err)
		}
	})
}
