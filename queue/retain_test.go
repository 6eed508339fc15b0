package queue_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// numbers are the events from, from+1, ... to-1, as texts.
func numbers(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// produceEach produces one event after the other, so that each segment of two
// is full.
func produceEach(t *testing.T, topic *queue.Topic[string], events ...string) {
	t.Helper()
	for _, v := range events {
		produce(t, topic, v)
	}
}

// consumeAll pulls and commits until nothing comes.
func consumeAll(t *testing.T, c *queue.Consumer[string]) (all []string) {
	t.Helper()
	for got := pull(t, c, 100); got != nil; got = pull(t, c, 100) {
		all = append(all, got...)
		commit(t, c)
	}
	return all
}

// lateGroup returns what a group that comes now reads, and forgets it.
func lateGroup(t *testing.T, topic *queue.Topic[string]) []string {
	t.Helper()
	g := group(t, topic, "late", queue.GroupConfig{})
	all := consumeAll(t, g.Consumer(0))
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := topic.DeleteGroup("late"); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNewestConsumedSegmentsAreKept is BQ-9, BQ-121 and BQ-127: what is kept is
// there for a group that comes late, and nothing else is.
func TestNewestConsumedSegmentsAreKept(t *testing.T) {
	for retain, first := range map[int]int{0: 20, 1: 18, 3: 14, 10: 0, 100: 0, math.MaxInt: 0} {
		t.Run(fmt.Sprint(retain), func(t *testing.T) {
			forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
				c.SegmentEvents, c.RetainSegments = 2, retain
				topic := openDisk(t, c)
				g := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
				produceEach(t, topic, numbers(0, 19)...)
				want(t, consumeAll(t, g), numbers(0, 19)...) // nine full segments, and an active one with 18
				if n := len(segments(t, c.Dir)); n != min(retain, 9)+1 {
					t.Errorf("%d files, want %d full ones and the active one", n, min(retain, 9))
				}
				produceEach(t, topic, "19")
				want(t, consumeAll(t, g), "19")
				if n := len(segments(t, c.Dir)); n != min(retain, 10) {
					t.Errorf("%d files, want %d full ones", n, min(retain, 10))
				}
				want(t, lateGroup(t, topic), numbers(first, 20)...)
				topic = reopen(t, topic, c)
				want(t, lateGroup(t, topic), numbers(first, 20)...)
				produceEach(t, topic, "20")
				want(t, consumeAll(t, group(t, topic, "g", queue.GroupConfig{}).Consumer(0)), "20")
			})
		})
	}
}

// TestNoConsumedSegmentStaysByDefault_QC54: a new group then sees exactly what
// comes.
func TestNoConsumedSegmentStaysByDefault_QC54(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents = 2
		topic := openDisk(t, c)
		consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		produceEach(t, topic, numbers(0, 4)...)
		want(t, pull(t, consumer, 4), numbers(0, 4)...)
		commit(t, consumer)
		if n := len(segments(t, c.Dir)); n != 0 {
			t.Errorf("%d files, want none", n)
		}
		topic = reopen(t, topic, c)
		produceEach(t, topic, "4")
		b, ok, err := group(t, topic, "new", queue.GroupConfig{}).Consumer(0).TryPull(10)
		if !ok || err != nil || b.Offset(0) != 4 || !slices.Equal(b.Values(), []string{"4"}) {
			t.Errorf("the new group gets %v, %t, %v", b.Values(), ok, err)
		}
	})
}

// TestSlowGroupKeepsItsSegments_QC56: while it is open, over a restart, and
// until it is deleted; what is retained counts from there.
func TestSlowGroupKeepsItsSegments_QC56(t *testing.T) {
	for _, retain := range []int{0, 2} {
		forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
			c.SegmentEvents, c.RetainSegments = 2, retain
			topic := openDisk(t, c)
			files := func(want int) {
				t.Helper()
				if n := len(segments(t, c.Dir)); n != want {
					t.Errorf("retain %d: %d files, want %d", retain, n, want)
				}
			}
			group(t, topic, "slow", queue.GroupConfig{})
			fast := group(t, topic, "fast", queue.GroupConfig{})
			produceEach(t, topic, numbers(0, 9)...)
			consumeAll(t, fast.Consumer(0))
			files(5)
			topic = reopen(t, topic, c) // nobody has slow open
			fast = group(t, topic, "fast", queue.GroupConfig{})
			produceEach(t, topic, "9", "10")
			consumeAll(t, fast.Consumer(0))
			files(6)
			slow := group(t, topic, "slow", queue.GroupConfig{})
			want(t, pull(t, slow.Consumer(0), 7), numbers(0, 7)...)
			commit(t, slow.Consumer(0)) // the first three segments are consumed
			files(3 + retain)
			if err := slow.Close(); err != nil {
				t.Fatal(err)
			}
			if err := topic.DeleteGroup("slow"); err != nil {
				t.Fatal(err)
			}
			files(1 + retain)
		})
	}
}

func TestRetentionMayChangeBetweenOpens(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainSegments = 2, 4
		topic := openDisk(t, c)
		drain := func() { consumeAll(t, group(t, topic, "g", queue.GroupConfig{}).Consumer(0)) }
		produceEach(t, topic, numbers(0, 21)...)
		drain()
		for _, step := range []struct{ retain, files, first int }{
			{4, 5, 12}, {2, 3, 16}, {6, 3, 16}, // what is gone does not come back
		} {
			c.RetainSegments = step.retain
			topic = reopen(t, topic, c) // and nothing is committed
			if n := len(segments(t, c.Dir)); n != step.files {
				t.Errorf("retain %d: %d files, want %d", step.retain, n, step.files)
			}
			want(t, lateGroup(t, topic), numbers(step.first, 21)...)
		}
		produceEach(t, topic, numbers(21, 41)...) // six more to come, and more
		drain()
		want(t, lateGroup(t, topic), numbers(28, 41)...)
	})
}

// TestGroupInWhatIsRetainedKeepsIt: what a late group reads is not deleted
// under it, however far the others go; and a seek goes back as far.
func TestGroupInWhatIsRetainedKeepsIt(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainSegments = 2, 3
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		produceEach(t, topic, numbers(0, 11)...)
		consumeAll(t, g.Consumer(0))
		late := group(t, topic, "late", queue.GroupConfig{})
		want(t, pull(t, late.Consumer(0), 1), "4")
		for i := range 10 {
			produceEach(t, topic, numbers(11+4*i, 15+4*i)...)
			consumeAll(t, g.Consumer(0))
		}
		topic = reopen(t, topic, c)
		late = group(t, topic, "late", queue.GroupConfig{})
		want(t, consumeAll(t, late.Consumer(0)), numbers(4, 51)...)
		g = group(t, topic, "g", queue.GroupConfig{})
		wantErr(t, g.SeekOffset(t.Context(), 0, 43), penstock.ErrOffsetOutOfRange)
		if err := g.SeekOffset(t.Context(), 0, 44); err != nil {
			t.Fatal(err)
		}
		want(t, consumeAll(t, g.Consumer(0)), numbers(44, 51)...)
	})
}

// TestPositionAtTheEndOfASegmentIsTheStartOfTheNext_BQ122: it skips nothing, also
// after the segment was deleted and over a restart, and the batch that another
// group has not committed stays its own.
func TestPositionAtTheEndOfASegmentIsTheStartOfTheNext_BQ122(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents = 2
		topic := openDisk(t, c)
		a, b := group(t, topic, "a", queue.GroupConfig{}), group(t, topic, "b", queue.GroupConfig{})
		produceEach(t, topic, numbers(0, 6)...)
		want(t, pull(t, b.Consumer(0), 3), "0", "1", "2")
		want(t, pull(t, a.Consumer(0), 2), "0", "1")
		commit(t, a.Consumer(0)) // the end of the first segment
		if n := len(segments(t, c.Dir)); n != 3 {
			t.Errorf("%d files, want three: b holds the first", n)
		}
		want(t, pull(t, b.Consumer(0), 3), "0", "1", "2") // not committed: again, and from its own place
		commit(t, b.Consumer(0))
		if n := len(segments(t, c.Dir)); n != 2 {
			t.Errorf("%d files, want two: the first is consumed", n)
		}
		want(t, pull(t, a.Consumer(0), 1), "2")
		topic = reopen(t, topic, c) // without a commit of it
		a, b = group(t, topic, "a", queue.GroupConfig{}), group(t, topic, "b", queue.GroupConfig{})
		want(t, pull(t, a.Consumer(0), 2), "2", "3")
		want(t, consumeAll(t, b.Consumer(0)), "3", "4", "5")
		commit(t, a.Consumer(0))
		want(t, consumeAll(t, a.Consumer(0)), "4", "5")
		produceEach(t, topic, "6") // behind the end of the last segment
		want(t, consumeAll(t, b.Consumer(0)), "6")
		want(t, consumeAll(t, a.Consumer(0)), "6")
	})
}

// TestCommitBehindWhichAFileStaysSucceeds_BQ125: it costs room, and the next commit
// or open removes the file.
func TestCommitBehindWhichAFileStaysSucceeds_BQ125(t *testing.T) {
	m := vfs.NewMem()
	var said strings.Builder
	c := queue.WithFS(queue.Config[string]{Name: "orders", Dir: "data", Codec: penstock.String(), SegmentEvents: 2, SegmentBytes: 8 * penstock.KiB, Logger: textLogger(&said)}, m)
	topic := openDisk(t, c)
	consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
	produceEach(t, topic, numbers(0, 5)...)
	files := func() (n int) {
		names, err := m.List("data/orders/p00000")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, ".seg") {
				n++
			}
		}
		return n
	}
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpRemove && strings.HasSuffix(op.Name, ".seg") {
			return vfs.Fault{Err: errors.New("text file busy")}
		}
		return vfs.Fault{}
	})
	want(t, pull(t, consumer, 2), "0", "1")
	if err := consumer.Commit(); err != nil {
		t.Errorf("the commit failed, though it is stored: %v", err)
	}
	if s := topic.Stats(); files() != 3 || s.Partitions[0].Earliest != 2 {
		t.Errorf("%d files, the log begins at %d", files(), s.Partitions[0].Earliest)
	}
	if !strings.Contains(said.String(), "consumed segments stay on disk") || !strings.Contains(said.String(), "text file busy") {
		t.Errorf("the log does not tell why a file stays: %s", said.String())
	}
	m.SetFault(nil)
	want(t, pull(t, consumer, 2), "2", "3")
	commit(t, consumer)
	if n := files(); n != 1 {
		t.Errorf("%d files after the next commit, want one", n)
	}
	topic = reopen(t, topic, c)
	want(t, consumeAll(t, group(t, topic, "g", queue.GroupConfig{}).Consumer(0)), "4")
}

// TestRetainedSegmentsTakeNoCapacity: on a bounded topic a late group begins
// behind what has given its capacity back, whatever is kept (BQ-50).
func TestRetainedSegmentsTakeNoCapacity(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.SegmentEvents, c.RetainSegments, c.Capacity, c.WhenFull = 2, 3, 4, queue.Fail
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		for i := range 10 {
			produceEach(t, topic, numbers(2*i, 2*i+2)...)
			consumeAll(t, g.Consumer(0))
		}
		if n := len(segments(t, c.Dir)); n != 3 {
			t.Errorf("%d files, want three", n)
		}
		produceEach(t, topic, "20")
		want(t, lateGroup(t, topic), "20")
		topic = reopen(t, topic, c)
		produceEach(t, topic, "21", "22", "23")
		wantErr(t, topic.Produce(t.Context(), "24"), penstock.ErrFull)
	})
}

// TestFullDiskTakesTheOldestOfWhatIsRetained: with everything consumed, a
// partition that cannot begin its next segment counts the one at hand as
// consumed too, and so gets the room of the oldest.
func TestFullDiskTakesTheOldestOfWhatIsRetained(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := queue.WithFS(queue.Config[string]{
				Name: "orders", Dir: "data", Codec: penstock.String(), Durability: level, SegmentBytes: 64 * penstock.KiB, RetainSegments: 2, Logger: quiet(),
			}, m)
			topic := openDisk(t, c)
			consumer := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
			m.SetSpace(m.Used() + 4*65_000) // the active one, the next one, and two
			for i := range 100 {
				if err := topic.Produce(t.Context(), strings.Repeat("x", 10_000)); err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
				pull(t, consumer, 1)
				commit(t, consumer)
			}
			m.SetSpace(0) // the group's position needs room, and so may the next segment
			if n := len(lateGroup(t, topic)); n < 12 {
				t.Errorf("%d events are kept, want two segments at least", n)
			}
		})
	}
}

// TestCrashKeepsWhatIsRetained: at every operation of the disk, and with every
// part of what was not synced lost, a group that comes late reads without a gap
// from a place no later than the newest segments that were to be kept, and the
// group from before goes on no later than where it was.
func TestCrashKeepsWhatIsRetained(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			const retain, events = 2, 24
			m := vfs.NewMem()
			c := queue.Config[string]{
				Name: "orders", Dir: "data", Codec: penstock.String(), Durability: level,
				SegmentBytes: 8 * penstock.KiB, SegmentEvents: 2, RetainSegments: retain, Logger: quiet(),
			}
			topic := openDisk(t, queue.WithFS(c, m))
			g := group(t, topic, "g", queue.GroupConfig{})
			began := m.Ops()
			var committing []int // by operations that had happened before the commit of the event was begun
			for i := range events {
				produceEach(t, topic, strconv.Itoa(i))
				pull(t, g.Consumer(0), 1)
				committing = append(committing, m.Ops())
				commit(t, g.Consumer(0))
			}
			if err := topic.Close(); err != nil {
				t.Fatal(err)
			}
			images, moved := 0, 0
			for img := range m.Images(vfs.Crashes{From: began, Seed: 1}) {
				if images++; testing.Short() && images%4 > 0 {
					continue
				}
				consumed := 0
				for _, at := range committing {
					if at <= img.After {
						consumed++
					}
				}
				topic, err := queue.Open(queue.WithFS(c, img.FS))
				if err != nil {
					t.Fatalf("%s: %v", img.Desc, err)
				}
				late := lateGroup(t, topic)
				first := events
				if len(late) > 0 {
					if first, err = strconv.Atoi(late[0]); err != nil {
						t.Fatal(err)
					}
				}
				want(t, late, numbers(first, first+len(late))...)
				if kept := max(0, 2*(consumed/2-retain)); len(late) > 0 && first > kept {
					t.Errorf("%s: %d are consumed, kept from %d on, want from %d", img.Desc, consumed, first, kept)
				}
				if first > 0 {
					moved++
				}
				rest := consumeAll(t, group(t, topic, "g", queue.GroupConfig{}).Consumer(0))
				if len(rest) > 0 && rest[0] > strconv.Itoa(consumed) && len(rest[0]) >= len(strconv.Itoa(consumed)) {
					t.Errorf("%s: %d are consumed, the group goes on with %s", img.Desc, consumed, rest[0])
				}
				produceEach(t, topic, "new")
				if err := topic.Close(); err != nil {
					t.Fatalf("%s: %v", img.Desc, err)
				}
			}
			if images < 100 || moved == 0 {
				t.Errorf("%d images, %d with something deleted: the life does too little", images, moved)
			}
		})
	}
}
