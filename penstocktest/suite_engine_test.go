package penstocktest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
)

func TestLogEngine(t *testing.T) {
	penstocktest.Adapter(t, func(*testing.T, int) stream.Factory { return penstocktest.NewLogEngine() })
}

func TestReceiptEngine(t *testing.T) {
	penstocktest.Adapter(t, func(*testing.T, int) stream.Factory { return penstocktest.NewReceiptEngine(time.Minute) })
}

func TestCheckpointsInMemory(t *testing.T) {
	penstocktest.CheckpointStore(t, func(*testing.T) (stream.CheckpointStore, func() stream.CheckpointStore) {
		return stream.NewMemoryCheckpoints(), nil
	})
}

func TestCheckpointsOnDisk(t *testing.T) {
	penstocktest.CheckpointStore(t, func(t *testing.T) (stream.CheckpointStore, func() stream.CheckpointStore) {
		dir := t.TempDir()
		var s *stream.Store
		open := func() stream.CheckpointStore {
			var err error
			if s != nil {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if s, err = stream.OpenStore(dir); err != nil {
				t.Fatal(err)
			}
			return s.Checkpoints()
		}
		first := open()
		t.Cleanup(func() { s.Close() })
		return first, open
	})
}

func TestAttemptsOnDisk(t *testing.T) {
	penstocktest.AttemptStore(t, func(t *testing.T) (stream.AttemptStore, func() stream.AttemptStore) {
		dir := t.TempDir()
		open := func() *stream.Store {
			s, err := stream.OpenStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		t.Cleanup(func() { s.Close() })
		return s.Attempts(), func() stream.AttemptStore {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open()
			return s.Attempts()
		}
	})
}

func TestCheckpointerOverAStore(t *testing.T) {
	penstocktest.Checkpointer(t, func(t *testing.T) func() stream.Checkpointer {
		store := stream.NewMemoryCheckpoints()
		return func() stream.Checkpointer {
			c, err := stream.NewCheckpointer(store, "suite", stream.QueueID{Name: "suite"}, stream.CheckpointerConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
	})
}

// Nothing between the ends passes the suite, so the suite asks for nothing
// that a plain call does not give.
func TestConsumerWithNothingBetween(t *testing.T) {
	penstocktest.StreamConsumer(t, func(_ *testing.T, far stream.Consumer) stream.Consumer { return far })
}

// chaos is a script that makes every kind of trouble, in turn.
func chaos(op penstocktest.EngineOp) (f penstocktest.EngineFault) {
	switch op.Kind {
	case penstocktest.EngineRead:
		switch op.N % 7 {
		case 0:
			f.LoseReply = true
		case 2:
			f.Err = errors.New("engine is restarting")
		case 4:
			f.Duplicate = true
		case 5:
			f.Reorder = true
		}
	case penstocktest.EngineAck, penstocktest.EngineCheckpoint:
		switch op.N % 5 {
		case 0:
			f.LoseReply = true
		case 1:
			f.Err = errors.New("engine is restarting")
		}
	case penstocktest.EngineEnqueue:
		f.LoseReply, f.Duplicate = op.N%9 == 0, op.N%11 == 0
	}
	return f
}

// Over an engine that loses replies, fails, repeats and reorders, a provider
// loses nothing; in a log each stream keeps its order but for repetitions.
func TestProviderOverABadEngineLosesNothing(t *testing.T) {
	for name, open := range map[string]func() *penstocktest.Engine{
		"log":      penstocktest.NewLogEngine,
		"receipts": func() *penstocktest.Engine { return penstocktest.NewReceiptEngine(5 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := open()
				p, err := stream.Open(stream.Config{
					Name: "shop", Factory: e, Queues: 2, Logger: slog.New(slog.DiscardHandler),
					ReadBackoff: stream.Fixed(time.Second), DeliveryBackoff: stream.Fixed(time.Second),
				})
				if err != nil {
					t.Fatal(err)
				}
				const streams, events = 4, 50
				var mu sync.Mutex
				got, highest := map[string]int{}, map[string]int{}
				var all []*stream.Stream[int]
				for i := range streams {
					key := fmt.Sprint(i)
					s := stream.Of[int](p, "orders", key)
					all = append(all, s)
					if _, err := s.Subscribe(t.Context(), "x", func(_ context.Context, b penstock.Batch[int]) error {
						mu.Lock()
						defer mu.Unlock()
						for _, v := range b.All() {
							if name == "log" && v > highest[key]+1 {
								t.Errorf("stream %s: %d after %d", key, v, highest[key])
							}
							highest[key] = max(highest[key], v)
							got[fmt.Sprint(key, "/", v)]++
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- p.Run(ctx) }() // ended by cancel
				time.Sleep(time.Second)
				e.SetScript(chaos)
				for v := 1; v <= events; v++ {
					for _, s := range all {
						if err := s.Publish(ctx, v); err != nil && !errors.Is(err, penstock.ErrUnknownOutcome) {
							t.Errorf("publish: %v", err)
						}
					}
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(5 * time.Minute)
				e.SetScript(nil)
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				p.Close()
				if len(got) != streams*events {
					t.Errorf("%d of %d events came", len(got), streams*events)
				}
				if name == "receipts" && e.Left() > 0 {
					t.Errorf("%d containers were not acknowledged", e.Left())
				}
			})
		})
	}
}

// What was trimmed under a reader is an error, not a jump.
func TestTrimmedLogIsAnError_FM48(t *testing.T) {
	e := penstocktest.NewLogEngine()
	m, err := e.NewMapper("suite", 1)
	if err != nil {
		t.Fatal(err)
	}
	a, err := e.NewAdapter(t.Context(), stream.Environment{Provider: "suite", Mapper: m})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c := stream.Container{Stream: penstock.StreamID{Namespace: "n"}, Events: stream.EventsOf(penstock.Envelope{})}
		if err := a.Enqueue(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	r, err := a.NewReceiver(m.Queues()[0])
	if err != nil {
		t.Fatal(err)
	}
	e.Trim(0, 2)
	if got, err := r.Read(t.Context(), 10); !errors.Is(err, penstock.ErrOffsetOutOfRange) || len(got) > 0 {
		t.Errorf("read of what was trimmed: %d containers, %v; want ErrOffsetOutOfRange", len(got), err)
	}
}

// A receipt that has expired does not acknowledge, and a stalled read ends
// with its context.
func TestReceiptsExpireAndReadsStall_FM44(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := penstocktest.NewReceiptEngine(time.Minute)
		m, err := e.NewMapper("suite", 1)
		if err != nil {
			t.Fatal(err)
		}
		a, err := e.NewAdapter(t.Context(), stream.Environment{Provider: "suite", Mapper: m})
		if err != nil {
			t.Fatal(err)
		}
		c := stream.Container{Stream: penstock.StreamID{Namespace: "n"}, Events: stream.EventsOf(penstock.Envelope{})}
		if err := a.Enqueue(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		r, err := a.NewReceiver(m.Queues()[0])
		if err != nil {
			t.Fatal(err)
		}
		first, err := r.Read(t.Context(), 10)
		if err != nil || len(first) != 1 {
			t.Fatal(len(first), err)
		}
		e.ExpireReceipts(0)
		second, err := r.Read(t.Context(), 10)
		if err != nil || len(second) != 1 || second[0].Attempts != 1 {
			t.Fatal(second, err)
		}
		if err := r.Delivered(t.Context(), first); !errors.Is(err, stream.ErrReceiptExpired) {
			t.Errorf("late acknowledgement: %v, want ErrReceiptExpired", err)
		}
		never := make(chan struct{})
		e.SetScript(func(penstocktest.EngineOp) penstocktest.EngineFault { return penstocktest.EngineFault{Stall: never} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Read(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a stalled read: %v, want its context's error", err)
		}
		e.SetScript(nil)
		if err := r.Delivered(t.Context(), second); err != nil || e.Left() != 0 {
			t.Errorf("acknowledgement: %v, %d left", err, e.Left())
		}
	})
}
