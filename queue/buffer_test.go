package queue_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func buffered(t *testing.T, topic *queue.Topic[int], most int, delay time.Duration) *queue.Buffer[int] {
	t.Helper()
	b, err := topic.Buffered(most, delay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	return b
}

func add(t *testing.T, b *queue.Buffer[int], events ...int) (all []queue.Pending) {
	t.Helper()
	for _, v := range events {
		p, err := b.Add(t.Context(), v)
		if err != nil {
			t.Fatalf("Add(%d): %v", v, err)
		}
		all = append(all, p)
	}
	return all
}

func TestBufferProducesByCountByDelayAndWhenToldTo(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		b := buffered(t, topic, 3, time.Second)
		next := func(after time.Duration, want ...int) {
			t.Helper()
			begin := time.Now()
			got, err := c.Pull(t.Context())
			if err != nil || !slices.Equal(got.Values(), want) || time.Since(begin) != after {
				t.Errorf("%v after %v, %v, want %v after %v", got.Values(), time.Since(begin), err, want, after)
			}
		}
		first := add(t, b, 1, 2)
		if got := pull(t, c, 9); got != nil {
			t.Errorf("%v before its time", got)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		wantErr(t, first[0].Wait(short), context.DeadlineExceeded)
		next(999*time.Millisecond, 1, 2)
		for range 2 {
			if err := first[1].Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		add(t, b, 3, 4, 5, 6)
		next(0, 3, 4, 5)
		time.Sleep(500 * time.Millisecond) // 6 has its own second, whenever the one before began
		next(500*time.Millisecond, 6)
		add(t, b, 7)
		if err := b.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		next(0, 7)
		add(t, b, 8, 9)
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		next(0, 8, 9)
		p, err := b.Add(t.Context(), 10)
		wantErr(t, err, penstock.ErrClosed)
		if p.Wait(t.Context()) == nil || b.Close(t.Context()) != nil || b.Flush(t.Context()) != nil {
			t.Error("after Close: an event was taken, or something is told twice")
		}
	})
}

// TestBufferTellsWhatWasRefused: each event's Pending, and the next Flush, once.
func TestBufferTellsWhatWasRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 4, WhenFull: queue.Fail})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		b := buffered(t, topic, 3, time.Hour)
		all := add(t, b, seq(0, 7)...) // three are accepted, three refused, one waits
		for i, p := range all[:6] {
			if err := p.Wait(t.Context()); (err == nil) != (i < 3) || i >= 3 && !errors.Is(err, penstock.ErrFull) {
				t.Errorf("event %d: %v", i, err)
			}
		}
		err := b.Flush(t.Context()) // the last one fits
		wantErr(t, err, penstock.ErrFull)
		if err == nil || !strings.Contains(err.Error(), "3 buffered events") || all[6].Wait(t.Context()) != nil {
			t.Errorf("Flush: %v; the last one: %v", err, all[6].Wait(t.Context()))
		}
		if err := b.Flush(t.Context()); err != nil {
			t.Errorf("told again: %v", err)
		}
		if diff := cmp.Diff([]int{0, 1, 2, 6}, pull(t, c, 9)); diff != "" {
			t.Error(diff)
		}
		add(t, b, 8)
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = b.Add(t.Context(), 9)
		wantErr(t, err, penstock.ErrClosed)
		wantErr(t, b.Close(t.Context()), penstock.ErrClosed)
	})
}

// TestBufferIsBounded: one batch flies, one is full, and who adds more waits.
func TestBufferIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 2})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		b := buffered(t, topic, 2, time.Hour)
		add(t, b, seq(0, 6)...) // in the topic, flying, full
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting := start(t, func() error { _, err := b.Add(ctx, 100); return err })
		waiting.blocked()
		cancel(errEnded)
		wantErr(t, waiting.wait(), context.Canceled, errEnded)
		_, err := b.Add(ended(t), 101)
		wantErr(t, err, errEnded)
		wantErr(t, b.Flush(ended(t)), errEnded)
		more := start(t, func() error { _, err := b.Add(t.Context(), 6); return err })
		more.blocked()
		var got []int
		for range 3 {
			got = append(got, pull(t, c, 2)...)
			if len(got) == 2 {
				if err := more.wait(); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		got = append(got, pull(t, c, 2)...)
		if diff := cmp.Diff(seq(0, 7), got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestCloseOfABufferKeepsItsDeadline: what does not fly is refused, what flies
// is cancelled, and both are said.
func TestCloseOfABufferKeepsItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 3})
		group(t, topic, "g", queue.GroupConfig{})
		b := buffered(t, topic, 2, time.Hour)
		all := add(t, b, seq(0, 5)...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		err := b.Close(ctx)
		wantErr(t, err, context.DeadlineExceeded, penstock.ErrClosed)
		if d := time.Since(begin); d != time.Minute || !strings.Contains(err.Error(), "2 events are in a request") || !strings.Contains(err.Error(), "1 buffered events") {
			t.Errorf("after %v: %v", d, err)
		}
		for i, p := range all {
			if err := p.Wait(t.Context()); (err == nil) != (i < 2) || i >= 2 && !errors.Is(err, penstock.ErrClosed) && !errors.Is(err, context.Canceled) {
				t.Errorf("event %d: %v", i, err)
			}
		}
	})
}

// TestBufferOutlivesUserCodeThatEndsItsGoroutine: the batch has failed, and the
// next one flies.
func TestBufferOutlivesUserCodeThatEndsItsGoroutine(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, Capacity: 4, Key: func(v int) string {
			switch v {
			case 0:
				runtime.Goexit()
			case 1:
				panic("key")
			}
			return ""
		}})
		b := buffered(t, topic, 1, time.Hour)
		for i, p := range add(t, b, 0, 1, 2, 3) {
			err := p.Wait(t.Context())
			if _, ok := errors.AsType[*penstock.PanicError](err); ok != (i < 2) || i >= 2 && err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
		if err := b.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "2 buffered events") {
			t.Errorf("Close: %v", err)
		}
	})
}

// TestBufferIsSharedByManyProducers: nothing is lost, doubled or out of the
// order of its producer, and a batch larger than the topic goes in slices.
func TestBufferIsSharedByManyProducers(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const producers, each = 4, 100
		topic := open(t, s, queue.Config[int]{Capacity: 8})
		c := group(t, topic, "g", queue.GroupConfig{AutoCommit: true}).Consumer(0)
		b := buffered(t, topic, 11, time.Millisecond)
		var running sync.WaitGroup
		for p := range producers {
			running.Go(func() { // ends after its events; waited for below
				for i := range each {
					pending, err := b.Add(t.Context(), p*each+i)
					if err != nil {
						t.Error(err)
						return
					}
					if i%10 == 0 {
						if err := pending.Wait(t.Context()); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		next := make([]int, producers)
		for n := 0; n < producers*each; {
			batch, err := c.Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range batch.Values() {
				if p := v / each; next[p] != v%each {
					t.Fatalf("producer %d: event %d, want %d", p, v%each, next[p])
				}
				next[v/each]++
			}
			n += batch.Len()
		}
		running.Wait()
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestBufferNamesTheBadArgument(t *testing.T) {
	topic := open(t, storages[0], queue.Config[int]{})
	for field, bad := range map[string][]func() error{
		"most":  {func() error { _, err := topic.Buffered(0, 1); return err }, func() error { _, err := topic.Buffered(1<<20+1, 1); return err }},
		"delay": {func() error { _, err := topic.Buffered(1, 0); return err }, func() error { _, err := topic.Buffered(1, -1); return err }},
	} {
		for _, call := range bad {
			if f, ok := errors.AsType[*penstock.FieldError](call()); !ok || f.Field != field {
				t.Errorf("error %v, want one that names %s", call(), field)
			}
		}
	}
}

// TestFlushDoesNotWaitForWhatComesMeanwhile: it once did, and so a buffer that
// is never empty kept it for ever.
func TestFlushDoesNotWaitForWhatComesMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		b := buffered(t, topic, 8, time.Hour)
		produce(t, topic, 0)
		add(t, b, 1)
		flush := start(t, func() error { return b.Flush(t.Context()) })
		flush.blocked() // for room
		add(t, b, 2)
		wantPull(t, c, 1, 0)
		commit(t, c)
		if err := flush.wait(); err != nil {
			t.Error(err)
		}
		wantPull(t, c, 1, 1)
		commit(t, c)
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wantPull(t, c, 1, 2)
	})
}

// An Add that waits for a full batch ends when Close has given up, though the
// request under way hangs in user code.
func TestAddEndsWhenCloseHasGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		hang := make(chan struct{})
		defer close(hang)
		topic := open(t, s, queue.Config[int]{Key: func(int) string { <-hang; return "k" }})
		b, err := topic.Buffered(1, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 { // one flies and hangs, one fills the batch behind it
			if _, err := b.Add(t.Context(), i); err != nil {
				t.Fatal(err)
			}
		}
		third := start(t, func() error { _, err := b.Add(t.Context(), 2); return err })
		third.blocked()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, b.Close(ctx), context.DeadlineExceeded)
		wantErr(t, third.wait(), penstock.ErrClosed)
	})
}

// A handler that waits for a buffer of its own full topic is told so, and what
// the buffer holds is accepted when the handler has returned.
func TestHandlerThatWaitsForItsBufferIsTold(t *testing.T) {
	for name, c := range map[string]queue.Config[int]{
		"events": {Capacity: 4},
		"bytes":  {CapacityBytes: 4, Size: func(int) penstock.Bytes { return 1 }},
	} {
		t.Run(name, func(t *testing.T) { handlerWaitsForItsBuffer(t, c) })
	}
}

func handlerWaitsForItsBuffer(t *testing.T, c queue.Config[int]) {
	for _, how := range []string{"wait", "flush", "add"} {
		inBubble(t, func(t *testing.T, s storage) {
			topic := open(t, s, c)
			g := group(t, topic, "g", queue.GroupConfig{BatchMax: 4})
			b := buffered(t, topic, 2, time.Millisecond)
			produce(t, topic, 1, 2, 3, 4)
			var mu sync.Mutex
			var got []int
			var told error
			var took time.Duration
			run := startRun(t, g, func(ctx context.Context, batch penstock.Batch[int]) error {
				mu.Lock()
				defer mu.Unlock()
				if got = append(got, batch.Values()...); len(got) > 4 {
					return nil
				}
				begin := time.Now()
				defer func() { took = time.Since(begin) }()
				p, err := b.Add(ctx, 5)
				if err != nil {
					told = err
					return nil
				}
				switch how {
				case "wait":
					told = p.Wait(ctx)
				case "flush":
					told = b.Flush(ctx)
				case "add":
					for i := 6; told == nil && i < 10; i++ {
						_, told = b.Add(ctx, i)
					}
				}
				return nil
			})
			time.Sleep(10 * time.Second)
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
			run.mustStop(t)
			wantErr(t, told, queue.ErrWaitsForItself, penstock.ErrFull)
			if took > time.Second {
				t.Errorf("%s: told after %v", how, took)
			}
			want := 5
			if how == "add" {
				want = 8 // two fly, two fill, and the next finds no place
			}
			if !slices.Equal(got, seq(1, want+1)) {
				t.Errorf("%s: handled %v, want 1 to %d", how, got, want)
			}
		})
	}
}

// Close in a handler that the buffer waits for gives up, and says what it did.
func TestCloseOfABufferInAHandlerThatItWaitsForTellsAll(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 1})
		g := group(t, topic, "g", queue.GroupConfig{})
		b := buffered(t, topic, 1, time.Hour)
		produce(t, topic, 1)
		var told error
		run := startRun(t, g, func(ctx context.Context, batch penstock.Batch[int]) error {
			for _, v := range []int{2, 3} {
				if _, err := b.Add(ctx, v); err != nil {
					t.Error(err)
				}
			}
			told = b.Close(ctx)
			return nil
		})
		time.Sleep(time.Minute)
		run.mustStop(t)
		// One is in the request that was cancelled, and the other was refused.
		wantErr(t, told, queue.ErrWaitsForItself, penstock.ErrFull, penstock.ErrClosed)
	})
}
