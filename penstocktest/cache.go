package penstocktest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// Cache checks the contracts of [stream.Cache] and [stream.Cursor]. open
// returns an empty cache with room for at least 100 containers.
func Cache(t *testing.T, open func(t *testing.T) stream.Cache) {
	for _, s := range []struct {
		name string
		test func(t *testing.T, c cacheRun)
	}{
		{"CursorsSeeTheirStreamInOrder", cursorsSeeTheirStream},
		{"PositionsMeanTheSame", positionsMeanTheSame},
		{"PurgeSparesWhatIsNeeded", purgeSpares},
		{"FailedIsNotReported", failedIsNotReported},
		{"AddIsAllOrNothing", addIsAllOrNothing},
		{"LostPositionIsAMiss", lostPosition},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(t, cacheRun{t, open(t)}) })
	}
}

type cacheRun struct {
	t *testing.T
	stream.Cache
}

func at(kind stream.PositionKind, seq uint64) stream.Position {
	return stream.Position{Kind: kind, Token: penstock.Token{Lo: seq}}
}

func numbered(s string, seq uint64) stream.Container {
	c := container(penstock.StreamID{Namespace: "suite", Key: s}, fmt.Sprint(seq))
	c.Token.Lo = seq
	return c
}

func (c cacheRun) add(s string, from, to uint64) {
	c.t.Helper()
	for i := from; i <= to; i++ {
		if err := c.Add([]stream.Container{numbered(s, i)}); err != nil {
			c.t.Fatalf("Add: %v", err)
		}
	}
}

func (c cacheRun) cursor(s string, p stream.Position) stream.Cursor {
	c.t.Helper()
	cur, err := c.Cursor(penstock.StreamID{Namespace: "suite", Key: s}, p)
	if err != nil {
		c.t.Fatalf("Cursor at %s: %v", p, err)
	}
	return cur
}

// rest reads a cursor to its end, and checks Peek on the way.
func (c cacheRun) rest(cur stream.Cursor) string {
	c.t.Helper()
	var got []stream.Container
	for {
		p, more := cur.Peek()
		next, ok, err := cur.Next()
		if err != nil || ok != more || ok && next.Token != p.Token {
			c.t.Fatalf("Next: %s, %v, %v after Peek: %s, %v", next.Token, ok, err, p.Token, more)
		}
		if !ok {
			return values(got)
		}
		got = append(got, next)
	}
}

func (c cacheRun) want(what, got, want string) {
	c.t.Helper()
	if got != want {
		c.t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func cursorsSeeTheirStream(_ *testing.T, c cacheRun) {
	a := c.cursor("a", stream.Position{Kind: stream.PositionEarliest})
	c.want("empty", c.rest(a), "")
	for i := uint64(1); i <= 9; i += 3 {
		c.add("a", i, i)
		c.add("b", i+1, i+2)
	}
	a.Refresh(penstock.Token{Lo: 1})
	c.want("a", c.rest(a), "1 4 7")
	b := c.cursor("b", stream.Position{Kind: stream.PositionEarliest})
	p, _ := b.Peek()
	if !p.HasBefore || p.Before.Lo != 1 {
		c.t.Errorf("before the first of b: %s, %v; want the container of a before it", p.Before, p.HasBefore)
	}
	c.want("b", c.rest(b), "2 3 5 6 8 9")
	c.add("a", 10, 11)
	a.Refresh(penstock.Token{Lo: 10})
	c.want("a later", c.rest(a), "10 11")
	a.Close()
	if _, ok, err := a.Next(); ok || !errors.Is(err, penstock.ErrClosed) {
		c.t.Errorf("Next after Close: %v, %v; want ErrClosed", ok, err)
	}
}

func positionsMeanTheSame(_ *testing.T, c cacheRun) {
	hold := c.cursor("a", stream.Position{Kind: stream.PositionEarliest})
	c.add("a", 2, 2)
	c.add("a", 4, 4)
	c.add("a", 6, 6)
	hold.Refresh(penstock.Token{Lo: 2})
	late := map[string]stream.Cursor{}
	for _, p := range []struct {
		at   stream.Position
		want string
	}{
		{stream.Position{Kind: stream.PositionEarliest}, "2 4 6 9"},
		{stream.Position{Kind: stream.PositionLatest}, "9"},
		{at(stream.PositionAt, 4), "4 6 9"},
		{at(stream.PositionAt, 3), "4 6 9"},
		{at(stream.PositionAfter, 4), "6 9"},
		{at(stream.PositionAfter, 6), "9"},
		{at(stream.PositionAt, 8), "9"},
		{at(stream.PositionAt, 9), "9"},
	} {
		late[p.at.String()+" = "+p.want] = c.cursor("a", p.at)
	}
	c.add("a", 9, 9)
	for name, cur := range late {
		cur.Refresh(penstock.Token{Lo: 9})
		_, want, _ := strings.Cut(name, " = ")
		c.want(name, c.rest(cur), want)
	}
	if _, err := c.Cursor(penstock.StreamID{Namespace: "suite", Key: "a"}, stream.Position{}); !errors.Is(err, penstock.ErrInvalid) {
		c.t.Errorf("PositionNone: %v, want ErrInvalid", err)
	}
}

func purgeSpares(_ *testing.T, c cacheRun) {
	slow := c.cursor("a", stream.Position{Kind: stream.PositionEarliest})
	c.add("a", 1, 100)
	slow.Refresh(penstock.Token{Lo: 1})
	for next := uint64(1); next <= 100; next++ {
		for _, gone := range c.Purge() {
			if gone.Token.Lo >= next {
				c.t.Fatalf("purged %d, a cursor stands at %d", gone.Token.Lo, next)
			}
		}
		release := slow.Protect()
		got, ok, err := slow.Next()
		if err != nil || !ok || got.Token.Lo != next {
			c.t.Fatalf("Next: %s, %v, %v; want %d", got.Token, ok, err, next)
		}
		for _, gone := range c.Purge() {
			if gone.Token.Lo >= next {
				c.t.Fatalf("purged %d, protected from %d on", gone.Token.Lo, next)
			}
		}
		release()
	}
	slow.Close()
	c.Purge()
	if c.Len() != 0 {
		c.t.Errorf("%d containers left that nobody needs", c.Len())
	}
}

func failedIsNotReported(_ *testing.T, c cacheRun) {
	cur := c.cursor("a", stream.Position{Kind: stream.PositionEarliest})
	c.add("a", 1, 3)
	cur.Refresh(penstock.Token{Lo: 1})
	release := cur.Protect()
	c.rest(cur)
	if err := cur.Fail(penstock.Token{Lo: 2}); err != nil {
		c.t.Errorf("Fail: %v", err)
	}
	if err := cur.Fail(penstock.Token{Lo: 7}); err == nil {
		c.t.Error("failing a container that was not read is no error")
	}
	release()
	c.want("reported", values(c.Purge()), "1 3")
}

func addIsAllOrNothing(_ *testing.T, c cacheRun) {
	c.add("a", 5, 5)
	if err := c.Add([]stream.Container{numbered("a", 6), numbered("b", 6)}); !errors.Is(err, penstock.ErrInvalid) {
		c.t.Errorf("tokens that do not rise: %v, want ErrInvalid", err)
	}
	if c.Len() != 1 {
		c.t.Errorf("%d containers after a refused Add, want 1", c.Len())
	}
	c.add("a", 6, 6)
	if n := c.MaxAdd(); n < -1 {
		c.t.Errorf("MaxAdd is %d", n)
	}
}

func lostPosition(_ *testing.T, c cacheRun) {
	c.add("a", 3, 5)
	_, err := c.Cursor(penstock.StreamID{Namespace: "suite", Key: "a"}, at(stream.PositionAt, 1))
	var miss *stream.CacheMissError
	if !errors.As(err, &miss) || !errors.Is(err, stream.ErrCacheMiss) {
		c.t.Fatalf("a position that was never kept: %v, want a *CacheMissError", err)
	}
	if miss.Requested.Lo != 1 || miss.Low.Lo != 3 || miss.High.Lo != 5 {
		c.t.Errorf("%v; want 1 requested, 3 to 5 kept", miss)
	}
}
