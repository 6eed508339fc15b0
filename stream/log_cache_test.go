package stream

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

func newLogCache(t testing.TB, c LogCacheConfig) *LogCache {
	t.Helper()
	l, err := NewLogCache(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// always lets every container go that nothing needs.
func always(CacheMeta, CacheMeta, time.Time) bool { return true }

func never(CacheMeta, CacheMeta, time.Time) bool { return false }

// evictOnly lets n containers go.
func evictOnly(n *int) Evictor {
	return func(CacheMeta, CacheMeta, time.Time) bool {
		*n--
		return *n >= 0
	}
}

func TestLogCacheConfigNamesTheBadField(t *testing.T) {
	for field, c := range map[string]LogCacheConfig{
		"MaxBytes": {MaxBytes: -1}, "MaxContainers": {MaxContainers: -1}, "MaxAdd": {MaxAdd: -1}, "Remember": {Remember: -1},
	} {
		var f *penstock.FieldError
		if _, err := NewLogCache(c); !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, m := range []PressureMonitor{nil, &SlowConsumer{Threshold: 7}, &Averaging{Threshold: -0.5}} {
		var f *penstock.FieldError
		if _, err := NewLogCache(LogCacheConfig{Monitors: []PressureMonitor{m}}); !errors.As(err, &f) || f.Field != "Monitors" {
			t.Errorf("monitor %+v: %v", m, err)
		}
	}
	want(t, "max add by default", newLogCache(t, LogCacheConfig{}).MaxAdd(), 1000)
}

// Two interleaved streams: chunks fill, drain and go while the counts stay
// exact, twice over the same cache.
func TestLogCacheCountsStayExact_ORC88(t *testing.T) {
	c := newLogCache(t, LogCacheConfig{Evict: always})
	goldenPath(t, c, 1)
}

func TestLogCacheDrainsAgain_ORC89(t *testing.T) {
	c := newLogCache(t, LogCacheConfig{Evict: always})
	goldenPath(t, c, goldenPath(t, c, 1))
	want(t, "bytes left", c.Bytes(), 0)
	want(t, "containers left", c.Len(), 0)
}

func goldenPath(t *testing.T, c *LogCache, next uint64) uint64 {
	t.Helper()
	a, b := cursorOf(t, c, "a", Position{Kind: PositionLatest}), cursorOf(t, c, "b", Position{Kind: PositionLatest})
	defer a.Close()
	defer b.Close()
	block := func(n int) {
		for range n {
			mustAdd(t, c, box([]string{"a", "b"}[next%2], next))
			next++
		}
	}
	count := func(cur Cursor) (n int) {
		cur.Refresh(penstock.Token{})
		for {
			if _, ok, err := cur.Next(); err != nil {
				t.Fatal(err)
			} else if !ok {
				return n
			}
			n++
		}
	}
	const blocks = 5
	block(blocks * itemsPerChunk)
	want(t, "a at first", count(a), blocks*itemsPerChunk/2)
	want(t, "b at first", count(b), blocks*itemsPerChunk/2)
	for range 2 * blocks {
		block(itemsPerChunk)
		want(t, "a", count(a), itemsPerChunk/2)
		want(t, "b", count(b), itemsPerChunk/2)
		want(t, "dropped", len(c.Purge()) > 0, true)
		want(t, "left", c.Len(), 0)
	}
	return next
}

// A container larger than the bound is taken in alone, so that the queue does
// not stop for ever, and leaves no bytes behind.
func TestOversizedContainerLeavesNoBytes_ORC91(t *testing.T) {
	c := newLogCache(t, LogCacheConfig{MaxBytes: 10_000, Evict: never})
	for i := range uint64(5) {
		big := boxOf("s", 2*i+1, string(make([]byte, 20_000)))
		mustAdd(t, c, big)
		if err := c.Add([]Container{box("s", 2*i+2)}); !errors.Is(err, penstock.ErrFull) {
			t.Errorf("add to a full cache: %v, want ErrFull", err)
		}
		want(t, "max add when full", c.MaxAdd(), 0)
		want(t, "pressure when full", c.UnderPressure(), true)
		want(t, "dropped", len(c.Purge()), 1)
		want(t, "bytes", c.Bytes(), 0)
	}
	want(t, "chunks", len(c.chunks), 1)
}

func TestIdleCursorSurvivesEviction_ORC92(t *testing.T) {
	for _, foreign := range []uint64{0, 6} {
		n := 0
		c := newLogCache(t, LogCacheConfig{Evict: evictOnly(&n)})
		mustAdd(t, c, box("s", 1))
		cur := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
		want(t, "first", drainCursor(t, cur), "1")
		n = 1
		want(t, "evicted", tokensOf(c.Purge()), "1")
		for i := range foreign {
			mustAdd(t, c, box("foreign", 2+i))
		}
		mustAdd(t, c, box("s", 10))
		want(t, "then", drainCursor(t, cur), "10")
	}
}

func TestUnreadContainerIsAMiss_ORC94(t *testing.T) {
	n := 0
	c := newLogCache(t, LogCacheConfig{Evict: evictOnly(&n), EvictUnderCursors: true})
	mustAdd(t, c, box("s", 1), box("foreign", 2))
	cur := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	want(t, "first", drainCursor(t, cur), "1")
	mustAdd(t, c, box("s", 3))
	mustAdd(t, c, boxes("foreign", 4, 23)...)
	n = 3
	c.Purge()
	mustAdd(t, c, box("s", 24))
	if p, more := cur.Peek(); !more || p.HasBefore {
		t.Errorf("peek at what is lost: %v, %v; want something without a place", p, more)
	}
	var miss *CacheMissError
	if _, ok, err := cur.Next(); ok || !errors.As(err, &miss) || miss.Requested.Lo != 1 || miss.Low.Lo != 24 {
		t.Errorf("next: %v, %v; want a miss behind 1", ok, err)
	}
}

// What goes under a cursor is not delivered, nor is what comes behind it; it
// is counted, and the cursor says so.
func TestEvictedUnderCursorIsNotReported_OR126(t *testing.T) {
	n := 0
	c := newLogCache(t, LogCacheConfig{Evict: evictOnly(&n), EvictUnderCursors: true})
	mustAdd(t, c, boxes("s", 1, 3)...)
	mustAdd(t, c, box("x", 4))
	slow := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	quick := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	want(t, "quick", drainCursor(t, quick), "1 2 3")
	n = 2
	want(t, "reported", tokensOf(c.Purge()), "")
	want(t, "counted", c.Evicted(), 2)
	if _, _, err := slow.Next(); !errors.Is(err, ErrCacheMiss) {
		t.Errorf("slow cursor: %v, want a miss", err)
	}
	slow.Close()
	n = 2
	want(t, "reported when the slow one has gone", tokensOf(c.Purge()), "3 4")
}

func TestLiveCursorKeepsContainers(t *testing.T) {
	c := newLogCache(t, LogCacheConfig{MaxContainers: 8, Evict: always})
	mustAdd(t, c, boxes("s", 1, 8)...)
	slow := cursorOf(t, c, "s", at(PositionAt, 3))
	want(t, "dropped", tokensOf(c.Purge()), "1 2")
	mustAdd(t, c, boxes("s", 9, 10)...)
	want(t, "dropped when full", tokensOf(c.Purge()), "")
	want(t, "max add", c.MaxAdd(), 0)
	want(t, "the rest", drainCursor(t, slow), "3 4 5 6 7 8 9 10")
	want(t, "dropped behind it", len(c.Purge()), 8)
}

// A full cache makes room although the evictor would keep everything.
func TestFullCacheMakesRoom(t *testing.T) {
	c := newLogCache(t, LogCacheConfig{MaxContainers: 80, Evict: never})
	mustAdd(t, c, boxes("s", 1, 79)...)
	want(t, "dropped with room", len(c.Purge()), 0)
	mustAdd(t, c, box("s", 80))
	want(t, "dropped when full", len(c.Purge()), 10)
	want(t, "then", len(c.Purge()), 0)
	small := newLogCache(t, LogCacheConfig{MaxBytes: 64 << 10, Evict: never})
	for i := uint64(1); !small.UnderPressure(); i++ {
		mustAdd(t, small, boxOf("s", i, string(make([]byte, 1000))))
		if n := small.MaxAdd(); n > 0 && int64(n)*1200+small.Bytes() > 70<<10 {
			t.Fatalf("max add %d at %d bytes", n, small.Bytes())
		}
	}
	want(t, "bytes when full", small.Bytes() < 66<<10, true)
	small.Purge()
	want(t, "bytes after", small.Bytes() <= 56<<10, true)
}

func TestIdleCursorStartsAtTheRefresh_ORC95(t *testing.T) {
	n := 0
	c := newLogCache(t, LogCacheConfig{Evict: evictOnly(&n), Remember: 1})
	mustAdd(t, c, box("s", 1))
	cur := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	want(t, "first", drainCursor(t, cur), "1")
	n = 1
	c.Purge()
	mustAdd(t, c, box("s", 2))
	cur.Refresh(penstock.Token{Lo: 2})
	want(t, "then", drainCursor(t, cur), "2")
}

// A position below what was dropped is no miss when nothing of its stream was
// dropped behind it, for as long as that is remembered.
func TestDroppedStreamIsRemembered_OR125(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c := newLogCache(t, LogCacheConfig{Evict: evictOnly(&n)})
		mustAdd(t, c, box("s", 1), box("x", 2), box("x", 3))
		n = 3
		c.Purge()
		s := box("s", 0).Stream
		for _, p := range []Position{at(PositionAfter, 1), at(PositionAt, 2)} {
			cur, err := c.Cursor(s, p)
			if err != nil {
				t.Fatalf("%s: %v", p, err)
			}
			cur.Close()
		}
		for _, p := range []Position{at(PositionAt, 1), at(PositionAfter, 0)} {
			if _, err := c.Cursor(s, p); !errors.Is(err, ErrCacheMiss) {
				t.Errorf("%s: %v, want a miss", p, err)
			}
		}
		time.Sleep(10*time.Minute + 1)
		c.Purge()
		if _, err := c.Cursor(s, at(PositionAfter, 1)); !errors.Is(err, ErrCacheMiss) {
			t.Errorf("when it is forgotten: %v, want a miss", err)
		}
		want(t, "streams kept", len(c.streams), 0)
	})
}

func TestMemoryOfStreamsIsBounded(t *testing.T) {
	c := newLogCache(t, LogCacheConfig{Evict: always})
	for i := range uint64(maxRemembered + 100) {
		mustAdd(t, c, box(fmt.Sprint(i), i+1))
		c.Purge()
	}
	c.Purge()
	want(t, "remembered", len(c.streams), maxRemembered)
}

// Comparison looks at all 64 bits and then at nothing else: a container has
// index 0.
func TestLogCacheComparesWholeTokens_ORC98(t *testing.T) {
	for _, gap := range []uint64{1<<31 + 1, 1 << 32} {
		c := newLogCache(t, LogCacheConfig{})
		mustAdd(t, c, box("s", 100), box("s", 100+gap))
		want(t, "after 100", drainCursor(t, cursorOf(t, c, "s", at(PositionAfter, 100))), fmt.Sprint(100+gap))
		want(t, "after both", drainCursor(t, cursorOf(t, c, "s", at(PositionAfter, 100+gap))), "")
		if err := c.Add([]Container{box("s", 101)}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("a token between them: %v, want ErrInvalid", err)
		}
	}
	if (penstock.Token{Lo: 5, Index: 1}).Compare(penstock.Token{Lo: 5, Index: 2}) >= 0 {
		t.Error("an index does not count")
	}
}

func TestEvictByAgeNeedsBothAges_ORC101(t *testing.T) {
	start := time.Unix(1000, 0)
	evict := EvictByAge(time.Minute, time.Hour)
	for _, c := range []struct {
		cached, age time.Duration
		want        bool
	}{
		{time.Minute + 1, time.Hour + 1, true},
		{time.Minute, time.Hour + 1, false},
		{time.Minute + 1, time.Hour, false},
		{time.Hour, 0, false},
		{0, 2 * time.Hour, false},
	} {
		oldest := CacheMeta{Cached: start.Add(-c.cached), Time: start}
		newest := CacheMeta{Cached: start, Time: start.Add(c.age)}
		if got := evict(oldest, newest, start); got != c.want {
			t.Errorf("cached for %v, older by %v: %v", c.cached, c.age, got)
		}
	}
	if !evict(CacheMeta{Cached: start}, CacheMeta{Cached: start.Add(2 * time.Hour)}, start.Add(2*time.Hour)) {
		t.Error("without times of the queue, those of the cache count")
	}
}

type fixedPressure bool

func (fixedPressure) Read(float64, time.Time)        {}
func (f fixedPressure) UnderPressure(time.Time) bool { return bool(f) }

func TestNothingIsDroppedUnderPressure_ORC102(t *testing.T) {
	for _, s := range []struct {
		pressure bool
		evict    Evictor
		left     int
	}{{true, always, 100}, {false, never, 100}, {false, always, 0}} {
		c := newLogCache(t, LogCacheConfig{Evict: s.evict, Monitors: []PressureMonitor{fixedPressure(false), fixedPressure(s.pressure)}})
		if s.pressure {
			c.config.Monitors = nil // filled before it begins
			mustAdd(t, c, boxes("s", 1, 100)...)
			c.config.Monitors = []PressureMonitor{fixedPressure(true), fixedPressure(false)}
			want(t, "max add under pressure", c.MaxAdd(), 0)
		} else {
			mustAdd(t, c, boxes("s", 1, 100)...)
		}
		c.Purge()
		want(t, "left", c.Len(), s.left)
	}
}

func TestAveragingMonitor_OR131(t *testing.T) {
	now := time.Unix(0, 0)
	var a Averaging
	step := func(want bool, lags ...float64) {
		t.Helper()
		for _, l := range lags {
			a.Read(l, now)
		}
		now = now.Add(2 * time.Second)
		if got := a.UnderPressure(now); got != want {
			t.Errorf("after %v: %v", lags, got)
		}
	}
	step(false, 0.1, 0.1, 0.1, 0.1)
	step(true, 0.1, 0.1, 0.6) // (0.1 + 0.1 + 3*0.6) / 5
	step(true)
	a.Read(0, now)
	if !a.UnderPressure(now.Add(2*time.Second - 1)) {
		t.Error("judged before the time")
	}
	step(false)
	step(true, 1)
	for range emptyChecks - 1 {
		step(true)
	}
	step(false)
}

func TestSlowConsumerMonitor_OR131(t *testing.T) {
	now := time.Unix(0, 0)
	var s SlowConsumer
	s.Read(0.5, now)
	want(t, "at the threshold", s.UnderPressure(now), false)
	s.Read(0.51, now)
	s.Read(0.1, now)
	want(t, "in the window", s.UnderPressure(now.Add(time.Minute-1)), true)
	want(t, "behind it", s.UnderPressure(now.Add(time.Minute)), false)
}

// A lag counts only when the cache holds ten times what is read at once.
func TestLagNeedsASpan_OR131(t *testing.T) {
	slow := &SlowConsumer{}
	c := newLogCache(t, LogCacheConfig{MaxAdd: 10, Evict: never, Monitors: []PressureMonitor{slow}})
	for i := uint64(1); i <= 90; i += 10 {
		mustAdd(t, c, boxes("s", i, i+9)...)
	}
	cur := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	cur.Next()
	want(t, "with a short span", c.UnderPressure(), false)
	mustAdd(t, c, boxes("s", 91, 100)...)
	cur.Next()
	want(t, "with a long one", c.UnderPressure(), true)
	want(t, "max add", c.MaxAdd(), 0)
}

// Against a model, with and without eviction under cursors: a cursor gets each
// container of its stream once and in order, or a miss and then nothing; what
// is reported as delivered was passed by every cursor of its stream.
func TestLogCacheAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 0
		forced := rapid.Bool().Draw(t, "evict under cursors")
		limit := rapid.IntRange(1, 60).Draw(t, "containers")
		c, err := NewLogCache(LogCacheConfig{MaxContainers: limit, Evict: evictOnly(&n), EvictUnderCursors: forced})
		if err != nil {
			t.Fatal(err)
		}
		type follower struct {
			cur    Cursor
			stream string
			next   uint64
		}
		var all []Container
		var dropped, seq uint64
		var followers []*follower
		streams := []string{"a", "b", "c"}
		expected := func(f *follower) (uint64, bool) {
			for _, b := range all {
				if b.Stream.Key == f.stream && b.Token.Lo >= f.next {
					return b.Token.Lo, true
				}
			}
			return 0, false
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := min(rapid.IntRange(1, 10).Draw(t, "n"), c.MaxAdd())
				var batch []Container
				for range k {
					seq += rapid.Uint64Range(1, 3).Draw(t, "gap")
					batch = append(batch, box(rapid.SampledFrom(streams).Draw(t, "stream"), seq))
				}
				if err := c.Add(batch); err != nil && len(batch) > 0 {
					t.Fatal(err)
				}
				all = append(all, batch...)
				for _, f := range followers {
					f.cur.Refresh(penstock.Token{Lo: seq})
				}
			},
			"open": func(t *rapid.T) {
				f := &follower{stream: rapid.SampledFrom(streams).Draw(t, "stream")}
				p := Position{Kind: rapid.SampledFrom([]PositionKind{PositionEarliest, PositionLatest, PositionAt}).Draw(t, "kind")}
				switch p.Kind {
				case PositionEarliest:
					f.next = dropped + 1
				case PositionLatest:
					f.next = seq + 1
				default:
					p.Token.Lo = rapid.Uint64Range(0, seq+2).Draw(t, "token")
					f.next = p.Token.Lo
				}
				cur, err := c.Cursor(box(f.stream, 0).Stream, p)
				lo, ok := expected(f)
				switch {
				case err == nil && ok && lo <= dropped:
					t.Fatalf("%s opened although %d was dropped", p, lo)
				case err != nil && p.Kind != PositionAt:
					t.Fatal(err)
				case err == nil:
					f.cur = cur
					followers = append(followers, f)
				}
			},
			"next": func(t *rapid.T) {
				if len(followers) == 0 {
					t.Skip("no cursor")
				}
				f := followers[rapid.IntRange(0, len(followers)-1).Draw(t, "cursor")]
				lo, ok := expected(f)
				got, gotOK, err := f.cur.Next()
				switch lost := ok && lo <= dropped; {
				case lost && (!forced || !errors.Is(err, ErrCacheMiss)):
					t.Fatalf("%d was dropped; next: %v %v %v", lo, got.Token.Lo, gotOK, err)
				case !lost && (err != nil || gotOK != ok || got.Token.Lo != lo):
					t.Fatalf("next: %v %v %v, want %v %v", got.Token.Lo, gotOK, err, lo, ok)
				case !lost && ok:
					f.next = lo + 1
				}
			},
			"close": func(t *rapid.T) {
				if len(followers) == 0 {
					t.Skip("no cursor")
				}
				i := rapid.IntRange(0, len(followers)-1).Draw(t, "cursor")
				followers[i].cur.Close()
				followers = slices.Delete(followers, i, i+1)
			},
			"purge": func(t *rapid.T) {
				n = rapid.IntRange(0, 20).Draw(t, "evict")
				before := c.Len()
				done := c.Purge()
				gone := before - c.Len()
				for _, b := range done {
					for _, f := range followers {
						if f.stream == b.Stream.Key && b.Token.Lo >= f.next {
							t.Fatalf("%d reported as delivered, a cursor waits for %d", b.Token.Lo, f.next)
						}
					}
				}
				held := false
				for range gone {
					i := slices.IndexFunc(all, func(b Container) bool { return b.Token.Lo > dropped })
					dropped = all[i].Token.Lo
					for _, f := range followers {
						held = held || f.stream == all[i].Stream.Key && dropped >= f.next
					}
				}
				if held && !forced {
					t.Fatalf("dropped up to %d although a cursor needs it", dropped)
				}
			},
			"": func(t *rapid.T) {
				var bytes int64
				for i := range all {
					if all[i].Token.Lo > dropped {
						bytes += footprint(&all[i])
					}
				}
				if c.Len() > limit || c.Bytes() != bytes {
					t.Fatalf("%d of %d containers, %d bytes, want %d", c.Len(), limit, c.Bytes(), bytes)
				}
			},
		})
	})
}
