package queue_test

import (
	"context"
	"errors"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// The operations of runModel that control a group.

// some returns a group that is open.
func (m *runModel) some(t *rapid.T) *runGroup {
	g := m.groups[rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")]
	if g == nil || !g.open {
		t.Skip("no such group")
	}
	return g
}

// pause pauses a group or a partition. What is handed to a handler from the
// moment on when all stands still is a fault.
func (m *runModel) pause(t *rapid.T) {
	g := m.some(t)
	p := rapid.IntRange(-1, len(m.parts)-1).Draw(t, "partition")
	if p < 0 {
		g.group.Pause()
	} else if err := g.group.PausePartition(p); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if p < 0 {
		g.paused = true
	} else {
		g.pausedParts[p] = true
	}
}

func (m *runModel) resume(t *rapid.T) { m.some(t).resume(t) }

// resume ends all pauses of a group.
func (g *runGroup) resume(t *rapid.T) {
	g.m.mu.Lock()
	g.paused = false
	clear(g.pausedParts)
	g.m.mu.Unlock()
	g.group.Resume()
	for p := range g.pausedParts {
		if err := g.group.ResumePartition(p); err != nil {
			t.Fatal(err)
		}
	}
}

// resize changes the number of consumers, unless its context ends first.
func (m *runModel) resize(t *rapid.T) {
	g := m.some(t)
	n := rapid.IntRange(1, len(m.parts)).Draw(t, "consumers")
	limit := rapid.SampledFrom([]time.Duration{time.Millisecond, 20 * time.Millisecond, time.Hour}).Draw(t, "limit")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	switch err := g.group.Resize(ctx, n); {
	case err == nil:
		g.consumers = n
	case limit == time.Hour || !errors.Is(err, context.DeadlineExceeded):
		t.Fatalf("group %s: Resize(%d): %v", g.name, n, err)
	}
}

// floors returns the lowest offset of each partition that can be sought to.
func (m *runModel) floors() (all []int) {
	for _, p := range m.topic.Stats().Partitions {
		all = append(all, int(p.End)-int(p.Retained))
	}
	return all
}

// moved notes that a partition of a group was sought: what lies before comes no
// more, and all else comes again.
func (g *runGroup) moved(p, to int) {
	g.seeks[p]++
	g.stopped = true
	for o := g.from[p]; o < len(g.m.parts[p]); o++ {
		if o >= to {
			delete(g.settled[p], o)
		} else if g.settled[p][o] == "" {
			g.settled[p][o] = "passed over"
		}
	}
}

// maySeek reports whether a seek may be refused because of what is parked.
func (g *runGroup) mayRefuse() bool {
	return g.group.Stats().Parked.Keys > 0 || g.m.s.name == "file" && !g.ran
}

func (m *runModel) seekOffset(t *rapid.T) {
	g := m.some(t)
	p := rapid.IntRange(0, len(m.parts)-1).Draw(t, "partition")
	m.mu.Lock()
	defer m.mu.Unlock()
	to := rapid.IntRange(0, len(m.parts[p])+1).Draw(t, "to")
	floor, refused := m.floors()[p], g.mayRefuse()
	err := g.group.SeekOffset(t.Context(), p, penstock.Offset(to))
	switch {
	case refused && errors.Is(err, penstock.ErrExists):
	case errors.Is(err, penstock.ErrOffsetOutOfRange) && (to < floor || to > len(m.parts[p])):
	case err != nil || to < floor || to > len(m.parts[p]):
		t.Fatalf("group %s: seek partition %d to %d in [%d, %d]: %v", g.name, p, to, floor, len(m.parts[p]), err)
	default:
		g.moved(p, to)
	}
}

func (m *runModel) seekTime(t *rapid.T) {
	g := m.some(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	at := time.Now().Add(-rapid.SampledFrom([]time.Duration{0, 15 * time.Millisecond, 300 * time.Millisecond, time.Hour}).Draw(t, "ago"))
	floors, refused := m.floors(), g.mayRefuse()
	want := make([]int, len(m.parts))
	for p, times := range m.times {
		for want[p] < len(times) && times[want[p]].Before(at) {
			want[p]++
		}
		for _, x := range times {
			if d := x.Sub(at); d > -2*time.Millisecond && d < 2*time.Millisecond {
				t.Skip("times are exact to a millisecond")
			}
		}
		want[p] = max(want[p], floors[p])
	}
	err := g.group.SeekTime(t.Context(), at)
	if refused && errors.Is(err, penstock.ErrExists) {
		return
	}
	if err != nil {
		t.Fatalf("group %s: seek to %v: %v", g.name, at, err)
	}
	for p, to := range want {
		g.moved(p, to)
	}
	for p, s := range g.group.Stats().Partitions {
		if int(s.Committed) < want[p] { // more, when something was handled meanwhile
			t.Fatalf("group %s: partition %d is at %d, sought to %d", g.name, p, s.Committed, want[p])
		}
	}
}

// stopForGood stops a run and checks that nothing of the group works any more.
func (m *runModel) stopForGood(t *rapid.T) {
	g := m.pick(t, true)
	ctx, cancel := context.WithTimeout(t.Context(), rapid.SampledFrom([]time.Duration{time.Millisecond, time.Minute}).Draw(t, "limit"))
	defer cancel()
	report, err := g.group.Stop(ctx)
	if ran := g.run.wait(); (ran == nil) != (err == nil) {
		t.Fatalf("group %s: Stop returned %v, Run %v", g.name, err, ran)
	}
	if err != nil && !errors.As(err, new(*penstock.DrainError)) || (err == nil) != (report.Left() == 0) {
		t.Fatalf("group %s: Stop: %+v, %v", g.name, report, err)
	}
	g.run.cancel()
	g.run, g.stopped = nil, true
	wantErr(t, g.group.Run(t.Context(), g.handle), penstock.ErrClosed)
	wantErr(t, g.group.Resize(t.Context(), 1), penstock.ErrClosed)
	m.remove(t, g)
}
