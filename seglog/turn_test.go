package seglog

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// withGuard calls f, and fails the test when it has not returned in time.
func withGuard(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends with f, or with the process when f hangs
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second): // a guard; it takes well under a second
		t.Fatal(what)
	}
}

// TestTurnExcludesAndWakes: the plain counter is what the lock guards, so the
// race detector watches too. Now and then a holder lets others run, so that those
// who want the lock park; each way of giving it back must wake them.
func TestTurnExcludesAndWakes(t *testing.T) {
	const goroutines, each = 6, 20_000
	for name, giveBack := range map[string]func(*Turn){
		"unlock": (*Turn).Unlock, "publish": (*Turn).Publish,
		"release": func(t *Turn) {
			if t.Release() {
				t.Wake()
			}
		},
	} {
		var turn Turn
		turn.Init()
		count, inside := 0, 0
		withGuard(t, name+": somebody waits for a lock that nobody holds", func() {
			var group sync.WaitGroup
			for g := range goroutines {
				rng := rand.New(rand.NewPCG(1, uint64(g)))
				group.Go(func() { // ends after its locks; waited for below
					for range each {
						if rng.IntN(2) == 0 || !turn.TryLock() {
							turn.Lock()
						}
						if inside++; inside != 1 {
							t.Error(name + ": two hold the lock")
						}
						count++
						if rng.IntN(100) == 0 {
							runtime.Gosched()
						}
						inside--
						giveBack(&turn)
					}
				})
			}
			group.Wait()
		})
		want := uint64(0)
		if name != "unlock" {
			want = goroutines * each
		}
		if w := turn.word.Load(); count != goroutines*each || w != want<<turnShift {
			t.Errorf("%s: counted %d, %d turns, bits %b", name, count, turn.turns(), w&(oneTurn-1))
		}
	}
}

// TestTurnIsHandedToWhoWaits: those who take the lock again and again, and would
// always find it free, let somebody in who has waited.
func TestTurnIsHandedToWhoWaits(t *testing.T) {
	var turn Turn
	turn.Init()
	withGuard(t, "who waits never gets the lock", func() {
		var served atomic.Bool
		var hogs sync.WaitGroup
		for range 3 {
			hogs.Go(func() { // ends when the other was served; waited for below
				for !served.Load() {
					turn.Lock()
					runtime.Gosched()
					turn.Publish()
				}
			})
		}
		for had := 0; had < 5; {
			turn.Lock()
			had++
			turn.Unlock()
		}
		served.Store(true)
		hogs.Wait()
	})
}

// turns are logs that take turns, as the appender of TestJoinedLogsFollowTheModel
// knows them.
type turns struct {
	turn Turn
	logs []*Log[int]
	ends []atomic.Int64 // at least so far, for readers; written after an append
}

func newTurns(clock *Clock, n int) *turns {
	s := &turns{ends: make([]atomic.Int64, n)}
	s.turn.Init()
	for i := range n {
		l := New[int](Config{Clock: clock})
		l.TakesTurns(&s.turn, i, n)
		s.logs = append(s.logs, l)
	}
	return s
}

// TestJoinedLogsFollowTheModel: whatever mix of joined turns, plain appends and
// batches, a log's end is what was appended to it, never goes back for a reader
// that looks at any time, and what lies below can be read.
func TestJoinedLogsFollowTheModel(t *testing.T) {
	const steps = 4000
	for n := 1; n <= 3; n++ {
		clock := NewClock()
		s := newTurns(clock, n)
		ctx, stop := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("it takes too long"))
		var readers sync.WaitGroup
		for i, l := range s.logs {
			readers.Go(func() { // ends with ctx; waited for below
				cursor, seen := l.Cursor(), penstock.Offset(0)
				for ctx.Err() == nil {
					least := penstock.Offset(s.ends[i].Load())
					end := l.End()
					if end < seen || end < least {
						t.Errorf("log %d of %d ends at %d after %d, %d were appended", i, n, end, seen, least)
						return
					}
					for seen < end {
						for _, v := range cursor.View(seen, end).Values {
							if v != int(seen) {
								t.Errorf("log %d of %d: event %d is %d", i, n, seen, v)
								return
							}
							seen++
						}
					}
				}
			})
		}
		readers.Go(func() { s.look(ctx, t) }) // ends with ctx; waited for below
		s.run(t, rand.New(rand.NewPCG(7, uint64(n))), steps)
		stop()
		readers.Wait()
		clock.Stop()
	}
}

// look reads the ends of all logs by one look after the other.
func (s *turns) look(ctx context.Context, t *testing.T) {
	var look Look
	least := make([]penstock.Offset, len(s.logs))
	for first := 0; ctx.Err() == nil; first++ {
		for i := range least {
			least[i] = penstock.Offset(s.ends[i].Load())
		}
		look.Again()
		for i := range s.logs {
			i = (i + first) % len(s.logs)
			end := s.logs[i].EndBy(&look)
			if now := s.logs[i].End(); end < least[i] || end > now {
				t.Errorf("log %d of %d ends at %d by a look, %d were appended before it, %d are there", i, len(s.logs), end, least[i], now)
				return
			}
		}
	}
}

// TestLookFromBeforeTheJoinIsNotUsed: turns that went by while the logs were
// parted belong to nobody, so a look from before says nothing of a log that was
// joined since.
func TestLookFromBeforeTheJoinIsNotUsed(t *testing.T) {
	clock := NewClock()
	defer clock.Stop()
	s := newTurns(clock, 2)
	joinAt := func(next int) {
		s.turn.Lock()
		defer s.turn.Unlock()
		s.turn.Align(next, 2)
		for _, l := range s.logs {
			l.Join()
		}
	}
	joinAt(0)
	s.turn.Lock()
	s.logs[0].Put(0)
	s.turn.Publish()
	var look Look
	if got := s.logs[0].EndBy(&look); got != 1 {
		t.Fatalf("the log ends at %d, want 1", got)
	}
	s.turn.Lock()
	for _, l := range s.logs {
		l.Part()
	}
	s.turn.Unlock()
	joinAt(0) // the turn of log 1 is passed over
	if got := s.logs[1].EndBy(&look); got != 0 {
		t.Errorf("the other log ends at %d, want 0", got)
	}
}

// run appends at random; event v of a log is v.
func (s *turns) run(t *testing.T, rng *rand.Rand, steps int) {
	n, next, joined := len(s.logs), 0, false
	want := make([]int, n)
	appended := func(i, k int) {
		want[i] += k
		if got := s.logs[i].End(); got != penstock.Offset(want[i]) {
			t.Fatalf("log %d of %d ends at %d, want %d, joined %v", i, n, got, want[i], joined)
		}
		s.ends[i].Store(int64(want[i]))
	}
	for range steps {
		s.turn.Lock()
		switch p := rng.IntN(10); {
		case joined && p == 0:
			for _, l := range s.logs {
				l.Part()
			}
			joined = false
			s.turn.Unlock()
		case joined:
			l, i := s.logs[next], next
			if slot := l.Slot(); slot != nil && p%2 == 0 {
				*slot = want[i]
				l.Filled()
			} else {
				l.Put(want[i])
			}
			next = (next + 1) % n
			s.turn.Publish()
			appended(i, 1)
		case p == 0:
			s.turn.Align(next, n)
			for _, l := range s.logs {
				l.Join()
			}
			joined = true
			s.turn.Unlock()
		case p < 5:
			s.logs[next].Append(want[next])
			appended(next, 1)
			next = (next + 1) % n
			s.turn.Unlock()
		default: // a batch to some log; the turn moves on by any number
			i, k := rng.IntN(n), 1+rng.IntN(90)
			values := make([]int, k)
			for j := range values {
				values[j] = want[i] + j
			}
			s.logs[i].AppendStrided(values, nil, 0, 1)
			appended(i, k)
			next = rng.IntN(n)
			s.turn.Unlock()
		}
	}
}
