package queue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// The cases PC-1 and following are those of docs/cases.md.

// parkBackoff fails at 0 s, then comes again at 2 s, 6 s, 14 s, ...
var parkBackoff = settle.Backoff{Min: 2 * time.Second, Max: time.Hour, Factor: 2, Jitter: -1}

func parkPolicy() settle.Policy { return settle.Policy{Backoff: parkBackoff} }

// keyed is the configuration of a topic whose events begin with their key, one
// letter; "-" is none.
func keyed() queue.Config[string] {
	return queue.Config[string]{Key: keyOfWord, Size: func(v string) penstock.Bytes { return penstock.Bytes(len(v)) }}
}

func keyOfWord(v string) string { return strings.TrimPrefix(v[:1], "-") }

// words is a handler that notes what it is called with, as "0s a1", with the
// attempt behind it from the second on, and fails what fail says.
type words struct {
	begin time.Time
	fail  func(v string, attempt int) bool
	mu    sync.Mutex
	calls []string
}

func handleWords(fail func(v string, attempt int) bool) *words {
	return &words{begin: time.Now(), fail: fail}
}

// failing fails the named events up to the attempt.
func failUntil(attempt int, names ...string) func(string, int) bool {
	return func(v string, n int) bool { return n < attempt && slices.Contains(names, v) }
}

func (w *words) handle(_ context.Context, b penstock.Batch[string]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, v := range b.All() {
		call := fmt.Sprintf("%v %s", time.Since(w.begin), v)
		if n := b.Attempt(i); n > 1 {
			call += fmt.Sprintf(" %d", n)
		}
		w.calls = append(w.calls, call)
		if w.fail != nil && w.fail(v, b.Attempt(i)) {
			b.Fail(i, errHandler)
		}
	}
	return nil
}

func (w *words) want(t testing.TB, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func nothingIsParked[T any](t testing.TB, g *queue.Group[T]) {
	t.Helper()
	if keys, st := g.Parked(), g.Stats().Parked; len(keys) > 0 || st != (queue.ParkedStats{}) {
		t.Errorf("parked %+v, stats %+v, want nothing", keys, st)
	}
}

func TestFailingKeyIsParkedWithFollowers_PC1(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1", "b1", "a2", "c1", "a3")
		w := handleWords(failUntil(3, "a1"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		got := g.Parked()
		want := []queue.ParkedKey{{Key: "a", Events: 3, Since: w.begin, Attempts: 1, Due: w.begin.Add(2 * time.Second), Cause: errHandler.Error()}}
		if s.name == "memory" {
			want[0].Bytes = 6
		} else {
			want[0].Bytes = 12 // three JSON strings
		}
		sameTime := cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })
		if diff := cmp.Diff(want, got, sameTime); diff != "" {
			t.Errorf("parked (-want +got):\n%s", diff)
		}
		st := g.Stats().Parked
		if st.Keys != 1 || st.Events != 3 || st.Bytes != want[0].Bytes || !st.Oldest.Equal(w.begin) || st.Reason != errHandler.Error() {
			t.Errorf("stats %+v", st)
		}
		time.Sleep(6 * time.Second)
		nothingIsParked(t, g)
		run.mustStop(t)
		w.want(t, "0s a1", "0s b1", "0s c1", "2s a1 2", "6s a1 3", "6s a2", "6s a3")
		wantCommitted(t, g, 5)
	})
}

func TestCommitPassesParkedEvents_PC2(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		c := keyed()
		c.Capacity = 5
		topic := open(t, s, c)
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1", "b1", "a2", "c1", "a3")
		w := handleWords(failUntil(3, "a1"))
		run := startRun(t, g, w.handle)
		produce(t, topic, "d1", "d2", "d3", "d4", "d5") // the whole capacity
		time.Sleep(time.Second)
		wantCommitted(t, g, 10)
		time.Sleep(10 * time.Second)
		run.mustStop(t)
		w.want(t, "0s a1", "0s b1", "0s c1", "0s d1", "0s d2", "0s d3", "0s d4", "0s d5", "2s a1 2", "6s a1 3", "6s a2", "6s a3")
	})
}

func TestParkedKeysDoNotWaitForEachOther_PC3(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Retry: parkPolicy()})
		produce(t, topic, "a1", "b1", "a2", "b2", "c1")
		w := handleWords(func(v string, n int) bool { return v == "a1" && n < 3 || v == "b1" && n < 2 })
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		if keys := g.Parked(); len(keys) != 2 || keys[0].Events != 2 || keys[1].Events != 2 {
			t.Errorf("parked %+v, want two keys with two events each", keys)
		}
		time.Sleep(10 * time.Second)
		nothingIsParked(t, g)
		run.mustStop(t)
		w.want(t, "0s a1", "0s b1", "0s c1", "2s a1 2", "2s b1 2", "2s b2", "6s a1 3", "6s a2")
	})
}

func TestEventWithoutKeyIsParkedAlone_PC4(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		g := group(t, topic, "g", queue.GroupConfig{BatchMax: 3, Retry: parkPolicy()})
		produce(t, topic, "-1", "-2", "-3")
		w := handleWords(failUntil(2, "-1", "-3"))
		run := startRun(t, g, w.handle)
		time.Sleep(time.Second)
		if keys := g.Parked(); len(keys) != 2 || keys[0].Events != 1 || keys[0].Offset != 0 || keys[1].Events != 1 || keys[1].Offset != 2 {
			t.Errorf("parked %+v, want offsets 0 and 2 alone", keys)
		}
		produce(t, topic, "-4")
		time.Sleep(10 * time.Second)
		run.mustStop(t)
		w.want(t, "0s -1", "0s -2", "0s -3", "1s -4", "2s -1 2", "2s -3 2")
		wantCommitted(t, g, 4)
	})
}

func TestShortRetryAndBlockStayInPlace_PC5(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, keyed())
		short := settle.Policy{Backoff: settle.Backoff{Min: time.Second, Max: time.Second, Jitter: -1}}
		g := group(t, topic, "short", queue.GroupConfig{Retry: short, BatchMax: 1})
		hour := settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour, Jitter: -1}}
		block := group(t, topic, "block", queue.GroupConfig{Retry: hour, BatchMax: 1, OnFail: queue.Block})
		produce(t, topic, "a1", "b1")
		w, wb := handleWords(failUntil(4, "a1")), handleWords(failUntil(2, "a1"))
		run, runBlock := startRun(t, g, w.handle), startRun(t, block, wb.handle)
		for range 4 {
			synctest.Wait()
			nothingIsParked(t, g)
			nothingIsParked(t, block)
			time.Sleep(time.Second)
		}
		if b := block.Stats().Run.Blocked; len(b) != 1 || !strings.HasPrefix(b[0].Reason, "offset 0 waits for attempt 2") {
			t.Errorf("blocked %+v", b)
		}
		time.Sleep(2 * time.Hour)
		run.mustStop(t)
		runBlock.mustStop(t)
		w.want(t, "0s a1", "1s a1 2", "2s a1 3", "3s a1 4", "3s b1")
		wb.want(t, "0s a1", "1h0m0s a1 2", "1h0m0s b1")
	})
}
