package stage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// A watchdog fails at the moment at which something has taken too long.
func TestWatchdogFailsWhenItHasWaitedTooLong(t *testing.T) {
	for name, c := range map[string]struct {
		config WatchdogConfig
		live   func(emit *Emitter[int], take func())
		at     time.Duration // 0: it does not fail
		says   string
	}{
		"initial": {WatchdogConfig{Initial: time.Minute}, func(*Emitter[int], func()) { time.Sleep(time.Hour) }, time.Minute, "no first event"},
		"initial came": {WatchdogConfig{Initial: time.Minute}, func(emit *Emitter[int], take func()) {
			time.Sleep(time.Minute - 1)
			emit.Push(1)
			take()
			time.Sleep(time.Hour)
		}, 0, ""},
		"idle from the start": {WatchdogConfig{Idle: time.Minute}, func(*Emitter[int], func()) { time.Sleep(time.Hour) }, time.Minute, "no event for"},
		"idle": {WatchdogConfig{Idle: time.Minute}, func(emit *Emitter[int], take func()) {
			for range 4 {
				time.Sleep(40 * time.Second)
				emit.Push(1)
				take()
			}
			time.Sleep(time.Hour)
		}, 160*time.Second + time.Minute, "no event for"},
		"idle is not pressure": {WatchdogConfig{Idle: time.Minute}, func(emit *Emitter[int], take func()) {
			emit.Push(1, 2, 3)
			time.Sleep(time.Hour)
			for range 3 {
				take()
			}
			time.Sleep(time.Hour)
		}, time.Hour + time.Minute, "no event for"},
		"pressure": {WatchdogConfig{Backpressure: time.Minute}, func(emit *Emitter[int], take func()) {
			emit.Push(1, 2, 3)
			time.Sleep(40 * time.Second)
			take()
			time.Sleep(time.Hour)
		}, 100 * time.Second, "nobody has asked"},
		"no pressure": {WatchdogConfig{Backpressure: time.Minute}, func(emit *Emitter[int], take func()) {
			emit.Push(1, 2, 3)
			for range 3 {
				time.Sleep(time.Minute - 1)
				take()
			}
			time.Sleep(time.Hour)
		}, 0, ""},
		"completion": {WatchdogConfig{Completion: time.Minute}, func(emit *Emitter[int], take func()) {
			for range 100 {
				time.Sleep(time.Second)
				emit.Push(1)
				take()
			}
		}, time.Minute, "not at the end"},
		"completed": {WatchdogConfig{Completion: time.Minute, Idle: time.Minute, Initial: time.Minute}, func(emit *Emitter[int], take func()) {
			emit.Push(1)
			take()
			time.Sleep(time.Minute - 1)
			emit.Finish()
			time.Sleep(time.Hour)
		}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g *Graph) {
				src, emit := Push[int]("source")
				dog := Watchdog[int](c.config)
				sink := newLockstep[int]("sink")
				Connect(g, src, dog, Demand(4, 0))
				Connect(g, dog, sink, Demand(1, 0))
				begin := time.Now()
				start(t, g)
				var end time.Duration
				go func() { // ends with the gate
					<-dog.Done()
					end = time.Since(begin)
				}()
				c.live(emit, func() {
					synctest.Wait()
					select {
					case sink.go1 <- struct{}{}:
					default:
					}
					synctest.Wait()
				})
				emit.Finish()
				for !isOver(sink.Done()) {
					synctest.Wait()
					select {
					case sink.go1 <- struct{}{}:
					case <-sink.Done():
					}
				}
				err := g.Wait()
				synctest.Wait()
				switch {
				case c.at == 0 && err != nil:
					t.Errorf("Run: %v", err)
				case c.at > 0 && (!errors.Is(err, ErrWatchdog) || !strings.Contains(err.Error(), c.says)):
					t.Errorf("Run: %v, want a watchdog that says %q", err, c.says)
				case c.at > 0 && !strings.HasPrefix(name, "pressure") && end != c.at: // else it ends when what it emitted was taken
					t.Errorf("after %v, want %v", end, c.at)
				}
				checkGates(t, g)
			})
		})
	}
	for name, c := range map[string]WatchdogConfig{"nothing": {}, "Initial": {Initial: -1}, "Idle": {Idle: -1}, "Backpressure": {Backpressure: -1}, "Completion": {Completion: -1}} {
		g := NewGraph()
		dog := Watchdog[int](c)
		Connect(g, Empty[int]("empty"), dog)
		Connect(g, dog, Discard[int]())
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWatchdogPassesEverythingInOrder(t *testing.T) {
	for n := 1; n < 12; n++ {
		bubble(t, func(t *testing.T, g *Graph) {
			dog := Watchdog[int](WatchdogConfig{Initial: time.Hour, Idle: time.Hour, Backpressure: time.Hour, Completion: time.Hour})
			equal(t, "out", through(t, g, ints(0, 500), dog, Max(n)), ints(0, 500))
			checkGates(t, g)
		})
	}
}

// deduped is the model of DedupeWithin: what was passed is remembered, the last
// limit of it.
func deduped(keys []int, at []time.Duration, d time.Duration, limit int) (out []int) {
	type passed struct {
		key int
		at  time.Duration
	}
	var before []passed
	for i, k := range keys {
		live := slices.DeleteFunc(slices.Clone(before), func(p passed) bool { return at[i]-p.at >= d })
		if len(live) > limit {
			live = live[len(live)-limit:]
		}
		if !slices.ContainsFunc(live, func(p passed) bool { return p.key == k }) {
			out = append(out, i)
			before = append(live, passed{k, at[i]})
		}
	}
	return out
}

func TestDedupeWithinForgetsInTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		keys := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 60).Draw(rt, "keys")
		gaps := rapid.SliceOfN(rapid.IntRange(0, 4), len(keys), len(keys)).Draw(rt, "seconds between")
		d := time.Duration(rapid.IntRange(1, 12).Draw(rt, "d")) * time.Second
		limit := rapid.IntRange(1, 5).Draw(rt, "limit")
		fuse := rapid.Bool().Draw(rt, "fuse")
		var bad error
		synctest.Test(t, func(*testing.T) {
			g := NewGraph(Fuse(fuse), withPoison())
			src, emit := Push[int]("source")
			gate := DedupeWithin(d, limit, func(i *int) int { return keys[*i] })
			sink, got := collector[int]("sink")
			Connect(g, src, gate)
			Connect(g, gate, sink)
			if bad = g.Start(context.Background()); bad != nil {
				return
			}
			var at []time.Duration
			begin := time.Now()
			for i := range keys {
				time.Sleep(time.Duration(gaps[i]) * time.Second)
				at = append(at, time.Since(begin))
				emit.Push(i)
				synctest.Wait()
			}
			emit.Finish()
			if bad = g.Wait(); bad != nil {
				return
			}
			if all, want := flat(got()), deduped(keys, at, d, limit); !slices.Equal(all, want) {
				bad = fmt.Errorf("passed %v, want %v", all, want)
			}
			if s := g.Stats()[1]; s.In != s.Emitted+s.Filtered {
				bad = fmt.Errorf("%+v", s)
			}
		})
		if bad != nil {
			rt.Fatal(bad)
		}
	})
	for name, gate := range map[string]*Gate[int, int]{
		"d": DedupeWithin(0, 1, func(v *int) int { return *v }), "limit": DedupeWithin(1, -1, func(v *int) int { return *v }), "key": DedupeWithin[int, int](1, 1, nil),
	} {
		g := NewGraph()
		Connect(g, Empty[int]("empty"), gate)
		Connect(g, gate, Discard[int]())
		if err := g.Start(t.Context()); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A key that is not equal to itself would stay in a map for good.
func TestDedupeWithinRemembersNoNaN(t *testing.T) {
	m := &memory[float64]{within: time.Second, limit: 10}
	m.forget()
	for range 100 {
		if !m.isNew(math.NaN(), time.Unix(0, 0)) {
			t.Fatal("a NaN was known")
		}
	}
	equal(t, "keys", len(m.seen)+m.order.len(), 0)
}
