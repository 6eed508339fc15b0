package queue_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/segfile"
)

func TestConfigNamesTheBadField(t *testing.T) {
	for _, test := range []struct {
		field string
		c     queue.Config[int]
	}{
		{"Name", queue.Config[int]{}},
		{"Name", queue.Config[int]{Name: " \t"}},
		{"Name", queue.Config[int]{Name: strings.Repeat("A", 100), Dir: t.TempDir(), Codec: penstock.JSON[int]()}}, // too long when escaped
		{"Partitions", queue.Config[int]{Name: "t", Partitions: -1}},
		{"Partitions", queue.Config[int]{Name: "t", Partitions: 1 << 20}},
		{"Capacity", queue.Config[int]{Name: "t", Capacity: -1}},
		{"CapacityBytes", queue.Config[int]{Name: "t", CapacityBytes: -1}},
		{"CapacityBytes", queue.Config[int]{Name: "t", CapacityBytes: 1}}, // without Size
		{"MaxEvent", queue.Config[int]{Name: "t", MaxEvent: -1}},
		{"MaxEvent", queue.Config[int]{Name: "t", MaxEvent: 1}},
		{"SegmentSize", queue.Config[int]{Name: "t", SegmentSize: -1}},
		{"SegmentSize", queue.Config[int]{Name: "t", SegmentSize: 10, Dir: t.TempDir(), Codec: penstock.JSON[int]()}},
		{"SegmentBytes", queue.Config[int]{Name: "t", SegmentBytes: 1 << 20}}, // without Dir
		{"SegmentEvents", queue.Config[int]{Name: "t", SegmentEvents: 1}},
		{"RetainSegments", queue.Config[int]{Name: "t", RetainSegments: 1}},
		{"RetainSegments", queue.Config[int]{Name: "t", RetainSegments: -1, Dir: t.TempDir(), Codec: penstock.JSON[int]()}},
		{"SyncEvery", queue.Config[int]{Name: "t", SyncEvery: segfile.SyncEvery{Events: 1}}},
		{"WritePath", queue.Config[int]{Name: "t", WritePath: segfile.WritePwrite}}, // without Dir
		{"WritePath", queue.Config[int]{Name: "t", WritePath: 9, Dir: t.TempDir(), Codec: penstock.JSON[int]()}},
		{"WritePath", queue.Config[int]{Name: "t", WritePath: segfile.WriteMapping, Dir: t.TempDir(), Codec: penstock.JSON[int]()}}, // at level synced
		{"WhenFull", queue.Config[int]{Name: "t", WhenFull: 7}},
		{"Router", queue.Config[int]{Name: "t", Key: func(int) string { return "" }, Router: queue.PrefixRouter(func(int) string { return "" })}},
		{"Router", queue.Config[int]{Name: "t", Router: queue.PrefixRouter[int](nil)}},
		{"Router", queue.Config[int]{Name: "t", Router: queue.NumericRouter[int, int](nil)}},
		{"Router", queue.Config[int]{Name: "t", Router: queue.RouterFunc[int]("x", nil)}},
		{"Router", queue.Config[int]{Name: "t", Router: queue.RouterFunc("", func(int, int) int { return 0 })}},
		{"Codec", queue.Config[int]{Name: "t", Dir: t.TempDir()}},
		{"Durability", queue.Config[int]{Name: "t", Durability: penstock.Synced}},
		{"Durability", queue.Config[int]{Name: "t", Dir: t.TempDir(), Codec: penstock.JSON[int](), Durability: penstock.Memory}},
	} {
		_, err := queue.Open(test.c)
		wantErr(t, err, penstock.ErrInvalid)
		var field *penstock.FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("error %v, want one that names %s", err, test.field)
		}
	}
}

func TestGroupConfigNamesTheBadField(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		for _, test := range []struct {
			field, name string
			c           queue.GroupConfig
		}{
			{"name", "", queue.GroupConfig{}},
			{"name", "  ", queue.GroupConfig{}},
			{"Consumers", "g", queue.GroupConfig{Consumers: 3}},
			{"Consumers", "g", queue.GroupConfig{Consumers: -1}},
			{"BatchMax", "g", queue.GroupConfig{BatchMax: -1}},
			{"Start", "g", queue.GroupConfig{Start: 9}},
		} {
			_, err := topic.Group(test.name, test.c)
			var field *penstock.FieldError
			if !errors.As(err, &field) || field.Field != test.field {
				t.Errorf("error %v, want one that names %s", err, test.field)
			}
		}
		if n := len(topic.Stats().Groups); n != 0 {
			t.Errorf("%d groups are left of failed creations", n)
		}
	})
}

func TestGroupNameIsTakenUntilClose(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		_, err := topic.Group("g", queue.GroupConfig{})
		wantErr(t, err, penstock.ErrExists)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		second := group(t, topic, "g", queue.GroupConfig{})
		if err := g.Close(); err != nil { // a second call does nothing
			t.Fatal(err)
		}
		produce(t, topic, 1)
		if diff := cmp.Diff([]int{1}, pull(t, second.Consumer(0), 1)); diff != "" {
			t.Error(diff)
		}
		_, _, err = g.Consumer(0).TryPull(1)
		wantErr(t, err, penstock.ErrClosed)
	})
}

// TestCommitOfAClosedGroupIsAnError: what a closed group still holds in hands
// moves nothing, also not the group that has its name now (BQ-76).
func TestCommitOfAClosedGroupIsAnError(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 4, WhenFull: queue.Fail})
		keeper := group(t, topic, "keeper", queue.GroupConfig{})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 0, 1, 2, 3)
		b, ok, err := g.Consumer(0).TryPull(10)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			second := group(t, topic, "g", queue.GroupConfig{})
			wantErr(t, b.Commit(), penstock.ErrClosed)
			wantErr(t, g.Consumer(0).Commit(), penstock.ErrClosed)
			wantCommitted(t, second, 0, 0)
			if err := second.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wantCommitted(t, keeper, 0, 0)
		if ok, err := topic.TryProduce(t.Context(), 4); ok || err != nil {
			t.Errorf("room was made: %t, %v", ok, err)
		}
	})
}

func TestGroupIsUsedInOneWay(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{})
		pull(t, g.Consumer(0), 1)
		_, err := g.Reader(0)
		wantErr(t, err, penstock.ErrExists)
		h := group(t, topic, "h", queue.GroupConfig{})
		if _, err := h.Reader(0); err != nil {
			t.Fatal(err)
		}
		_, _, err = h.Consumer(0).TryPull(1)
		wantErr(t, err, penstock.ErrExists)
	})
}

// TestCloseWakesEveryone closes group and topic in every state of their users.
func TestCloseWakesEveryone(t *testing.T) {
	states := map[string]func(t *testing.T, topic *queue.Topic[int], g *queue.Group[int]) func() error{
		"waiting pull": func(t *testing.T, _ *queue.Topic[int], g *queue.Group[int]) func() error {
			return func() error { _, err := g.Consumer(0).Pull(t.Context()); return err }
		},
		"waiting reader": func(t *testing.T, _ *queue.Topic[int], g *queue.Group[int]) func() error {
			r, err := g.Reader(0)
			if err != nil {
				t.Fatal(err)
			}
			return func() error { return r.Wait(t.Context()) }
		},
		"waiting producer": func(t *testing.T, topic *queue.Topic[int], _ *queue.Group[int]) func() error {
			produce(t, topic, 1, 2)
			return func() error { return topic.Produce(t.Context(), 3) }
		},
		"between slices": func(t *testing.T, topic *queue.Topic[int], _ *queue.Group[int]) func() error {
			return func() error { return topic.Produce(t.Context(), 1, 2, 3) }
		},
	}
	for name, state := range states {
		for _, what := range []string{"group", "topic"} {
			if what == "group" && strings.Contains(name, "producer") || what == "group" && name == "between slices" {
				continue // a producer does not belong to a group
			}
			t.Run(name+", close "+what, func(t *testing.T) {
				inBubble(t, func(t *testing.T, s storage) {
					topic := open(t, s, queue.Config[int]{Capacity: 2})
					g := group(t, topic, "g", queue.GroupConfig{})
					c := start(t, state(t, topic, g))
					c.blocked()
					closeIt := g.Close
					if what == "topic" {
						closeIt = topic.Close
					}
					for range 2 {
						if err := closeIt(); err != nil {
							t.Fatal(err)
						}
					}
					wantErr(t, c.wait(), penstock.ErrClosed)
				})
			})
		}
	}
}

func TestEverythingIsClosedAfterClose(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 5})
		g := group(t, topic, "g", queue.GroupConfig{})
		produce(t, topic, 1)
		b, _, _ := g.Consumer(0).TryPull(1)
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		_, groupErr := topic.Group("h", queue.GroupConfig{})
		_, _, pullErr := g.Consumer(0).TryPull(1)
		_, waitErr := g.Consumer(0).Pull(t.Context())
		_, tryErr := topic.TryProduce(t.Context(), 1)
		for _, err := range []error{
			topic.Produce(t.Context(), 1), topic.Produce(t.Context(), 1, 2), tryErr,
			groupErr, pullErr, waitErr, g.Consumer(0).Commit(), b.Commit(),
		} {
			wantErr(t, err, penstock.ErrClosed)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		topic.Stats()
	})
}

// TestCloseOfGroupLeavesBatchesReadable lets another group finish and the
// producer go on while a closed group's consumer still reads its batch; the
// race detector watches.
func TestCloseOfGroupLeavesBatchesReadable(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: segment(s, 4)})
		g := group(t, topic, "g", queue.GroupConfig{})
		other := group(t, topic, "other", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		produce(t, topic, seq(1, 101)...)
		b, ok, err := g.Consumer(0).TryPull(4)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		done := make(chan bool)
		stop := make(chan struct{})
		go func() { // ends by stop; waited for on done
			for good := true; ; {
				for i, v := range b.Values() {
					good = good && v == i+1
				}
				select {
				case <-stop:
					done <- good
					return
				default:
				}
			}
		}()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			produce(t, topic, -i-1)
			for len(pull(t, other, 10)) > 0 {
			}
		}
		close(stop)
		if !<-done {
			t.Error("a batch in hands changed after Close")
		}
	})
}

// TestCloseWhilePulling closes groups under consumers at work.
func TestCloseWhilePulling(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: segment(s, 4), Partitions: 2})
		group(t, topic, "keeper", queue.GroupConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stop := make(chan struct{})
		producing := make(chan error, 1)
		go func() { // ends by stop; waited for below
			for i := 0; ; i++ {
				select {
				case <-stop:
					producing <- nil
					return
				default:
				}
				if err := topic.Produce(ctx, i); err != nil {
					producing <- err
					return
				}
				runtime.Gosched()
			}
		}()
		rounds := 50
		if s.name != "memory" {
			rounds = 4 // every event is on disk before the next one
		}
		for round := range rounds {
			g := group(t, topic, "g", queue.GroupConfig{Consumers: 2, AutoCommit: round%2 == 0, Start: queue.Latest})
			ended := make(chan error, 2)
			for i := range 2 {
				go func() { // ends by Close; waited for below
					n := 0
					for b, err := range g.Consumer(i).Batches(ctx) {
						if err != nil {
							ended <- err
							return
						}
						if n += b.Len(); round%2 == 1 {
							_ = b.Commit()
						}
						if n > 20*round {
							_ = g.Close()
						}
					}
				}()
			}
			for range 2 {
				wantErr(t, <-ended, penstock.ErrClosed)
			}
		}
		close(stop)
		if err := <-producing; err != nil {
			t.Error(err)
		}
	})
}

func TestStatsCountEvents(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Name: "orders", Partitions: 2, Capacity: 100})
		fast := group(t, topic, "fast", queue.GroupConfig{})
		group(t, topic, "slow", queue.GroupConfig{Consumers: 2})
		produce(t, topic, seq(0, 10)...)
		pull(t, fast.Consumer(0), 3)
		commit(t, fast.Consumer(0))
		got := topic.Stats()
		if got.Name != "orders" || got.Capacity != 100 || got.Produced != 10 || got.Retained != 10 {
			t.Errorf("stats %+v", got)
		}
		for p, ps := range got.Partitions {
			if ps.Earliest != 0 || ps.End != 5 || ps.Retained != 5 {
				t.Errorf("partition %d: [%d, %d) of which %d are retained, want [0, 5) and 5", p, ps.Earliest, ps.End, ps.Retained)
			}
		}
		want := []queue.GroupStats{
			{Name: "fast", Consumers: 1, Lag: 7, Committed: 3, Partitions: []queue.GroupPartitionStats{{Committed: 3, End: 5, Lag: 2}, {Committed: 0, End: 5, Lag: 5}}},
			{Name: "slow", Consumers: 2, Lag: 10, Partitions: []queue.GroupPartitionStats{{End: 5, Lag: 5}, {End: 5, Lag: 5}}},
		}
		counts := cmp.FilterPath(func(p cmp.Path) bool {
			f, ok := p.Last().(cmp.StructField)
			return ok && !slices.Contains([]string{"Name", "Consumers", "Lag", "Partitions", "Committed", "End"}, f.Name())
		}, cmp.Ignore())
		if diff := cmp.Diff(want, got.Groups, counts); diff != "" {
			t.Error(diff)
		}
	})
}
