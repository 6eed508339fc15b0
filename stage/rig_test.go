package stage

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// wants records the demand that a source callback was given.
type wants struct {
	mu   sync.Mutex
	seen []int
}

func (w *wants) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, n)
}

// all returns what was recorded since the last call.
func (w *wants) all() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// counter emits what is asked for, times factor, as consecutive ints from 0.
func counter(w *wants, factor int) *Source[int] {
	n := 0
	return Pull("counter", func(_ context.Context, want int, out *Output[int]) error {
		w.add(want)
		for range want * factor {
			out.Emit(n)
			n++
		}
		return nil
	})
}

// lockstep is a sink that records each batch and then blocks until step.
type lockstep[T any] struct {
	*Sink[T]
	go1     chan struct{}
	mu      sync.Mutex
	batches [][]T
}

func newLockstep[T any](name string) *lockstep[T] {
	l := &lockstep[T]{go1: make(chan struct{})}
	l.Sink = NewSink(name, func(ctx context.Context, in []T) error {
		l.mu.Lock()
		l.batches = append(l.batches, slices.Clone(in))
		l.mu.Unlock()
		select {
		case <-l.go1:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return l
}

// step lets the batch in hand go, and waits for quiet.
func (l *lockstep[T]) step() {
	l.go1 <- struct{}{}
	synctest.Wait()
}

// all returns the batches recorded since the last call.
func (l *lockstep[T]) all() [][]T {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.batches
	l.batches = nil
	return b
}

// collector is a sink that records each batch and never blocks.
func collector[T any](name string) (*Sink[T], func() [][]T) {
	var mu sync.Mutex
	var batches [][]T
	s := NewSink(name, func(_ context.Context, in []T) error {
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, slices.Clone(in))
		return nil
	})
	return s, func() [][]T {
		mu.Lock()
		defer mu.Unlock()
		b := batches
		batches = nil
		return b
	}
}

// start starts the graph and has it aborted, and waited for, at the end.
func start(t *testing.T, g *Graph) {
	t.Helper()
	if err := g.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Abort(nil)
		g.Wait()
	})
}

// withPoison has every free slab cleared: a slab that is given back too early
// shows as zeros.
func withPoison() GraphOption { return func(g *Graph) { g.poison = true } }

// bubble runs f in a synctest bubble with a graph that is ended at its end.
func bubble(t *testing.T, f func(t *testing.T, g *Graph), opts ...GraphOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := append([]GraphOption{Logger(slog.New(slog.DiscardHandler)), withPoison()}, opts...)
		f(t, NewGraph(opts...))
	})
}

// bubbled returns how many goroutines are in the caller's bubble. Those outside,
// of the runtime and of tests before, come and go.
func bubbled() int {
	buf := make([]byte, 1<<20)
	all := string(buf[:runtime.Stack(buf, true)])
	own, _, _ := strings.Cut(all, "]:\n") // the caller's stands first
	return strings.Count(all, own[strings.Index(own, "synctest bubble"):]+"]:\n")
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func ints(from, to int) []int {
	var s []int
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}

// logTo returns a logger and what it has written, a line per record.
func logTo() (*slog.Logger, func() string) {
	var mu sync.Mutex
	var buf bytes.Buffer
	h := slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}), nil)
	return slog.New(h), func() string {
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
