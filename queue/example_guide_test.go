package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// What the guide shows in docs/guide/topics.md, failures.md and disk.md. What needs
// time is run in a bubble.

type Order struct {
	ID       string
	Customer string
	Cents    int
}

var errDeclined = errors.New("the card was declined")

// shop is what the handlers of the guide call.
type shop struct {
	mu                sync.Mutex
	inserted, charged []string
	declines          map[string]int // how often an order is declined, by id
}

func (s *shop) insert(_ context.Context, orders []Order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range orders {
		s.inserted = append(s.inserted, o.ID)
	}
	return nil
}

func (s *shop) charge(_ context.Context, o Order) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.declines[o.ID] > 0 {
		s.declines[o.ID]--
		return errDeclined
	}
	s.charged = append(s.charged, o.ID)
	return nil
}

func TestGuideTopicWithTwoGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &shop{}
		orders, err := queue.Open(queue.Config[Order]{
			Name:       "orders",
			Partitions: 4,
			Key:        func(o Order) string { return o.Customer }, // one customer, one partition, one order
			Capacity:   10_000,                                     // events that some group has not committed
		})
		if err != nil {
			t.Fatal(err)
		}
		archive, err := orders.Group("archive", queue.GroupConfig{
			BatchMax: 500,                    // at most so many events in a call
			Linger:   200 * time.Millisecond, // and wait so long for them
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error)
		go func() { ended <- keep(ctx, archive, db) }() // ends with ctx
		for i := range 1000 {
			if err := accept(ctx, orders, Order{ID: fmt.Sprint(i), Customer: fmt.Sprint("customer ", i%10)}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; err != nil || len(db.inserted) != 1000 {
			t.Errorf("%d orders are kept: %v", len(db.inserted), err)
		}
		if err := orders.Close(); err != nil {
			t.Error(err)
		}
	})
}

func keep(ctx context.Context, archive *queue.Group[Order], db *shop) error {
	return archive.Run(ctx, func(ctx context.Context, b penstock.Batch[Order]) error {
		return db.insert(ctx, b.Values()) // one INSERT for the whole batch
	})
}

func accept(ctx context.Context, orders *queue.Topic[Order], order Order) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := orders.Produce(ctx, order)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("busy, try again later: %w", err) // nothing of it was accepted
	}
	return err
}

func TestGuidePullLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders, err := queue.Open(queue.Config[Order]{Name: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		archive, err := orders.Group("archive", queue.GroupConfig{BatchMax: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := orders.Produce(t.Context(), Order{ID: "1"}, Order{ID: "2"}, Order{ID: "3"}); err != nil {
			t.Fatal(err)
		}
		db := &shop{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error)
		go func() { ended <- pullLoop(ctx, archive, db) }() // ends with ctx
		synctest.Wait()
		if lag := archive.Stats().Lag; lag != 0 {
			t.Errorf("%d orders wait", lag)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !slices.Equal(db.inserted, []string{"1", "2", "3"}) {
			t.Errorf("kept %v: %v", db.inserted, err)
		}
		if err := orders.Close(); err != nil {
			t.Error(err)
		}
	})
}

func pullLoop(ctx context.Context, archive *queue.Group[Order], db *shop) error {
	consumer := archive.Consumer(0)
	for {
		b, err := consumer.Pull(ctx) // waits for events; ctx ends the wait
		if err != nil {
			return err
		}
		if err := db.insert(ctx, b.Values()); err != nil {
			return err // not committed: it comes again
		}
		if err := b.Commit(); err != nil {
			return err
		}
	}
}

func TestGuideFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &shop{declines: map[string]int{"1": 1, "4": 1_000}}
		orders, err := queue.Open(queue.Config[Order]{Name: "orders", Key: func(o Order) string { return o.Customer }})
		if err != nil {
			t.Fatal(err)
		}
		dead, err := queue.Open(queue.Config[Order]{Name: "dead"})
		if err != nil {
			t.Fatal(err)
		}
		review, err := dead.Group("review", queue.GroupConfig{})
		if err != nil {
			t.Fatal(err)
		}
		billing, err := orders.Group("billing", queue.GroupConfig{
			Workers: 4, // four customers at a time, each one in order
			Retry: settle.Policy{
				Attempts: 6,
				Backoff:  settle.Backoff{Min: 200 * time.Millisecond, Max: time.Minute, Factor: 4},
			},
			ParkAfter: time.Second, // a longer backoff parks the customer, and the others go on
		}, queue.DeadLetter(dead.ProduceEvents))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error)
		go func() { ended <- bill(ctx, billing, db) }() // ends with ctx
		for i := range 6 {
			if err := orders.Produce(ctx, Order{ID: fmt.Sprint(i), Customer: fmt.Sprint("customer ", i%3)}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		if parked := billing.Parked(); len(parked) != 1 || parked[0].Key != "customer 1" {
			t.Errorf("parked %+v", parked)
		}
		time.Sleep(time.Hour)
		db.mu.Lock()
		slices.Sort(db.charged)
		if !slices.Equal(db.charged, []string{"0", "1", "2", "3", "5"}) {
			t.Errorf("charged %v", db.charged)
		}
		db.declines = nil
		db.mu.Unlock()
		if report, err := sendBack(ctx, review, orders); err != nil || report.Redriven != 1 {
			t.Errorf("sent back %+v: %v", report, err)
		}
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; err != nil || !slices.Contains(db.charged, "4") {
			t.Errorf("charged %v: %v", db.charged, err)
		}
		for _, topic := range []*queue.Topic[Order]{orders, dead} {
			if err := topic.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func bill(ctx context.Context, billing *queue.Group[Order], db *shop) error {
	return billing.Run(ctx, func(ctx context.Context, b penstock.Batch[Order]) error {
		for i, order := range b.All() {
			if err := db.charge(ctx, order); err != nil {
				b.Fail(i, err) // this one comes again, the others are settled
			}
		}
		return nil
	})
}

func sendBack(ctx context.Context, review *queue.Group[Order], orders *queue.Topic[Order]) (queue.RedriveReport, error) {
	return queue.Redrive(ctx, review, queue.RedriveConfig[Order]{
		To:     []*queue.Topic[Order]{orders},
		Filter: func(e penstock.Event[Order]) bool { return e.Origin.Group == "billing" },
		Rate:   50, // per second
	})
}

func TestGuideTopicOnDisk(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 { // the second time as after a restart
		orders, err := openOrders(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := importFile(ctx, orders, 3, [][]Order{{{ID: "1"}, {ID: "2"}}, {{ID: "3"}}}); err != nil {
			t.Fatal(err)
		}
		if err := orders.Close(); err != nil {
			t.Error(err)
		}
	}
	orders, err := openOrders(dir)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := orders.Group("archive", queue.GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	db := &shop{}
	err = archive.Run(ctx, func(ctx context.Context, b penstock.Batch[Order]) error {
		if err := db.insert(ctx, b.Values()); err != nil {
			return err
		}
		if len(db.inserted) >= 3 {
			cancel()
		}
		return nil
	})
	if err != nil || !slices.Equal(db.inserted, []string{"1", "2", "3"}) {
		t.Errorf("kept %v: %v", db.inserted, err)
	}
	if err := orders.Close(); err != nil {
		t.Error(err)
	}
}

func openOrders(dir string) (*queue.Topic[Order], error) {
	orders, err := queue.Open(queue.Config[Order]{
		Name:          "orders",
		Partitions:    4,
		Dir:           dir,
		Codec:         penstock.JSON[Order](),
		CapacityBytes: 10 << 30, // producers wait behind it
	})
	if damage, ok := errors.AsType[*penstock.CorruptError](err); ok {
		log.Print(damage) // names the file and the place; penstock fsck and penstock repair look further
	}
	return orders, err
}

// importFile appends a file's batches, and the same file again appends nothing.
func importFile(ctx context.Context, orders *queue.Topic[Order], number uint32, batches [][]Order) error {
	producer, err := orders.Producer(number)
	if err != nil {
		return err
	}
	for i, batch := range batches {
		sequence := uint64(i + 1)
		if sequence < producer.Last() {
			continue // an earlier run has appended it
		}
		if _, err := producer.Produce(ctx, sequence, batch...); err != nil {
			return err // repeat it with the same number: it is appended once
		}
	}
	return nil
}
