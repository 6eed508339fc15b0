package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/segfile"
	"github.com/penstock/penstock/settle"
)

// picky is a codec that cannot read values that begin with "bad", and panics at
// those that begin with "panic", until it is repaired.
type picky struct {
	penstock.Codec[string]
	repaired *atomic.Bool
}

func (c picky) Decode(src []byte, v *string) error {
	if !c.repaired.Load() {
		switch {
		case strings.Contains(string(src), "bad"):
			*v = "half of it"
			return errUnreadable
		case strings.Contains(string(src), "panic"):
			panic("no such schema")
		}
	}
	return c.Codec.Decode(src, v)
}

// pickyTopic opens a topic whose codec cannot read some values.
func pickyTopic(t *testing.T, c queue.Config[string]) (*queue.Topic[string], *atomic.Bool) {
	t.Helper()
	repaired := new(atomic.Bool)
	c.Codec = picky{penstock.String(), repaired}
	return open(t, storage{"file"}, c), repaired
}

// letters is a place for dead letters.
type letters struct {
	recorded[penstock.Event[string]]
	refuse atomic.Bool
}

func (l *letters) send(_ context.Context, events ...penstock.Event[string]) error {
	if l.refuse.Load() {
		return errors.New("no place")
	}
	l.add(events...)
	return nil
}

// tell says what matters of dead letters.
func (l *letters) tell() (out []string) {
	for _, e := range l.take() {
		payload, record, ok := queue.Undecoded(e)
		out = append(out, fmt.Sprintf("%q %d/%d %s attempt %d, %q %v %v: %s", e.Value, e.Origin.Partition, e.Origin.Offset, e.Origin.Group, e.Attempt, payload, record, ok, e.Origin.Cause))
	}
	return out
}

func deadGroup(t *testing.T, topic *queue.Topic[string], gc queue.GroupConfig, l *letters) *queue.Group[string] {
	t.Helper()
	g, err := topic.Group("g", gc, queue.DeadLetter(l.send))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// An event that cannot be decoded goes to the dead letters with its bytes, and
// the rest goes on in order, whatever the way of Run.
func TestEventThatCannotBeDecodedIsADeadLetter_BQ98(t *testing.T) {
	for name, gc := range map[string]queue.GroupConfig{
		"one":          {},
		"single":       {BatchMax: 1},
		"workers":      {Workers: 3, BatchMax: 2},
		"auto":         {AutoCommit: true},
		"auto workers": {AutoCommit: true, Workers: 2},
		"limited":      {BatchBytes: 3, Rate: 1, Burst: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic, _ := pickyTopic(t, queue.Config[string]{Size: func(v string) penstock.Bytes {
					if v == "" {
						panic("a size of what was not read was asked for")
					}
					return penstock.Bytes(len(v))
				}})
				var l letters
				g := deadGroup(t, topic, gc, &l)
				produce(t, topic, "a", "b", "bad", "panic", "c")
				if err := topic.ProduceEvents(t.Context(), penstock.Event[string]{Value: "bad 2", Meta: penstock.Meta{ID: "id", Key: "k", Header: penstock.Header{{Name: "h", Value: "v"}}}}); err != nil {
					t.Fatal(err)
				}
				produce(t, topic, "d")
				var got recorded[string]
				run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
					got.add(b.Values()...)
					return nil
				})
				time.Sleep(time.Minute)
				run.mustStop(t)
				if diff := cmp.Diff([]string{"a", "b", "c", "d"}, got.take()); diff != "" && gc.Workers == 0 {
					t.Errorf("handled (-want +got):\n%s", diff)
				}
				all := l.values
				told := l.tell()
				slices.Sort(told) // workers hand over events without a key in any order
				if diff := cmp.Diff([]string{
					`"" 0/2 g attempt 1, "bad" false true: event 2 cannot be decoded: schema is unknown`,
					`"" 0/3 g attempt 1, "panic" false true: event 3 cannot be decoded: codec of topic topic: panic: no such schema`,
					`"" 0/5 g attempt 1, "bad 2" false true: event 5 cannot be decoded: schema is unknown`,
				}, told); diff != "" {
					t.Errorf("dead letters (-want +got):\n%s", diff)
				}
				last := slices.IndexFunc(all, func(e penstock.Event[string]) bool { return e.Origin.Offset == 5 })
				if e := all[last]; e.ID != "id" || e.Key != "k" || e.Header.Get("h") != "v" || e.Time.IsZero() {
					t.Errorf("the dead letter %+v lost what was produced with it", e)
				}
				wantCommitted(t, g, 7)
				st := g.Stats()
				if st.Undecodable != 3 || st.Run.DeadLettered != 3 || st.Run.Delivered != 4 || st.Run.Failed != 0 || st.Run.Dropped != 0 || st.ReadErrors != 0 {
					t.Errorf("stats %+v, run %+v", st, st.Run)
				}
				if st.LastError == nil || st.LastError.Kind != queue.KindDecode {
					t.Errorf("last error %+v", st.LastError)
				}
			})
		})
	}
}

// A dead letter that is not taken holds its place, and is tried again.
func TestUndecodableEventWaitsForItsDeadLetter(t *testing.T) {
	for _, workers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			topic, _ := pickyTopic(t, queue.Config[string]{})
			var l letters
			l.refuse.Store(true)
			g := deadGroup(t, topic, queue.GroupConfig{Workers: workers, Retry: settle.Policy{Backoff: backoff}}, &l)
			produce(t, topic, "a", "bad", "b")
			run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return nil })
			time.Sleep(10 * time.Second)
			wantCommitted(t, g, 1)
			if st := g.Stats(); st.State != queue.NotTaken || st.Undecodable != 0 {
				t.Errorf("%s: %s; %d undecodable", st.State, st.Why, st.Undecodable)
			}
			l.refuse.Store(false)
			time.Sleep(time.Minute)
			run.mustStop(t)
			wantCommitted(t, g, 3)
			if n := len(l.take()); n != 1 || g.Stats().Undecodable != 1 {
				t.Errorf("%d dead letters, %d counted, want one", n, g.Stats().Undecodable)
			}
		})
	}
}

// Without a place for it, such an event stops its partition, and no other one;
// Run says why at its end. A seek behind it goes on.
func TestUndecodableEventStopsItsPartitionAlone_BQ89(t *testing.T) {
	for _, gc := range []queue.GroupConfig{{}, {Workers: 3}, {OnUndecodable: queue.StopAtUndecodable}, {AutoCommit: true}, {Consumers: 2}} {
		synctest.Test(t, func(t *testing.T) {
			topic, _ := pickyTopic(t, queue.Config[string]{Partitions: 2})
			var l letters
			g := group(t, topic, "g", gc)
			if gc.OnUndecodable == queue.StopAtUndecodable {
				g.Close()
				g = deadGroup(t, topic, gc, &l)
			}
			produce(t, topic, "a0", "b0", "bad", "b1", "a2", "b2")
			var got recorded[string]
			run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
				got.add(b.Values()...)
				return nil
			})
			time.Sleep(time.Minute)
			wantCommitted(t, g, 1, 3)
			st := g.Stats()
			if u := st.Run.Unreadable; len(u) != 1 || u[0].Partition != 0 || u[0].Offset != 1 || !u[0].Next.IsZero() || st.State != queue.Faulted || !strings.Contains(st.Why, "partition 0 is stopped at offset 1: ") {
				t.Errorf("unreadable %+v, %s: %s", u, st.State, st.Why)
			}
			if st.ReadErrors != 1 || st.LastError == nil || st.LastError.Kind != queue.KindRead {
				t.Errorf("%d read errors, last %+v", st.ReadErrors, st.LastError)
			}
			produce(t, topic, "a3", "b3")
			time.Sleep(time.Minute)
			wantCommitted(t, g, 1, 4)
			if err := g.SeekOffset(t.Context(), 0, 2); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			wantCommitted(t, g, 4, 4)
			if u := g.Stats().Run.Unreadable; len(u) != 0 {
				t.Errorf("after the seek: unreadable %+v", u)
			}
			wantErr(t, run.stop(), errUnreadable)
			if n := len(got.take()); n != 7 || len(l.take()) != 0 {
				t.Errorf("%d handled, want 7, and no dead letter", n)
			}
		})
	}
}

// A run without a partition that it can go on with ends by itself, when what
// came before has been settled.
func TestRunEndsWhenNoPartitionIsLeft(t *testing.T) {
	for _, workers := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			topic, repaired := pickyTopic(t, queue.Config[string]{Partitions: 2})
			g := group(t, topic, "g", queue.GroupConfig{Workers: workers, OnFail: queue.Block, Retry: settle.Policy{Backoff: backoff}})
			produce(t, topic, "a0", "b0", "bad", "panic")
			handle := func(_ context.Context, b penstock.Batch[string]) error {
				if b.Value(0) == "a0" && b.Attempt(0) < 4 {
					return errHandler
				}
				return nil
			}
			err := g.Run(t.Context(), handle)
			if !errors.Is(err, errUnreadable) {
				if _, ok := errors.AsType[*penstock.PanicError](err); !ok {
					t.Errorf("Run: %v", err)
				}
			}
			if bad, ok := errors.AsType[*queue.UndecodableError](err); !ok || bad.Offset != 1 {
				t.Errorf("Run: %v, want an UndecodableError at offset 1", err)
			}
			wantCommitted(t, g, 1, 1)
			repaired.Store(true)
			run := startRun(t, g, handle)
			time.Sleep(time.Minute)
			run.mustStop(t)
			wantCommitted(t, g, 2, 2)
		})
	}
}

func TestUndecodableEventIsDropped(t *testing.T) {
	for _, gc := range []queue.GroupConfig{{}, {Workers: 2}, {AutoCommit: true}, {AutoCommit: true, Workers: 2}} {
		gc.OnUndecodable = queue.DropUndecodable
		for _, pulled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				topic, _ := pickyTopic(t, queue.Config[string]{})
				var l letters
				g := deadGroup(t, topic, gc, &l)
				produce(t, topic, "bad", "a", "bad", "panic", "b")
				if pulled {
					gc := g.Consumer(0)
					want(t, pull(t, gc, 10), "a")
					_ = gc.Commit()
					want(t, pull(t, gc, 10), "b")
					_ = gc.Commit()
				} else {
					run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return nil })
					time.Sleep(time.Minute)
					run.mustStop(t)
				}
				wantCommitted(t, g, 5)
				if st := g.Stats(); st.Undecodable != 3 || st.Run.DeadLettered != 0 || len(l.take()) > 0 {
					t.Errorf("%d undecodable, %d dead letters, want 3 and none", st.Undecodable, st.Run.DeadLettered)
				}
			})
		}
	}
}

// A pull hands such an event over, in its order, before it returns what follows.
func TestPullHandsOverWhatCannotBeDecoded_BQ98(t *testing.T) {
	for _, auto := range []bool{false, true} {
		topic, _ := pickyTopic(t, queue.Config[string]{Partitions: 2})
		var l letters
		l.refuse.Store(true)
		g := deadGroup(t, topic, queue.GroupConfig{AutoCommit: auto}, &l)
		produce(t, topic, "a0", "b0", "bad", "b1", "panic", "b2", "a3")
		c := g.Consumer(0)
		take := func() []string {
			v := pull(t, c, 10)
			if v != nil && !auto {
				commit(t, c)
			}
			return v
		}
		want(t, take(), "a0")
		want(t, take(), "b0", "b1", "b2")
		_, _, err := c.TryPull(10) // partition 0
		wantErr(t, err, errUnreadable)
		if bad, ok := errors.AsType[*queue.UndecodableError](err); !ok || bad.Offset != 1 || string(bad.Payload) != "bad" || !strings.Contains(err.Error(), "no place") {
			t.Errorf("TryPull: %v", err)
		}
		wantCommitted(t, g, 1, 3)
		l.refuse.Store(false)
		if b, err := c.Pull(t.Context()); err != nil || b.Value(0) != "a3" {
			t.Fatalf("Pull: %v, %v", b, err)
		}
		if !auto {
			commit(t, c)
		}
		wantCommitted(t, g, 4, 3)
		if diff := cmp.Diff([]string{
			`"" 0/1 g attempt 1, "bad" false true: event 1 cannot be decoded: schema is unknown`,
			`"" 0/2 g attempt 1, "panic" false true: event 2 cannot be decoded: codec of topic topic: panic: no such schema`,
		}, l.tell()); diff != "" {
			t.Errorf("dead letters (-want +got):\n%s", diff)
		}
		if st := g.Stats(); st.Undecodable != 2 {
			t.Errorf("%d undecodable, want 2", st.Undecodable)
		}
	}
}

// Without a place for it, a pull returns an error whenever the turn comes to its
// partition, and goes on with the others; a seek passes it.
func TestPullSaysWhatCannotBeDecoded_BQ89(t *testing.T) {
	topic, _ := pickyTopic(t, queue.Config[string]{Partitions: 2})
	g := group(t, topic, "g", queue.GroupConfig{})
	produce(t, topic, "bad", "b0", "a1", "b1")
	c := g.Consumer(0)
	for range 2 {
		_, ok, err := c.TryPull(1)
		if bad, is := errors.AsType[*queue.UndecodableError](err); ok || !is || bad.Offset != 0 {
			t.Fatalf("TryPull: %v", err)
		}
		if len(pull(t, c, 1)) != 1 {
			t.Fatal("the other partition has nothing")
		}
		commit(t, c)
	}
	wantCommitted(t, g, 0, 2)
	if st := g.Stats(); st.State != queue.Unreadable || st.ReadErrors != 2 || !strings.Contains(st.Why, "partition 0 could not be read at offset 0") {
		t.Errorf("%s: %s; %d read errors", st.State, st.Why, st.ReadErrors)
	}
	if err := g.SeekOffset(t.Context(), 0, 1); err != nil {
		t.Fatal(err)
	}
	want(t, pull(t, c, 10), "a1")
}

// A record that says it is an envelope and is none goes as a whole.
func TestMalformedEnvelopeIsADeadLetterAsAWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic, _ := pickyTopic(t, queue.Config[string]{})
		var l letters
		g := deadGroup(t, topic, queue.GroupConfig{}, &l)
		f := segfile.NewFrame(1)
		f.SetEnveloped(true)
		f.Add([]byte("\xffno envelope"))
		receipt, err := queue.DiskPartition(topic, 0).Append(t.Context(), f)
		if err == nil {
			_, err = receipt.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, "a")
		run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return nil })
		time.Sleep(time.Minute)
		run.mustStop(t)
		wantCommitted(t, g, 2)
		if got := l.tell(); len(got) != 1 || !strings.HasPrefix(got[0], `"" 0/0 g attempt 1, "\xffno envelope" true true: event 0 cannot be decoded: `) {
			t.Errorf("dead letters %q", got)
		}
	})
}

// When the codec is repaired, Redrive decodes what could not be decoded and
// sends it back as it was produced; before that it stays.
func TestRedriveDecodesAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic, repaired := pickyTopic(t, queue.Config[string]{Name: "orders"})
		dead := open(t, storage{"file"}, queue.Config[string]{Name: "dead"})
		from := group(t, dead, "redrive", queue.GroupConfig{})
		g, err := topic.Group("g", queue.GroupConfig{}, queue.DeadLetter(dead.ProduceEvents))
		if err != nil {
			t.Fatal(err)
		}
		if err := topic.ProduceEvents(t.Context(), penstock.Event[string]{Value: "bad 1", Meta: penstock.Meta{ID: "id", Header: penstock.Header{{Name: "h", Value: "v"}}}}); err != nil {
			t.Fatal(err)
		}
		produce(t, topic, "a")
		c := queue.RedriveConfig[string]{To: []*queue.Topic[string]{topic}}
		var got recorded[penstock.Event[string]]
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[string]) error {
			for i := range b.Len() {
				got.add(b.Event(i))
			}
			return nil
		})
		time.Sleep(time.Second)
		dry := c
		dry.DryRun = true
		report, err := queue.Redrive(t.Context(), from, dry)
		if err != nil || report != (queue.RedriveReport{Failed: 1}) {
			t.Errorf("a dry run with the old codec = %+v, %v", report, err)
		}
		report, err = queue.Redrive(t.Context(), from, c)
		if err != nil || report != (queue.RedriveReport{Failed: 1}) {
			t.Errorf("Redrive with the old codec = %+v, %v", report, err)
		}
		repaired.Store(true)
		report, err = queue.Redrive(t.Context(), from, dry)
		if err != nil || report != (queue.RedriveReport{Redriven: 1}) {
			t.Errorf("a dry run with the new codec = %+v, %v", report, err)
		}
		report, err = queue.Redrive(t.Context(), from, c)
		if err != nil || report != (queue.RedriveReport{Redriven: 1}) {
			t.Errorf("Redrive with the new codec = %+v, %v", report, err)
		}
		time.Sleep(time.Second)
		run.mustStop(t)
		events := got.take()
		if len(events) != 2 || events[1].Value != "bad 1" || events[1].ID != "id" || len(events[1].Header) != 2 || events[1].Header.Get("h") != "v" || events[1].Header.Get(queue.RedrivenHeader) != "1" {
			t.Errorf("handled %+v", events)
		}
	})
}

// A dead letter that its own topic cannot decode does not end a redrive: it goes
// back when its origin can read it, and else stays with its bytes.
func TestRedriveGoesOnBehindWhatTheDeadLetterTopicCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := open(t, storage{"file"}, queue.Config[string]{Name: "orders", Codec: penstock.String()})
		backlog := group(t, orders, "g", queue.GroupConfig{})
		dead, _ := pickyTopic(t, queue.Config[string]{Name: "dead"})
		from := group(t, dead, "redrive", queue.GroupConfig{})
		origin := &penstock.Origin{Topic: "orders", Group: "g"}
		for _, e := range []penstock.Event[string]{
			{Value: "bad 1", Meta: penstock.Meta{ID: "1", Origin: origin}},
			{Value: "bad 2", Meta: penstock.Meta{ID: "2", Origin: &penstock.Origin{Topic: "elsewhere"}}},
			{Value: "panic 3"},
			{Value: "good 4", Meta: penstock.Meta{ID: "4", Origin: origin}},
		} {
			if err := dead.ProduceEvents(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		c := queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}, DryRun: true}
		want := queue.RedriveReport{Redriven: 2, Failed: 2}
		for range 2 {
			if report, err := queue.Redrive(t.Context(), from, c); err != nil || report != want {
				t.Fatalf("Redrive with DryRun %v = %+v, %v", c.DryRun, report, err)
			}
			c.DryRun = false
		}
		if got := drainAll(t, backlog); len(got) != 2 || got[0].Value != "bad 1" || got[0].ID != "1" || got[1].Value != "good 4" {
			t.Errorf("sent back: %+v", got)
		}
		if report, err := queue.Redrive(t.Context(), from, c); err != nil || report != (queue.RedriveReport{Failed: 2}) {
			t.Errorf("Redrive of what stayed = %+v, %v", report, err)
		}
		kept := map[string]string{}
		for _, e := range drainAll(t, group(t, dead, "all", queue.GroupConfig{Start: queue.Earliest})) {
			raw, _, _ := queue.Undecoded(e)
			kept[e.Origin.Topic] = string(raw)
		}
		if len(kept) != 2 || kept["elsewhere"] != "bad 2" || kept["dead"] != "panic 3" {
			t.Errorf("kept: %q", kept)
		}
	})
}

// Bytes that do not fit one field come in several, in their order.
func TestLongUndecodedPayloadIsWhole(t *testing.T) {
	topic, _ := pickyTopic(t, queue.Config[string]{})
	dead := open(t, storage{"memory"}, queue.Config[string]{Name: "dead"})
	g, err := topic.Group("g", queue.GroupConfig{}, queue.DeadLetter(dead.ProduceEvents))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for b.WriteString("bad "); b.Len() < 60_000; {
		fmt.Fprint(&b, b.Len(), " ")
	}
	for _, payload := range []string{b.String()[:40_000], b.String()} {
		produce(t, topic, payload)
		if v := pull(t, g.Consumer(0), 1); v != nil {
			t.Fatalf("pulled %q", v)
		}
		letters := drainAll(t, group(t, dead, fmt.Sprint(len(payload)), queue.GroupConfig{}))
		if raw, _, ok := queue.Undecoded(letters[len(letters)-1]); !ok || string(raw) != payload {
			t.Errorf("%d bytes of %d came through", len(raw), len(payload))
		}
	}
}

// A parked event whose codec is another one after a restart is a dead letter,
// or waits when there is no place for it.
func TestParkedEventThatCannotBeDecoded(t *testing.T) {
	for _, hooked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var repaired atomic.Bool
			repaired.Store(true)
			c := keyedOnDisk("data", vfs.NewMem())
			c.Codec = picky{penstock.String(), &repaired}
			gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy(), Drain: time.Second}
			topic, g := openKeyed(t, c, gc)
			produce(t, topic, "bad", "b2", "c")
			run := startRun(t, g, handleWords(failUntil(9, "bad")).handle)
			time.Sleep(time.Second)
			run.mustStop(t)
			closeTopic(t, topic)

			repaired.Store(false)
			var l letters
			var options []queue.GroupOption[string]
			if hooked {
				options = append(options, queue.DeadLetter(l.send))
			}
			topic, g = openKeyed(t, c, gc, options...)
			defer closeTopic(t, topic)
			w := handleWords(nil)
			run = startRun(t, g, w.handle)
			time.Sleep(time.Minute)
			if hooked {
				nothingIsParked(t, g)
				w.want(t, "1s b2")
				if got := l.tell(); len(got) != 1 || !strings.HasPrefix(got[0], `"" 0/0 g attempt 2, "bad" false true: event 0 cannot be decoded`) {
					t.Errorf("dead letters %q", got)
				}
			} else {
				if keys := g.Parked(); len(keys) != 1 || keys[0].Events != 2 || !strings.Contains(keys[0].Cause, "cannot be decoded") {
					t.Errorf("parked %+v", keys)
				}
				repaired.Store(true)
				time.Sleep(time.Minute)
				nothingIsParked(t, g)
			}
			run.mustStop(t)
			wantCommitted(t, g, 3)
		})
	}
}

func TestOnUndecodableIsValidated(t *testing.T) {
	topic := open(t, storage{"memory"}, queue.Config[string]{})
	_, err := topic.Group("g", queue.GroupConfig{OnUndecodable: 3})
	if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "OnUndecodable" {
		t.Errorf("Group: %v", err)
	}
	for o, text := range []string{"dead_letter", "stop", "drop", "on_undecodable(3)"} {
		if got := queue.OnUndecodable(o).String(); got != text {
			t.Errorf("%d is %q, want %q", o, got, text)
		}
	}
}
