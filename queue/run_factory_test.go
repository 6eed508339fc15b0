package queue_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// instance is a handler with a life: made, called, disposed.
type instance struct {
	sizes    []int
	disposed int
}

// workshop makes instances and sees that each is used as it should be.
type workshop struct {
	t    testing.TB
	mu   sync.Mutex
	made []*instance
	live int // made and not disposed
	do   func(b penstock.Batch[int]) error
}

func (w *workshop) open() (penstock.Handler[int], func()) {
	i := &instance{}
	w.mu.Lock()
	w.made = append(w.made, i)
	w.live++
	w.mu.Unlock()
	return func(_ context.Context, b penstock.Batch[int]) error {
			w.mu.Lock()
			if i.disposed > 0 {
				w.t.Error("a handler was used after it was disposed")
			}
			i.sizes = append(i.sizes, b.Len())
			w.mu.Unlock()
			if w.do == nil {
				return nil
			}
			return w.do(b)
		}, func() {
			w.mu.Lock()
			i.disposed++
			w.live--
			w.mu.Unlock()
		}
}

// check wants that each instance was called once and disposed once, and the
// given sizes of batches in order.
func (w *workshop) check(sizes ...int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []int
	for n, i := range w.made {
		if len(i.sizes) != 1 || i.disposed != 1 {
			w.t.Errorf("instance %d: called %d times and disposed %d times, want once each", n, len(i.sizes), i.disposed)
		}
		got = append(got, i.sizes...)
	}
	if !slices.Equal(got, sizes) {
		w.t.Errorf("batches of %v, want %v", got, sizes)
	}
}

// One instance for all batches lives as long as the code around Run; a fresh
// one per batch is disposed before the next call.
func TestLifetimesOfHandlers_QC47(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "singleton", queue.GroupConfig{BatchMax: 2})
		scoped := group(t, topic, "scoped", queue.GroupConfig{BatchMax: 2})
		produce(t, topic, seq(0, 5)...)

		var one instance
		run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
			one.sizes = append(one.sizes, b.Len())
			return nil
		})
		synctest.Wait()
		run.mustStop(t)
		one.disposed++
		if !slices.Equal(one.sizes, []int{2, 2, 1}) || one.disposed != 1 {
			t.Errorf("one instance: batches of %v, disposed %d times", one.sizes, one.disposed)
		}

		w := &workshop{t: t}
		w.do = func(penstock.Batch[int]) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.live != 1 {
				t.Errorf("%d instances live during a call, want the one that is called", w.live)
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := scoped.RunFactory(ctx, w.open); err != nil {
			t.Errorf("RunFactory: %v", err)
		}
		w.check(2, 2, 1)
		wantCommitted(t, scoped, 5)
	})
}

func TestFreshHandlerIsDisposedOnceHoweverItEnds_QC47(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: settle.Policy{Backoff: backoff}})
		produce(t, topic, seq(0, 4)...)
		w := &workshop{t: t, do: func(b penstock.Batch[int]) error {
			if b.Attempt(0) > 1 {
				return nil
			}
			switch b.Value(0) {
			case 0:
				return errHandler
			case 1:
				panic("boom")
			case 2:
				runtime.Goexit()
			}
			b.Fail(0, errHandler)
			return nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, cancel)
		if err := g.RunFactory(ctx, w.open); err != nil {
			t.Errorf("RunFactory: %v", err)
		}
		w.check(1, 1, 1, 1, 1, 1, 1, 1)
		wantCommitted(t, g, 4)
		if st := g.Stats().Run; st.Failed != 4 {
			t.Errorf("%d failures, want 4", st.Failed)
		}
	})
}

// What the factory does wrong fails the batch, which comes again.
func TestFactoryThatFailsFailsTheBatch(t *testing.T) {
	ok := func(context.Context, penstock.Batch[int]) error { return nil }
	for name, open1 := range map[string]func() (penstock.Handler[int], func()){
		"panics":       func() (penstock.Handler[int], func()) { panic("factory") },
		"exits":        func() (penstock.Handler[int], func()) { runtime.Goexit(); return nil, nil },
		"no handler":   func() (penstock.Handler[int], func()) { return nil, nil },
		"dispose":      func() (penstock.Handler[int], func()) { return ok, func() { panic("dispose") } },
		"dispose exit": func() (penstock.Handler[int], func()) { return ok, runtime.Goexit },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s storage) {
				topic := open(t, s, queue.Config[int]{})
				g := group(t, topic, "g", queue.GroupConfig{Retry: settle.Policy{Backoff: backoff}})
				produce(t, topic, 1, 2)
				calls := 0
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Hour, cancel)
				err := g.RunFactory(ctx, func() (penstock.Handler[int], func()) {
					if calls++; calls == 1 {
						return open1()
					}
					return ok, nil
				})
				if err != nil {
					t.Errorf("RunFactory: %v", err)
				}
				if st := g.Stats().Run; calls != 2 || st.Failed != 2 {
					t.Errorf("%d calls, %d failures, want 2 and 2", calls, st.Failed)
				}
				wantCommitted(t, g, 2)
			})
		})
	}
}

func TestRunFactoryNeedsAFactory(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	wantErr(t, group(t, topic, "g", queue.GroupConfig{}).RunFactory(t.Context(), nil), penstock.ErrInvalid)
}
