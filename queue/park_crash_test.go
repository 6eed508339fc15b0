package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// parkedLife is one life of a process that parks two keys, retries them, hands
// one event over as a dead letter, and takes the rest.
type parkedLife struct {
	m     *vfs.Mem
	fault func(vfs.Op) vfs.Fault // from the beginning of Run on; nil is none
	mu    sync.Mutex
	calls []lifeCall
}

type lifeCall struct {
	value string
	ops   int // of the disk, when it was called
	done  bool
	at    time.Time
}

var lifeEvents = []string{"a1", "b1", "a2", "c1", "b2", "-1", "a3", "b3"}

// groupConfig gives an event three attempts, at 0 s, 2 s and 6 s.
func (l *parkedLife) groupConfig() queue.GroupConfig {
	p := parkPolicy()
	p.Attempts = 3
	return queue.GroupConfig{BatchMax: 2, Drain: time.Second, Retry: p}
}

// fails: a1 never succeeds, b1 and -1 do the third and the second time.
func (l *parkedLife) fails(v string, attempt int) bool {
	return v == "a1" || v == "b1" && attempt < 3 || v == "-1" && attempt < 2
}

func (l *parkedLife) note(v string, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, lifeCall{v, l.m.Ops(), done, time.Now()})
}

func (l *parkedLife) handle(_ context.Context, b penstock.Batch[string]) error {
	for i, v := range b.All() {
		failed := l.fails(v, b.Attempt(i))
		l.note(v, !failed)
		if failed {
			b.Fail(i, errHandler)
		}
	}
	return nil
}

func (l *parkedLife) deadLetter(_ context.Context, events ...penstock.Event[string]) error {
	for _, e := range events {
		l.note(e.Value, true)
	}
	return nil
}

// live produces and runs. It returns how many operations the disk had done
// before the group began, and what Run and the closing returned.
func (l *parkedLife) live(t *testing.T, c queue.Config[string]) (began int, err error) {
	t.Helper()
	topic, err := queue.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { err = errors.Join(err, topic.Close()) }()
	g, err := topic.Group("g", l.groupConfig(), queue.DeadLetter(l.deadLetter))
	if err != nil {
		t.Fatal(err)
	}
	produce(t, topic, lifeEvents...)
	time.Sleep(time.Second) // at level written, a background sync covers what was produced
	began = l.m.Ops()
	l.m.SetFault(l.fault)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return began, g.Run(ctx, l.handle)
}

// after checks, with what comes of what is left of a life after a number of
// operations, that nothing is lost and no key's first deliveries are out of
// order.
func (l *parkedLife) after(t *testing.T, ops int, second []string, what string) {
	t.Helper()
	var sequence, settled []string
	for _, call := range l.calls {
		if call.ops > ops {
			break
		}
		sequence = append(sequence, call.value)
		if call.done {
			settled = append(settled, call.value)
		}
	}
	for _, v := range lifeEvents {
		if !slices.Contains(settled, v) && !slices.Contains(second, v) {
			t.Fatalf("%s: %s is lost; before %v, settled %v, after %v", what, v, sequence, settled, second)
		}
	}
	inOrder(t, what, append(slices.Clone(sequence), second...))
	inOrder(t, what, second)
}

// rest opens what is left of a life and takes everything that still comes.
func (l *parkedLife) rest(t *testing.T, m *vfs.Mem, c queue.Config[string], what string) (second []string) {
	t.Helper()
	topic, err := queue.Open(queue.WithFS(c, m))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer closeTopic(t, topic)
	take := func(v string) { second = append(second, v) }
	g, err := topic.Group("g", l.groupConfig(), queue.DeadLetter(func(_ context.Context, events ...penstock.Event[string]) error {
		for _, e := range events {
			take(e.Value)
		}
		return nil
	}))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = g.Run(ctx, func(_ context.Context, b penstock.Batch[string]) error {
		for _, v := range b.All() {
			take(v)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if keys := g.Parked(); len(keys) > 0 {
		t.Fatalf("%s: still parked: %+v", what, keys)
	}
	return second
}

// inOrder fails unless the first deliveries of each key are in order.
func inOrder(t *testing.T, what string, sequence []string) {
	t.Helper()
	last := map[string]string{}
	seen := map[string]bool{}
	for _, v := range sequence {
		if seen[v] || v[0] == '-' {
			continue
		}
		seen[v] = true
		if v < last[v[:1]] {
			t.Fatalf("%s: %s came after %s: %v", what, v, last[v[:1]], sequence)
		}
		last[v[:1]] = v
	}
}

// At every operation of the disk, and with every part of what was not synced
// lost, nothing is lost and no key out of order.
func TestCrashAtEveryOperationLosesNoParkedEvent_PC10(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &parkedLife{m: vfs.NewMem()}
				c := keyedOnDisk("data", l.m)
				c.Durability, c.Capacity = level, len(lifeEvents) // so small that commits are stored at once
				began, err := l.live(t, c)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				rests := map[uint64][]string{} // by the sum of the image
				for img := range l.m.Images(vfs.Crashes{From: began, Seed: 1}) {
					n++
					if testing.Short() && n%4 > 0 {
						continue
					}
					sum := img.FS.Sum()
					second, known := rests[sum]
					if !known {
						second = l.rest(t, img.FS, c, img.Desc)
						rests[sum] = second
					}
					l.after(t, img.After, second, img.Desc)
				}
				if n < 1000 || len(rests) < 100 {
					t.Errorf("only %d images, %d different: the life does too little", n, len(rests))
				}
			})
		})
	}
}

// TestWhatIsSettledDoesNotComeAgainAfterAKill_PC10: the process ends at any
// operation of the disk, which keeps everything. What was settled a second before
// is below the commit and gone from the retry log.
func TestWhatIsSettledDoesNotComeAgainAfterAKill_PC10(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &parkedLife{m: vfs.NewMem()}
				type moment struct {
					disk *vfs.Mem
					at   time.Time
				}
				var mu sync.Mutex // several goroutines use the disk
				var moments []moment
				l.fault = func(op vfs.Op) vfs.Fault {
					switch op.Kind {
					case vfs.OpWrite, vfs.OpStore, vfs.OpCreate, vfs.OpRename, vfs.OpRemove, vfs.OpTruncate, vfs.OpMkdir:
						mu.Lock()
						defer mu.Unlock()
						moments = append(moments, moment{l.m.Clone(), time.Now()})
					}
					return vfs.Fault{}
				}
				c := keyedOnDisk("data", l.m)
				c.Durability, c.Capacity = level, len(lifeEvents)
				if _, err := l.live(t, c); err != nil {
					t.Fatal(err)
				}
				kept := map[string]int{}
				for i, m := range moments {
					what := fmt.Sprintf("before change %d of %d", i, len(moments))
					second := l.rest(t, m.disk, c, what)
					for _, call := range l.calls {
						if !call.done || call.at.Add(time.Second).After(m.at) {
							continue
						}
						kept[call.value]++
						if slices.Contains(second, call.value) {
							t.Fatalf("%s: %s was settled %v before and came again: %v", what, call.value, m.at.Sub(call.at), second)
						}
					}
				}
				for _, v := range []string{"c1", "-1", "b1", "b2", "b3"} {
					if kept[v] == 0 {
						t.Errorf("no moment a second after %s was settled, of %d: this shows little: %v", v, len(moments), kept)
					}
				}
			})
		})
	}
}

// A retry log whose disk fails stops its group with an error, or goes on; it
// never loses an event.
func TestFailureAtEveryOperationOfTheRetryLogLosesNothing_PC10(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failures := 0
				for k := 1; ; k++ {
					l := &parkedLife{m: vfs.NewMem()}
					var at atomic.Int64 // several goroutines use the disk
					var hit atomic.Bool
					l.fault = func(op vfs.Op) vfs.Fault {
						if !strings.Contains(op.Name, "retry") || op.Kind == vfs.OpStat || op.Kind == vfs.OpLock {
							return vfs.Fault{}
						}
						if at.Add(1) == int64(k) {
							hit.Store(true)
							return vfs.Fault{Err: errors.New("input/output error")}
						}
						return vfs.Fault{}
					}
					c := keyedOnDisk("data", l.m)
					c.Durability = level
					_, err := l.live(t, c)
					l.m.SetFault(nil)
					if !hit.Load() {
						if err != nil {
							t.Fatal(err)
						}
						break
					}
					if err != nil {
						failures++
					}
					what := fmt.Sprintf("operation %d of the retry log failed (%v)", k, err)
					l.after(t, l.m.Ops(), l.rest(t, l.m, c, what), what)
				}
				if failures == 0 {
					t.Error("no failure was reported")
				}
			})
		})
	}
}
