package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

func producer(t *testing.T, topic *queue.Topic[string], id uint32) *queue.Producer[string] {
	t.Helper()
	p, err := topic.Producer(id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sorted returns what all partitions hold, in the order of text.
func sorted(t *testing.T, topic *queue.Topic[string]) (all []string) {
	t.Helper()
	for _, part := range contents(t, topic) {
		all = append(all, part...)
	}
	slices.Sort(all)
	return all
}

// routed are the topics of the tests of producers: turns, and keys over three
// partitions.
func routed(t *testing.T, test func(t *testing.T, c queue.Config[string])) {
	for name, key := range map[string]func(string) string{"turns": nil, "keys": func(v string) string { return v[len(v)-1:] }} {
		t.Run(name, func(t *testing.T) {
			forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
				c.Partitions, c.Key, c.SegmentBytes = 3, key, 64*penstock.KiB
				test(t, c)
			})
		})
	}
}

// TestRepeatedRequestIsAppendedOnce: at once, after another producer, and after
// a restart; it is answered with the same places.
func TestRepeatedRequestIsAppendedOnce(t *testing.T) {
	routed(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		group(t, topic, "keeps everything", queue.GroupConfig{})
		p := producer(t, topic, 7)
		if again := producer(t, topic, 7); again != p || p.ID() != 7 || p.Last() != 0 {
			t.Errorf("producer %d, last %d; the second call gives another one: %t", p.ID(), p.Last(), again != p)
		}
		first, err := p.Produce(t.Context(), 1, "1a", "1b", "1c")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := producer(t, topic, 8).Produce(t.Context(), 1, "8a"); err != nil {
			t.Fatal(err)
		}
		repeat := func() {
			t.Helper()
			p := producer(t, topic, 7)
			again, err := p.Produce(t.Context(), 1, "1a", "1b", "1c")
			if err != nil || fmt.Sprint(again) != fmt.Sprint(first) || p.Last() != 1 {
				t.Errorf("repeated: %v, %v, last %d; want %v", again, err, p.Last(), first)
			}
			want(t, sorted(t, topic), "1a", "1b", "1c", "8a")
		}
		repeat()
		topic = reopen(t, topic, c)
		repeat()
		if _, err := producer(t, topic, 7).Produce(t.Context(), 2, "2a"); err != nil {
			t.Fatal(err)
		}
		want(t, sorted(t, topic), "1a", "1b", "1c", "2a", "8a")
	})
}

// TestRequestsOutOfOrderAreRefused: with nothing appended, and typed.
func TestRequestsOutOfOrderAreRefused(t *testing.T) {
	routed(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		p := producer(t, topic, 1)
		refused := func(sequence, last uint64, gap bool) {
			t.Helper()
			_, err := p.Produce(t.Context(), sequence, "xa")
			e, ok := errors.AsType[*queue.SequenceError](err)
			if !ok || e.Sequence != sequence || e.Last != last || e.Producer != 1 || e.Gap() != gap {
				t.Errorf("request %d: %v; want it refused behind %d, gap %t", sequence, err, last, gap)
			}
		}
		refused(2, 0, true)
		for i := range uint64(3) {
			if _, err := p.Produce(t.Context(), i+1, "xa"); err != nil {
				t.Fatal(err)
			}
		}
		refused(1, 3, false)
		refused(2, 3, false)
		refused(5, 3, true)
		refused(0, 3, false)
		_, err := p.Produce(t.Context(), 3, "xa", "ya")
		wantErr(t, err, penstock.ErrInvalid)
		_, err = p.Produce(t.Context(), 4)
		wantErr(t, err, penstock.ErrInvalid)
		want(t, sorted(t, topic), "xa", "xa", "xa")
	})
}

func TestProducersAreForTopicsOnDisk(t *testing.T) {
	topic := open(t, storages[0], queue.Config[string]{})
	_, err := topic.Producer(1)
	wantErr(t, err, penstock.ErrInvalid)
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		for _, id := range []uint32{0, penstock.MaxProducer + 1} {
			_, err := topic.Producer(id)
			wantErr(t, err, penstock.ErrInvalid)
		}
		p := producer(t, topic, penstock.MaxProducer)
		if _, err := p.Produce(t.Context(), 1, "a"); err != nil {
			t.Fatal(err)
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := p.Produce(t.Context(), 2, "b")
		wantErr(t, err, penstock.ErrClosed)
		_, err = topic.Producer(1)
		wantErr(t, err, penstock.ErrClosed)
	})
}

// TestTornRequestIsCompletedByItsRepetition: one partition has no room; what is
// appended counts against the capacity once.
func TestTornRequestIsCompletedByItsRepetition(t *testing.T) {
	m := vfs.NewMem()
	c := queue.WithFS(queue.Config[string]{
		Name: "orders", Dir: "data", Codec: penstock.String(), Partitions: 3, Capacity: 10, WhenFull: queue.Fail,
		Router: queue.RouterFunc[string]("last/1", func(v string, n int) int { return int(v[len(v)-1]-'0') % n }),
		Logger: slog.New(slog.DiscardHandler),
	}, m)
	topic := openDisk(t, c)
	group(t, topic, "g", queue.GroupConfig{})
	p := producer(t, topic, 3)
	if _, err := p.Produce(t.Context(), 1, "a0", "a1", "a2"); err != nil {
		t.Fatal(err)
	}
	m.SetFault(func(op vfs.Op) vfs.Fault {
		if op.Kind == vfs.OpWrite && strings.Contains(op.Name, "p00001") && !strings.HasSuffix(op.Name, ".slot") {
			return vfs.Fault{Err: vfs.ErrNoSpace}
		}
		return vfs.Fault{}
	})
	for range 2 {
		_, err := p.Produce(t.Context(), 2, "b0", "b1", "b2", "c1")
		wantErr(t, err, penstock.ErrDiskFull)
		if s := topic.Stats(); s.Retained != 5 {
			t.Errorf("%d events are retained, want 5", s.Retained)
		}
	}
	m.SetFault(nil)
	ack, err := p.Produce(t.Context(), 2, "b0", "b1", "b2", "c1")
	if err != nil || len(ack.Parts) != 3 || ack.Parts[1] != (queue.Part{Partition: 1, First: 1, Count: 2}) {
		t.Fatalf("%+v, %v", ack, err)
	}
	if err := topic.Produce(t.Context(), "d0", "d0", "d0"); err != nil {
		t.Errorf("the request took more capacity than it has events: %v", err)
	}
	wantErr(t, topic.Produce(t.Context(), "e0"), penstock.ErrFull)
	if _, err := p.Produce(t.Context(), 2, "b0", "b1", "b2", "c1"); err != nil {
		t.Errorf("a repetition needs no capacity: %v", err)
	}
	_, err = p.Produce(t.Context(), 3, "x0")
	wantErr(t, err, penstock.ErrFull)
	_, err = p.Produce(t.Context(), 3, slices.Repeat([]string{"x0"}, 11)...)
	wantErr(t, err, penstock.ErrTooLarge)
	if err := group(t, topic, "late", queue.GroupConfig{}).Close(); err != nil {
		t.Fatal(err)
	}
}

// TestConcurrentRequestsOfAProducer: each number is appended once, whoever
// comes first, and a caller that gives up leaves the turn free.
func TestConcurrentRequestsOfAProducer(t *testing.T) {
	routed(t, func(t *testing.T, c queue.Config[string]) {
		topic := openDisk(t, c)
		for sequence := uint64(1); sequence <= 5; sequence++ {
			var wg sync.WaitGroup
			errs := make([]error, 6)
			for i := range errs {
				ctx := t.Context()
				if i == 0 {
					ended, cancel := context.WithCancel(ctx)
					cancel()
					ctx = ended
				}
				wg.Go(func() { // one caller: ends after one request; waited for below
					_, errs[i] = producer(t, topic, 1).Produce(ctx, sequence, fmt.Sprint(sequence, "a"), fmt.Sprint(sequence, "b"))
				})
			}
			wg.Wait()
			wantErr(t, errs[0], context.Canceled)
			if err := errors.Join(errs[1:]...); err != nil {
				t.Fatal(err)
			}
		}
		want(t, sorted(t, topic), "1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b", "5a", "5b")
	})
}

// TestRequestsAreAppendedOnceOverAnyPowerLoss: the application repeats its last
// request and goes on; every event is there once, in the order of its key.
func TestRequestsAreAppendedOnceOverAnyPowerLoss(t *testing.T) {
	m := vfs.NewMem()
	config := func(fs vfs.FS) queue.Config[string] {
		return queue.WithFS(queue.Config[string]{
			Name: "orders", Dir: "data", Codec: penstock.String(), Partitions: 2, SegmentEvents: 3, SegmentBytes: 8 * penstock.KiB,
			Key: func(v string) string { return v[len(v)-1:] }, Logger: slog.New(slog.DiscardHandler),
		}, fs)
	}
	const requests = 8
	request := func(n uint64) []string {
		return []string{fmt.Sprintf("%02d-a", n), fmt.Sprintf("%02d-b", n), fmt.Sprintf("%02d-c", n)}
	}
	topic := openDisk(t, config(m))
	for n := uint64(1); n <= requests/2; n++ {
		if _, err := producer(t, topic, 9).Produce(t.Context(), n, request(n)...); err != nil {
			t.Fatal(err)
		}
	}
	if err := topic.Close(); err != nil {
		t.Fatal(err)
	}
	var all []string
	for n := uint64(1); n <= requests; n++ {
		all = append(all, request(n)...)
	}
	slices.Sort(all)
	images, every := 0, 23
	if raceEnabled {
		every = 211
	}
	for img := range m.Images(vfs.Crashes{Seed: 3}) {
		if images++; images%every != 0 {
			continue
		}
		topic, err := queue.Open(config(img.FS))
		if err != nil {
			t.Fatalf("%s: %v", img.Desc, err)
		}
		group(t, topic, "keeps everything", queue.GroupConfig{})
		p := producer(t, topic, 9)
		for n := max(1, p.Last()); n <= requests; n++ {
			if _, err := p.Produce(t.Context(), n, request(n)...); err != nil {
				t.Fatalf("%s: request %d: %v", img.Desc, n, err)
			}
		}
		for i, part := range contents(t, topic) {
			if !slices.IsSorted(part) {
				t.Errorf("%s: partition %d is out of order: %v", img.Desc, i, part)
			}
		}
		if got := sorted(t, topic); !slices.Equal(got, all) {
			t.Fatalf("%s: %v, want each event once", img.Desc, got)
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("one of %d of %d images", every, images)
	if images < 10*every {
		t.Errorf("%d images are too few to mean anything", images)
	}
}
