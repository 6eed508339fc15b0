package queue_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func reader[T any](t testing.TB, g *queue.Group[T], partition int) *queue.Reader[T] {
	t.Helper()
	r, err := g.Reader(partition)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// readAll reads what is there in steps of max and returns the batches.
func readAll[T any](t testing.TB, r *queue.Reader[T], max int) (batches []penstock.Batch[T]) {
	t.Helper()
	for {
		b, ok, err := r.Read(max)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return batches
		}
		if b.Len() > max {
			t.Fatalf("Read(%d) returned %d events", max, b.Len())
		}
		batches = append(batches, b)
	}
}

func values[T any](batches []penstock.Batch[T]) (all []T) {
	for _, b := range batches {
		all = append(all, b.Values()...)
	}
	return all
}

func TestReaderReadsAheadOfCommit(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, SegmentSize: segment(s, 4), Capacity: 40})
		r := reader(t, group(t, topic, "g", queue.GroupConfig{}), 1)
		other := group(t, topic, "other", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		produce(t, topic, seq(0, 40)...)
		for len(pull(t, other, 50)) > 0 {
		}
		batches := readAll(t, r, 3)
		var want []int
		for i := 1; i < 40; i += 2 {
			want = append(want, i)
		}
		if diff := cmp.Diff(want, values(batches)); diff != "" {
			t.Error(diff)
		}
		at := penstock.Offset(0)
		for _, b := range batches {
			if b.Offset(0) != at || b.Partition() != 1 || b.Topic() != "topic" || b.Time(b.Len()-1).IsZero() {
				t.Errorf("batch at %d in partition %d of %q, want %d", b.Offset(0), b.Partition(), b.Topic(), at)
			}
			at += penstock.Offset(b.Len())
		}
		if r.Next() != 20 || r.Committed() != 0 || r.End() != 20 {
			t.Errorf("next %d, committed %d, end %d", r.Next(), r.Committed(), r.End())
		}
		// Nothing was committed by this group: the topic is full.
		if lag := topic.Stats().Groups[0].Lag; lag != 40 {
			t.Errorf("lag %d, want 40", lag)
		}
		if err := r.Commit(9); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[9:], values(batches)[9:]); diff != "" {
			t.Errorf("what was read and not committed changed: %s", diff)
		}
		if err := r.Commit(5); err != nil || r.Committed() != 9 { // never back
			t.Errorf("commit %d, %v", r.Committed(), err)
		}
		wantErr(t, r.Commit(21), penstock.ErrOffsetOutOfRange)
	})
}

func TestReaderSeeks(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{SegmentSize: segment(s, 4)})
		r := reader(t, group(t, topic, "g", queue.GroupConfig{}), 0)
		produce(t, topic, seq(0, 20)...)
		readAll(t, r, 7)
		if err := r.Commit(6); err != nil {
			t.Fatal(err)
		}
		for _, to := range []penstock.Offset{6, 19, 7, 20, 11} {
			if err := r.Seek(to); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(seq(int(to), 20), values(readAll(t, r, 5)), nilIsEmpty); diff != "" {
				t.Errorf("after Seek(%d): %s", to, diff)
			}
		}
		wantErr(t, r.Seek(5), penstock.ErrOffsetOutOfRange)
		wantErr(t, r.Seek(21), penstock.ErrOffsetOutOfRange)
	})
}

func TestReaderGivesCapacityBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2})
		r := reader(t, group(t, topic, "g", queue.GroupConfig{}), 0)
		produce(t, topic, 1, 2)
		third := start(t, func() error { return topic.Produce(t.Context(), 3) })
		readAll(t, r, 2)
		third.blocked()
		if err := r.Commit(1); err != nil {
			t.Fatal(err)
		}
		if err := third.wait(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReaderWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		r := reader(t, group(t, topic, "g", queue.GroupConfig{}), 0)
		w := start(t, func() error { return r.Wait(t.Context()) })
		w.blocked()
		produce(t, topic, 1)
		if err := w.wait(); err != nil {
			t.Fatal(err)
		}
		readAll(t, r, 10)
		w = start(t, func() error { return r.Wait(t.Context()) })
		w.blocked()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, w.wait(), penstock.ErrClosed)
	})
}

func TestSecondReaderStartsAtCommit(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2})
		g := group(t, topic, "g", queue.GroupConfig{})
		r := reader(t, g, 0)
		_, err := g.Reader(0)
		wantErr(t, err, penstock.ErrExists)
		reader(t, g, 1)
		produce(t, topic, seq(0, 10)...)
		readAll(t, r, 10)
		if err := r.Commit(2); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err = r.Read(1)
		wantErr(t, err, penstock.ErrClosed)
		if diff := cmp.Diff([]int{4, 6, 8}, values(readAll(t, reader(t, g, 0), 10))); diff != "" {
			t.Error(diff)
		}
	})
}

// It was a panic, unlike in SeekOffset and PausePartition.
func TestReaderOfAPartitionThatIsNotThereIsRefused(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{Partitions: 2})
	g := group(t, topic, "g", queue.GroupConfig{})
	for _, partition := range []int{-1, 2} {
		_, err := g.Reader(partition)
		if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "partition" {
			t.Errorf("Reader(%d): %v", partition, err)
		}
	}
	if _, err := g.Reader(1); err != nil { // nothing was claimed, nor harmed
		t.Error(err)
	}
}
