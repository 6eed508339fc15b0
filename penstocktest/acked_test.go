package penstocktest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
)

// ackQueues is a queue with acknowledgements and without positions: it cannot
// be rewound, has no checkpoint and cannot say when data comes.
type ackQueues struct {
	stream.DefaultParts
	mapper stream.Mapper

	mu   sync.Mutex
	seq  uint64
	kept map[int][]stream.Container // by queue: not acknowledged
}

func (a *ackQueues) NewAdapter(_ context.Context, e stream.Environment) (stream.Adapter, error) {
	a.mapper = e.Mapper
	return a, nil
}

func (*ackQueues) Rewindable() bool            { return false }
func (*ackQueues) Direction() stream.Direction { return stream.ReadWrite }
func (*ackQueues) Close() error                { return nil }

func (a *ackQueues) Enqueue(_ context.Context, c stream.Container) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seq++
	c.Token = penstock.Token{Hi: a.seq}
	n := a.mapper.QueueFor(c.Stream).Number
	a.kept[n] = append(a.kept[n], c)
	return nil
}

func (a *ackQueues) left() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.kept {
		n += len(k)
	}
	return n
}

func (a *ackQueues) NewReceiver(q stream.QueueID) (stream.Receiver, error) {
	return &ackReceiver{ackQueues: a, queue: q.Number}, nil
}

type ackReceiver struct {
	*ackQueues
	queue int
	last  penstock.Token // newest one read in this run
}

func (*ackReceiver) Init(context.Context) error     { return nil }
func (*ackReceiver) Shutdown(context.Context) error { return nil }

func (r *ackReceiver) Read(_ context.Context, limit int) (out []stream.Container, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.kept[r.queue] {
		if c.Token.Compare(r.last) > 0 && (limit < 0 || len(out) < limit) {
			out = append(out, c)
			r.last = c.Token
		}
	}
	return out, nil
}

func (r *ackReceiver) Delivered(_ context.Context, done []stream.Container) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range done {
		r.kept[r.queue] = slices.DeleteFunc(r.kept[r.queue], func(c stream.Container) bool { return c.Token == d.Token })
	}
	return nil
}

func TestQueueWithAcknowledgements(t *testing.T) {
	penstocktest.Adapter(t, func(*testing.T, int) stream.Factory {
		return &ackQueues{kept: map[int][]stream.Container{}}
	})
}

// Over a queue with acknowledgements: what was settled is acknowledged by the
// end of the drain, what a drain cut comes again, what was skipped stays.
func TestProviderAcknowledgesWhatIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queues := &ackQueues{kept: map[int][]stream.Container{}}
		var got []int
		stuck := true
		life := func() error {
			p, err := stream.Open(stream.Config{
				Name: "shop", Factory: queues, Queues: 2, Drain: time.Second, MaxDeliveryTime: time.Second,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			s := stream.Of[int](p, "orders", "7")
			if _, err := s.Subscribe(t.Context(), "x", func(ctx context.Context, b penstock.Batch[int]) error {
				v := b.Value(0)
				switch {
				case v == 15 && stuck:
					<-ctx.Done()
					return ctx.Err()
				case v == 17:
					return fmt.Errorf("never %d", v)
				}
				got = append(got, v)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			for i := range 20 {
				if stuck {
					if err := s.Publish(t.Context(), i); err != nil {
						t.Fatal(err)
					}
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return errors.Join(p.Run(ctx), p.Close())
		}
		var d *penstock.DrainError
		if err := life(); !errors.As(err, &d) || d.Left != 1 {
			t.Errorf("the first run ended with %v, want 1 event left", err)
		}
		if left := queues.left(); left < 5 {
			t.Errorf("%d containers left in the queue, want 15 to 19 at least", left)
		}
		stuck = false
		if err := life(); err != nil {
			t.Error(err)
		}
		first := slices.Compact(slices.Sorted(slices.Values(got)))
		if len(first) != 19 || slices.Contains(first, 17) {
			t.Errorf("settled %v, want all but 17", first)
		}
		if left := queues.left(); left != 1 {
			t.Errorf("%d containers left in the queue, want the one that was skipped", left)
		}
	})
}
