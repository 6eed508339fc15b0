package segfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// TestPassKeepsWhatIsCompletedBehind: for every place in and around a word.
func TestPassKeepsWhatIsCompletedBehind(t *testing.T) {
	m := vfs.NewMem()
	l := openLog(t, small(m, "data"))
	p := l.Partition(0)
	for range 200 {
		mustAppend(t, p, "x")
	}
	done := func(at int) bool { return at%3 == 0 || at%64 == 63 }
	for to := range 200 {
		c, err := p.Cursor(fmt.Sprint("g", to), StartEarliest)
		must(t, err)
		words := make([]uint64, 3)
		for i := range 192 {
			if done(i+5) && i > 0 {
				words[i/64] |= 1 << (i % 64)
			}
		}
		must(t, c.Store(5, words, false))
		era := c.Era()
		passed, err := c.Pass(penstock.Offset(to), true)
		must(t, err)
		events := 0
		for at := 5; at < to; at++ {
			if at == 5 || at >= 5+192 || !done(at) {
				events++
			}
		}
		wantTo := penstock.Offset(max(5, to))
		if passed.From != 5 || passed.To != wantTo || passed.Events != uint64(events) || passed.Era != era+1 || c.Committed() != wantTo {
			t.Fatalf("pass to %d: %+v, committed %d; want %d events", to, passed, c.Committed(), events)
		}
		var bits [256]bool
		for i, w := range c.Completed() {
			for j := range 64 {
				bits[i*64+j] = w>>j&1 == 1
			}
		}
		for at := int(wantTo); at < 5+192; at++ {
			if got, want := bits[at-int(wantTo)], done(at) && at > 5; got != want {
				t.Fatalf("pass to %d: offset %d is completed: %t, want %t", to, at, got, want)
			}
		}
		must(t, c.StoreIn(era, 190, nil, true)) // of somebody who has not heard of it
		if c.Committed() != wantTo {
			t.Fatalf("pass to %d: a store of the era before moved it to %d", to, c.Committed())
		}
	}
}

// TestPositionBelowTheFirstEventIsToldOrRefused: what a trim leaves that waits
// for no group.
func TestPositionBelowTheFirstEventIsToldOrRefused(t *testing.T) {
	m := vfs.NewMem()
	c := small(m, "data")
	c.SegmentEvents = 2
	l := openLog(t, c)
	p := l.Partition(0)
	cs, err := l.Cursors("g", StartEarliest)
	must(t, err)
	for range 9 {
		mustAppend(t, p, "x")
	}
	must(t, cs[0].Store(1, []uint64{0b10}, true))
	must(t, p.Trim(6))
	must(t, l.Close())
	l = openLog(t, c)
	_, err = l.Cursors("g", StartEarliest)
	wantErr(t, err, penstock.ErrOffsetOutOfRange)
	must(t, l.Close())
	c.PassOver = true
	l = openLog(t, c)
	cs, err = l.Cursors("g", StartEarliest)
	must(t, err)
	passed, err := cs[0].Pass(l.Partition(0).Earliest(), true)
	must(t, err)
	if passed.From != 1 || passed.To != 6 || passed.Events != 4 || cs[0].Committed() != 6 {
		t.Fatalf("%+v, committed %d; want four of [1, 6)", passed, cs[0].Committed())
	}
	must(t, l.Close())
	c.PassOver = false
	l = openLog(t, c)
	_, err = l.Cursors("g", StartEarliest)
	must(t, err)
}

// TestBeyondCountsWholeSegments: by events, bytes and age, in one session and
// after it.
func TestBeyondCountsWholeSegments(t *testing.T) {
	m := vfs.NewMem()
	now := time.Unix(1_000_000, 0)
	s := fixed(1)
	s.now = func() time.Time { return now }
	c := small(m, "data")
	c.SegmentEvents = 2
	l, err := open(c, s)
	must(t, err)
	for range 9 {
		mustAppend(t, l.Partition(0), "x")
		now = now.Add(time.Minute)
	}
	for range 2 {
		p := l.Partition(0)
		must(t, p.LearnAges())
		segment := penstock.Bytes(p.segs[0].limit.Load())
		active := penstock.Bytes(p.segs[4].limit.Load())
		for _, w := range []struct {
			limits Limits
			first  penstock.Offset
		}{
			{Limits{}, 0}, {Limits{Events: 1}, 8}, {Limits{Events: 2}, 6}, {Limits{Events: 3}, 6}, {Limits{Events: 4}, 4}, {Limits{Events: 100}, 0},
			{Limits{Bytes: active}, 8}, {Limits{Bytes: active + 1}, 6}, {Limits{Bytes: active + segment}, 6}, {Limits{Bytes: active + segment + 1}, 4},
			// The segments were last written 8, 6, 4 and 2 minutes ago.
			{Limits{Age: 8 * time.Minute}, 0}, {Limits{Age: 8*time.Minute - 1}, 2}, {Limits{Age: 3 * time.Minute}, 6}, {Limits{Age: time.Minute}, 8},
			{Limits{Age: 3 * time.Minute, Events: 100}, 6}, {Limits{Age: time.Hour, Events: 3}, 6},
		} {
			if at := p.Beyond(w.limits); at != w.first {
				t.Errorf("%+v: kept from %d, want %d", w.limits, at, w.first)
			}
		}
		must(t, l.Close())
		l, err = open(c, s)
		must(t, err)
		defer l.Close()
	}
}

// limitsWorkload appends, and lets limits pass the group, seal and delete.
func limitsWorkload(t *testing.T, m *vfs.Mem, c Config, h *history, rounds int) {
	t.Helper()
	l, err := Open(c)
	must(t, err)
	p := l.Partition(0)
	cursors, err := l.Cursors("g", StartEarliest)
	must(t, err)
	for i := range rounds {
		batch := []string{fmt.Sprintf("%03d-%s", i, strings.Repeat("a", 900))}
		h.appended = append(h.appended, batch)
		mustAppend(t, p, batch...)
		h.acked = append(h.acked, m.Ops())
		if i%4 == 2 {
			must(t, p.SealOld(-time.Hour)) // everything is older
			to := p.Beyond(Limits{Events: 3})
			h.attempted = max(h.attempted, to)
			_, err := cursors[0].Pass(to, true)
			must(t, err)
			h.commits = append(h.commits, promise{m.Ops(), to})
			must(t, p.Trim(to))
		}
	}
	must(t, l.Close())
}

// TestLimitsLoseNothingElseByPowerLossAnywhere: a crash at every operation of
// sealing, passing and deleting, and a second one during what follows.
func TestLimitsLoseNothingElseByPowerLossAnywhere(t *testing.T) {
	for _, level := range []penstock.Durability{penstock.Synced, penstock.Written} {
		t.Run(level.String(), func(t *testing.T) {
			m := vfs.NewMem()
			c := small(m, "data")
			c.Durability, c.PassOver = level, true
			h := &history{}
			limitsWorkload(t, m, c, h, 12)
			every := 601
			if raceEnabled {
				every = 2001
			}
			crashEverywhere(t, m, c, h, func(n int) bool { return n%every == 0 })
		})
	}
}
