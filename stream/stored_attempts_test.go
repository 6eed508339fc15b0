package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
)

// diskOfTried is a store of one subscription whose process may end before a write.
type diskOfTried struct {
	held map[penstock.Token]tried
	left int // writes until the process ends
}

var errEnded = errors.New("the process has ended")

func (s *diskOfTried) store(_ context.Context, x tried) error {
	if s.left--; s.left < 0 {
		return errEnded
	}
	if s.held[x.first] = x; x.n == 0 {
		delete(s.held, x.first)
	}
	return nil
}

func (s *diskOfTried) list() (out []tried) {
	for _, x := range s.held {
		out = append(out, x)
	}
	return out
}

// numbers is what a list says of each event.
func numbers(list []tried) map[uint32]int {
	out := map[uint32]int{}
	for _, x := range list {
		for i := x.first.Index; i < x.end.Index; i++ {
			out[i] = max(out[i], x.n)
		}
	}
	return out
}

// Whatever is attempted and answered, and wherever the process ends, the store
// says of each event at least what was known before or after the write under way, and
// what is loaded is in order.
func TestEntriesOutliveAnEndBetweenTwoWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := &diskOfTried{held: map[penstock.Token]tried{}}
		e, most := &entries{}, entriesMax
		part := func(label string, from, to uint32, open bool) (out []tried) {
			for at := from; at < to; {
				n := rapid.Uint32Range(1, to-at).Draw(t, label+" events")
				if rapid.Bool().Draw(t, label) {
					out = append(out, tried{penstock.Token{Index: at}, penstock.Token{Index: at + n}, rapid.IntRange(1, 5).Draw(t, "number"), open})
				}
				at += n
			}
			return out
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			from := rapid.Uint32Range(0, 30).Draw(t, "from")
			to := from + rapid.Uint32Range(1, 12).Draw(t, "events")
			before := numbers(e.held)
			pruned := false
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				events := part("offered", from, to, true)
				if len(events) == 0 {
					continue
				}
				e.begin(events)
				most = entriesMax
				for _, x := range e.held {
					offered := slices.ContainsFunc(events, func(o tried) bool { return o.first.Compare(x.end) < 0 && x.first.Compare(o.end) < 0 })
					room := len(e.held)+2*len(events) <= entriesMax && len(events) <= offeredMax // one may make two of another
					if x.open && !offered && room && !slices.Contains(e.next.list, x) {
						t.Fatalf("lost %v, which is not offered: offered %v, held %v, planned %v", x, events, e.held, e.next.list)
					}
				}
				pruned = true
			case 1:
				put := []tried{{first: penstock.Token{Index: from}, end: penstock.Token{Index: to}}}
				e.settle(put, part("failed", from, to, false))
				most = entriesMax
			default:
				e.next.list = append(e.next.list[:0], e.held...)
			}
			after := numbers(e.next.list)
			disk.left = rapid.IntRange(0, 6).Draw(t, "writes")
			if err := e.write(t.Context(), disk.store); err != nil { // the next process
				e, most = &entries{}, loadedMax
				e.loaded(disk.list())
				for i, n := range numbers(e.held) {
					if n > max(before[i], after[i]) {
						t.Fatalf("event %d has %d attempts; %d before, %d after", i, n, before[i], after[i])
					}
				}
				got := numbers(e.next.list)
				for i := range uint32(64) {
					if got[i] < min(before[i], after[i]) {
						t.Fatalf("event %d has %d attempts; %d before, %d after", i, got[i], before[i], after[i])
					}
				}
				disk.left = 100
				if err := e.write(t.Context(), disk.store); err != nil {
					t.Fatal(err)
				}
			} else if got := numbers(disk.list()); !pruned && fmt.Sprint(got) != fmt.Sprint(after) {
				t.Fatalf("stored %v, want %v", got, after)
			}
			if len(e.held) > most || len(disk.held) != len(e.held) {
				t.Fatalf("%d entries, %d in the store, at most %d", len(e.held), len(disk.held), most)
			}
			for i, x := range e.held {
				if disk.held[x.first] != x || x.first.Compare(x.end) >= 0 || i > 0 && e.held[i-1].end.Compare(x.first) > 0 {
					t.Fatalf("holds %v, the store %v", e.held, disk.held)
				}
			}
		}
	})
}

// What a change leaves in the store when the process ends within it is more than
// a subscription has entries; none of these makes room for the others when they are
// loaded.
func TestEntriesLeftByAnEndWithinAChangeAllCount(t *testing.T) {
	at := func(i int) penstock.Token { return penstock.Token{Index: uint32(i)} }
	one := func(first, end, n int) tried { return tried{at(first), at(end), n, false} }
	full := func() (e *entries, disk *diskOfTried) {
		e, disk = &entries{}, &diskOfTried{held: map[penstock.Token]tried{}}
		for i := range entriesMax {
			e.held = append(e.held, one(10*i, 10*i+5, 2))
			disk.held[at(10*i)] = e.held[i]
		}
		return e, disk
	}
	for _, c := range []struct {
		name   string
		change func(e *entries)
		lost   map[uint32]bool // by the change itself
	}{
		{"the front of one is settled", func(e *entries) { e.settle([]tried{one(50, 55, 2)}, []tried{one(53, 55, 2)}) }, map[uint32]bool{50: true, 51: true, 52: true}},
		{"one more fails", func(e *entries) { e.settle([]tried{one(7, 8, 1)}, []tried{one(7, 8, 1)}) }, map[uint32]bool{0: true, 1: true, 2: true, 3: true, 4: true}},
		{"eight fail within eight", func(e *entries) {
			var put []tried
			for i := range offeredMax {
				put = append(put, one(10*i+2, 10*i+3, 3))
			}
			e.settle(put, put)
		}, nil},
	} {
		for ends := 0; ; ends++ {
			e, disk := full()
			before := numbers(e.held)
			c.change(e)
			after := numbers(e.next.list)
			disk.left = ends
			err := e.write(t.Context(), disk.store)
			next := &entries{}
			next.loaded(disk.list())
			got := numbers(next.next.list)
			for i, n := range before {
				if want := min(n, after[i]); got[i] < want {
					t.Errorf("%s, and the process ends after %d writes: event %d has %d attempts, want %d", c.name, ends, i, got[i], want)
				}
				if c.lost != nil && (after[i] == 0) != c.lost[i] {
					t.Errorf("%s: event %d has %d attempts after", c.name, i, after[i])
				}
			}
			if len(next.next.list) > loadedMax {
				t.Errorf("%s: %d entries, at most %d", c.name, len(next.next.list), loadedMax)
			}
			if err == nil {
				break
			}
		}
	}
}

// What makes room is removed before something is written, so that a store has no
// more entries than it must.
func TestEntriesMakeRoomBeforeTheyAreWritten(t *testing.T) {
	at := func(i int) penstock.Token { return penstock.Token{Index: uint32(i)} }
	e := &entries{}
	for i := range entriesMax {
		e.held = append(e.held, tried{at(i), at(i + 1), 1, false})
	}
	e.begin([]tried{{at(entriesMax - 1), at(entriesMax + 1), 2, true}})
	var writes []string
	if err := e.write(t.Context(), func(_ context.Context, x tried) error {
		writes = append(writes, fmt.Sprintf("%d:%d", x.first.Index, x.n))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want(t, "writes", strings.Join(writes, " "), "0:0 1:0 2:0 3:0 4:0 5:0 6:0 7:0 8:0 9:0 10:0 11:0 12:0 13:0 14:0 15:2")
}

// A subscription has a bounded number of entries: those that say least make room,
// and never those of the attempt under way.
func TestEntriesOfASubscriptionAreBounded(t *testing.T) {
	at := func(i uint32) penstock.Token { return penstock.Token{Index: i} }
	one := func(i uint32, n int, open bool) tried { return tried{at(i), at(i + 1), n, open} }
	e := &entries{}
	for i := range uint32(entriesMax) {
		e.held = append(e.held, one(2*i, 2, i != 5))
	}
	e.begin([]tried{one(3, 1, true)})
	if slices.Contains(e.next.list, one(10, 2, false)) || !slices.Contains(e.next.list, one(3, 1, true)) || len(e.next.list) != entriesMax {
		t.Errorf("held %v, want the answered one to make room", e.next.list)
	}
	var many []tried
	for i := range uint32(2 * offeredMax) {
		many = append(many, one(100+2*i, int(i)+1, true))
	}
	e = &entries{}
	e.begin(many)
	if len(e.next.list) != 1 || e.next.list[0] != (tried{at(100), at(131), 16, true}) {
		t.Errorf("held %v, want one range with the highest number", e.next.list)
	}
}

// An event whose wait for its turn is cut was not offered: its attempts stay as
// they were, and it stays one during which a process has ended.
func TestCutWaitForTheTurnIsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := make(suspects, 1)
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts, c.suspects, c.maxAttempts = store, turn, 2 })
		c := g.subscribe("s", "sub")
		subs, err := g.registry.Subscriptions(t.Context(), g.qualified("s"))
		if err != nil {
			t.Fatal(err)
		}
		suspect := openAt(subs[0], 1, 1)
		store.held[nameOf(&suspect)] = suspect
		turn <- struct{}{} // another one has the turn
		for range 2 {
			g.start()
			g.feed(boxes("s", 1, 1)...)
			g.pump()
			want(t, "offered while another has the turn", c.tries(), "")
			cut, cancel := context.WithCancel(context.Background())
			cancel()
			var drain *penstock.DrainError
			if err := g.agent.stop(cut); !errors.As(err, &drain) || drain.Left != 1 {
				t.Errorf("stop: %v, want one event left", err)
			}
		}
		<-turn
		g.start()
		g.feed(boxes("s", 1, 1)...)
		g.pump()
		time.Sleep(time.Second)
		want(t, "offered", c.tries(), "1:2")
		want(t, "stored", store.words(), "1-1:2? 1-1:0")
		want(t, "given up", len(g.failed()), 0)
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a group has settled leaves the store, so that it is not counted with the
// events of the group that failed.
func TestSettledPartOfAGroupLeavesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := holding()
		g := newRig(t, func(_ *rig, c *agentConfig) { c.attempts = store })
		c := g.subscribe("s", "sub")
		var held []string
		c.onDeliver = func(n int, d *Delivery) (Answer, error) {
			held = append(held, store.events())
			switch n {
			case 1: // 2 and 4 of 0 to 4 fail
				return Answer{Failed: []ItemFailure{{Index: 2, Err: errBoom}, {Index: 4, Err: errBoom}}}, nil
			case 2:
				return Answer{Failed: []ItemFailure{{Index: 1, Err: errBoom}}}, nil
			case 3: // names what was not offered: all of it failed
				return Answer{Failed: []ItemFailure{{Index: 7, Err: errBoom}}}, nil
			}
			return Answer{}, nil
		}
		g.start()
		g.feed(boxOf("s", 1, "a", "b", "c", "d", "e"))
		g.pump()
		time.Sleep(time.Second)
		synctest.Wait()
		want(t, "held during each attempt", strings.Join(held, ", "), "0-5:1?, 2-3:2? 4-5:2?, 4-5:3?, 4-5:4?")
		want(t, "held at the end", store.left(), "")
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	})
}

// events returns what is held, by index.
func (s *spyAttempts) events() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, a := range s.held {
		out = append(out, fmt.Sprintf("%d-%d:%d%s", a.First.Index, a.End.Index, a.N, map[bool]string{true: "?"}[a.Open]))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
