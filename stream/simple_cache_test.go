package stream

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

func newCache(t testing.TB, capacity int) *SimpleCache {
	t.Helper()
	c, err := NewSimpleCache(capacity)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustAdd(t testing.TB, c Cache, batch ...Container) {
	t.Helper()
	if err := c.Add(batch); err != nil {
		t.Fatal(err)
	}
}

func cursorOf(t testing.TB, c Cache, stream string, at Position) Cursor {
	t.Helper()
	cur, err := c.Cursor(penstock.StreamID{Namespace: "n", Key: stream}, at)
	if err != nil {
		t.Fatal(err)
	}
	return cur
}

// drainCursor returns the tokens of all that the cursor has.
func drainCursor(t testing.TB, cur Cursor) string {
	t.Helper()
	var out []string
	for {
		c, ok, err := cur.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return strings.Join(out, " ")
		}
		out = append(out, fmt.Sprint(c.Token.Lo))
	}
}

func tokensOf(cs []Container) string {
	var out []string
	for _, c := range cs {
		out = append(out, fmt.Sprint(c.Token.Lo))
	}
	return strings.Join(out, " ")
}

func TestPressureAndMaxAdd_ORC78(t *testing.T) {
	c := newCache(t, 100)
	want(t, "max add of 100", c.MaxAdd(), 10)
	mustAdd(t, c, boxes("s", 1, 90)...)
	want(t, "pressure at 90", c.UnderPressure(), false)
	mustAdd(t, c, boxes("s", 91, 95)...)
	want(t, "pressure at 95", c.UnderPressure(), true)
	want(t, "max add of 4096", newCache(t, DefaultCapacity).MaxAdd(), 409)
	want(t, "max add of 5", newCache(t, 5).MaxAdd(), 1)
	if err := c.Add(boxes("s", 96, 101)); !errors.Is(err, penstock.ErrFull) {
		t.Errorf("add beyond the capacity: %v, want ErrFull", err)
	}
	want(t, "len after a refused add", c.Len(), 95)
	for _, n := range []int{0, -1} {
		if _, err := NewSimpleCache(n); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("capacity %d: %v, want ErrInvalid", n, err)
		}
	}
}

func TestPurgeStopsAtTheCursor_ORC79(t *testing.T) {
	c := newCache(t, 100)
	mustAdd(t, c, boxes("s", 1, 40)...)
	cur := cursorOf(t, c, "s", at(PositionAt, 5))
	want(t, "purged with a cursor in the oldest bucket", len(c.Purge()), 0)
	for range 20 {
		cur.Next()
	}
	var expected []string
	for i := 1; i <= 20; i++ {
		expected = append(expected, fmt.Sprint(i))
	}
	want(t, "purged", tokensOf(c.Purge()), strings.Join(expected, " "))
	want(t, "left", c.Len(), 20)
	want(t, "rest", len(strings.Fields(drainCursor(t, cur))), 16)
	want(t, "purged at the end", len(c.Purge()), 20)
	want(t, "left at the end", c.Len(), 0)
}

func TestFailedContainerIsPurgedSilently_ORC82(t *testing.T) {
	c := newCache(t, 100)
	mustAdd(t, c, boxes("s", 1, 10)...)
	cur := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	release := cur.Protect()
	for range 7 {
		cur.Next()
	}
	if err := cur.Fail(penstock.Token{Lo: 9}); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("failing a container that was not read: %v", err)
	}
	if err := cur.Fail(penstock.Token{Lo: 7, Index: 3}); err != nil {
		t.Error(err)
	}
	drainCursor(t, cur)
	want(t, "purged under protection", len(c.Purge()), 0)
	release()
	release()
	want(t, "purged", tokensOf(c.Purge()), "1 2 3 4 5 6 8 9 10")
	want(t, "left", c.Len(), 0)
}

func TestProtectionOutlivesTheCursor_OR121(t *testing.T) {
	c := newCache(t, 100)
	mustAdd(t, c, boxes("s", 1, 3)...)
	cur := cursorOf(t, c, "s", Position{Kind: PositionEarliest})
	release := cur.Protect()
	cur.Next()
	cur.Close()
	cur.Close()
	want(t, "purged", len(c.Purge()), 0)
	if _, _, err := cur.Next(); !errors.Is(err, penstock.ErrClosed) {
		t.Errorf("next of a closed cursor: %v", err)
	}
	release()
	want(t, "purged after release", len(c.Purge()), 3)
	want(t, "streams left", len(c.streams), 0)
}

func TestWhereCursorsOpen_ORC83(t *testing.T) {
	t.Run("empty", func(t *testing.T) {
		for _, p := range []Position{at(PositionAt, 0), at(PositionAt, 5), {Kind: PositionEarliest}} {
			c := newCache(t, 100)
			cur := cursorOf(t, c, "s", p)
			want(t, "at first", drainCursor(t, cur), "")
			mustAdd(t, c, boxes("s", 4, 6)...)
			expected := "4 5 6"
			if p.Token.Lo == 5 {
				expected = "5 6"
			}
			want(t, "then", drainCursor(t, cur), expected)
		}
	})
	t.Run("1 to 10", func(t *testing.T) {
		c := newCache(t, 100)
		mustAdd(t, c, boxes("s", 1, 10)...)
		want(t, "at 5", drainCursor(t, cursorOf(t, c, "s", at(PositionAt, 5))), "5 6 7 8 9 10")
		want(t, "after 5", drainCursor(t, cursorOf(t, c, "s", at(PositionAfter, 5))), "6 7 8 9 10")
		exact, beyond := cursorOf(t, c, "s", at(PositionAt, 11)), cursorOf(t, c, "s", at(PositionAt, 11))
		latest := cursorOf(t, c, "s", Position{Kind: PositionLatest})
		want(t, "at 11 before", drainCursor(t, exact), "")
		want(t, "latest before", drainCursor(t, latest), "")
		var miss *CacheMissError
		_, err := c.Cursor(boxOf("s", 0).Stream, at(PositionAt, 0))
		if !errors.As(err, &miss) || !errors.Is(err, ErrCacheMiss) ||
			miss.Requested.Lo != 0 || miss.Low.Lo != 1 || miss.High.Lo != 10 {
			t.Errorf("at 0: %v", err)
		}
		mustAdd(t, c, box("s", 12))
		want(t, "at 11 when 11 never comes", drainCursor(t, beyond), "12")
		want(t, "latest", drainCursor(t, latest), "12")
		if _, err := c.Cursor(boxOf("s", 0).Stream, Position{}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("no position: %v", err)
		}
	})
	t.Run("11 comes", func(t *testing.T) {
		c := newCache(t, 100)
		mustAdd(t, c, boxes("s", 1, 10)...)
		cur := cursorOf(t, c, "s", at(PositionAt, 11))
		mustAdd(t, c, box("s", 11))
		want(t, "at 11", drainCursor(t, cur), "11")
	})
	t.Run("gaps", func(t *testing.T) {
		c := newCache(t, 100)
		mustAdd(t, c, box("s", 2), box("s", 4), box("s", 6))
		want(t, "at 3", drainCursor(t, cursorOf(t, c, "s", at(PositionAt, 3))), "4 6")
	})
	t.Run("right behind what was purged", func(t *testing.T) {
		c := newCache(t, 10)
		mustAdd(t, c, box("s", 2), box("s", 4), box("s", 6))
		hold := cursorOf(t, c, "s", at(PositionAt, 6))
		c.Purge()
		want(t, "after 4", drainCursor(t, cursorOf(t, c, "s", at(PositionAfter, 4))), "6")
		want(t, "at 5", drainCursor(t, cursorOf(t, c, "s", at(PositionAt, 5))), "6")
		for _, p := range []Position{at(PositionAt, 4), at(PositionAfter, 3)} {
			if _, err := c.Cursor(boxOf("s", 0).Stream, p); !errors.Is(err, ErrCacheMiss) {
				t.Errorf("%v: %v, want a miss", p, err)
			}
		}
		hold.Close()
	})
}

func TestTwoStreamsInterleaved_ORC84(t *testing.T) {
	c := newCache(t, DefaultCapacity)
	var batch []Container
	for i := uint64(1); i <= 20; i++ {
		batch = append(batch, box([]string{"a", "b"}[i%2], i))
	}
	mustAdd(t, c, batch...)
	want(t, "b", drainCursor(t, cursorOf(t, c, "b", Position{Kind: PositionEarliest})), "1 3 5 7 9 11 13 15 17 19")
	want(t, "a from its fifth", drainCursor(t, cursorOf(t, c, "a", at(PositionAt, 10))), "10 12 14 16 18 20")
}

func TestTokensMustRise(t *testing.T) {
	c := newCache(t, 10)
	mustAdd(t, c, box("s", 5))
	for _, batch := range [][]Container{{box("s", 5)}, {box("s", 4)}, {box("s", 6), box("x", 6)}} {
		if err := c.Add(batch); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", tokensOf(batch), err)
		}
	}
	want(t, "len", c.Len(), 1)
	hi := box("s", 0)
	hi.Token.Hi = 1
	mustAdd(t, c, hi) // the high word comes first
}

// Cursors of a model see each container of their stream once and in order;
// nothing that a cursor has not passed is purged; purged containers come once
// and in order.
func TestSimpleCacheAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 60).Draw(t, "capacity")
		c, err := NewSimpleCache(capacity)
		if err != nil {
			t.Fatal(err)
		}
		type follower struct {
			cur     Cursor
			stream  string
			next    uint64 // lowest token it may still get
			release func()
			from    uint64 // lowest token under protection
		}
		var all []Container // everything ever added
		var purged uint64   // newest token purged
		var followers []*follower
		streams := []string{"a", "b", "c"}
		seq := uint64(0)
		pick := func() *follower {
			if len(followers) == 0 {
				t.Skip("no cursor")
			}
			return followers[rapid.IntRange(0, len(followers)-1).Draw(t, "cursor")]
		}
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
				n := min(rapid.IntRange(1, 10).Draw(t, "n"), capacity-c.Len())
				var batch []Container
				for range n {
					seq += rapid.Uint64Range(1, 3).Draw(t, "gap")
					batch = append(batch, box(rapid.SampledFrom(streams).Draw(t, "stream"), seq))
				}
				if err := c.Add(batch); err != nil {
					t.Fatal(err)
				}
				all = append(all, batch...)
				for _, f := range followers {
					f.cur.Refresh(penstock.Token{Lo: seq})
				}
			},
			"open": func(t *rapid.T) {
				f := &follower{stream: rapid.SampledFrom(streams).Draw(t, "stream")}
				p := Position{Kind: rapid.SampledFrom([]PositionKind{PositionEarliest, PositionLatest, PositionAt, PositionAfter}).Draw(t, "kind")}
				switch p.Kind {
				case PositionEarliest:
					f.next = purged + 1
				case PositionLatest:
					f.next = seq + 1
				default:
					p.Token.Lo = rapid.Uint64Range(0, seq+2).Draw(t, "token")
					f.next = p.Token.Lo
					if p.Kind == PositionAfter {
						f.next++
					}
				}
				cur, err := c.Cursor(box(f.stream, 0).Stream, p)
				if err != nil {
					if !errors.Is(err, ErrCacheMiss) || p.Kind == PositionLatest || p.Kind == PositionEarliest || f.next > purged && purged > 0 {
						t.Fatal(err)
					}
					return
				}
				f.cur, f.next = cur, max(f.next, purged+1)
				followers = append(followers, f)
			},
			"next": func(t *rapid.T) {
				f := pick()
				wantLo, wantOK := expected(f)
				if p, ok := f.cur.Peek(); ok != wantOK || p.Token.Lo != wantLo {
					t.Fatalf("peek %v %v, want %v %v", p.Token.Lo, ok, wantLo, wantOK)
				}
				got, ok, err := f.cur.Next()
				if err != nil || ok != wantOK || got.Token.Lo != wantLo {
					t.Fatalf("next %v %v %v, want %v %v", got.Token.Lo, ok, err, wantLo, wantOK)
				}
				if ok {
					f.next = got.Token.Lo + 1
				}
			},
			"protect": func(t *rapid.T) {
				f := pick()
				if f.release != nil {
					f.release()
					f.release = nil
					return
				}
				if lo, ok := expected(f); ok {
					f.release, f.from = f.cur.Protect(), lo
				}
			},
			"close": func(t *rapid.T) {
				f := pick()
				f.cur.Close()
				if f.release != nil {
					f.release()
				}
				followers = slices.DeleteFunc(followers, func(g *follower) bool { return g == f })
			},
			"purge": func(t *rapid.T) {
				before := c.Len()
				done := c.Purge()
				if c.Len() != before-len(done) {
					t.Fatalf("purged %d of %d, %d left", len(done), before, c.Len())
				}
				for _, b := range done {
					if b.Token.Lo <= purged {
						t.Fatalf("purged %d after %d", b.Token.Lo, purged)
					}
					purged = b.Token.Lo
				}
				for _, f := range followers {
					if lo, ok := expected(f); ok && lo <= purged {
						t.Fatalf("purged up to %d, a cursor stands at %d", purged, lo)
					}
					if f.release != nil && f.from <= purged {
						t.Fatalf("purged up to %d, protected from %d", purged, f.from)
					}
				}
			},
			"": func(t *rapid.T) {
				if c.Len() > capacity || c.UnderPressure() != (len(c.buckets) >= 10) {
					t.Fatalf("%d of %d containers", c.Len(), capacity)
				}
				n := 0
				for i, b := range c.buckets {
					n += len(b.items)
					if i < len(c.buckets)-1 && len(b.items) != c.size {
						t.Fatal("a bucket that is not the newest is not full")
					}
				}
				if n != c.Len() {
					t.Fatalf("buckets hold %d, Len %d", n, c.Len())
				}
			},
		})
	})
}
