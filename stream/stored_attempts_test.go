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
		e := &entries{}
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
				for _, x := range e.held {
					offered := slices.ContainsFunc(events, func(o tried) bool { return o.first.Compare(x.end) < 0 && x.first.Compare(o.end) < 0 })
					room := len(e.held)+len(events) <= entriesMax && len(events) <= offeredMax
					if x.open && !offered && room && !slices.Contains(e.next.list, x) {
						t.Fatalf("lost %v, which is not offered: offered %v, held %v, planned %v", x, events, e.held, e.next.list)
					}
				}
				pruned = true
			case 1:
				put := []tried{{first: penstock.Token{Index: from}, end: penstock.Token{Index: to}}}
				e.settle(put, part("failed", from, to, false))
			default:
				e.next.list = append(e.next.list[:0], e.held...)
			}
			after := numbers(e.next.list)
			disk.left = rapid.IntRange(0, 6).Draw(t, "writes")
			if err := e.write(t.Context(), disk.store); err != nil { // the next process
				e = &entries{}
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
			if len(e.held) > entriesMax || len(disk.held) != len(e.held) {
				t.Fatalf("%d entries, %d in the store, at most %d", len(e.held), len(disk.held), entriesMax)
			}
			for i, x := range e.held {
				if disk.held[x.first] != x || x.first.Compare(x.end) >= 0 || i > 0 && e.held[i-1].end.Compare(x.first) > 0 {
					t.Fatalf("holds %v, the store %v", e.held, disk.held)
				}
			}
		}
	})
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
