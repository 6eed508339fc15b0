package judge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// play feeds a history, one step per line, to a new ledger of groups a and b:
//
//	sent ID KEY | ack ID... | GROUP ID... | dead GROUP ID... | lag GROUP N | crash
func play(t *testing.T, history string) *Ledger {
	t.Helper()
	l := NewLedger("a", "b")
	for line := range strings.Lines(history) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "sent":
			key, _ := l.KeyNumber(strings.Join(f[2:], ""))
			l.Sent(id(t, f[1]), key)
		case "ack":
			each(t, f[1:], l.Acked)
		case "dead":
			each(t, f[2:], func(i ID) { l.Dead(f[1], i) })
		case "lag":
			l.Lag(f[1], uint64(id(t, f[2])))
		case "crash":
			l.Crash()
		default:
			each(t, f[1:], func(i ID) { l.Handled(f[0], i) })
		}
	}
	return l
}

func id(t *testing.T, s string) ID {
	t.Helper()
	var n ID
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatalf("history: %q: %v", s, err)
	}
	return n
}

func each(t *testing.T, words []string, f func(ID)) {
	t.Helper()
	for _, w := range words {
		f(id(t, w))
	}
}

func TestJudgeAcceptsGoodHistories(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		history string
		crashes int
		want    map[string]Group
	}{
		"every event handled once by each group": {
			history: `
				sent 0 k
				sent 1 k
				ack 0 1
				a 0 1
				b 0 1`,
			want: map[string]Group{"a": {Delivered: 2, Distinct: 2}, "b": {Delivered: 2, Distinct: 2}},
		},
		"handled before the acknowledgement arrived": {
			history: `
				sent 0 k
				a 0
				b 0
				ack 0`,
			want: map[string]Group{"a": {Delivered: 1, Distinct: 1}, "b": {Delivered: 1, Distinct: 1}},
		},
		"a crash repeats a suffix, in order": {
			history: `
				sent 0 k
				sent 1 k
				sent 2 k
				ack 0 1 2
				a 0 1
				crash
				a 0 1 2
				b 0 1 2`,
			crashes: 1,
			want: map[string]Group{
				"a": {Delivered: 5, Distinct: 3, Duplicates: 2}, "b": {Delivered: 3, Distinct: 3}},
		},
		"a repeat of an older event after a newer one is a duplicate, no violation": {
			history: `
				sent 0 k
				sent 1 k
				ack 0 1
				a 0 1 0 1
				b 0 1`,
			want: map[string]Group{
				"a": {Delivered: 4, Distinct: 2, Duplicates: 2}, "b": {Delivered: 2, Distinct: 2}},
		},
		"keys overtake each other freely": {
			history: `
				sent 0 k
				sent 1 other
				ack 1 0
				a 1 0
				b 0 1`,
			want: map[string]Group{"a": {Delivered: 2, Distinct: 2}, "b": {Delivered: 2, Distinct: 2}},
		},
		"events without a key have no order": {
			history: `
				sent 0
				sent 1
				ack 1 0
				a 1 0
				b 0 1`,
			want: map[string]Group{"a": {Delivered: 2, Distinct: 2}, "b": {Delivered: 2, Distinct: 2}},
		},
		"a dead letter settles the event and lets newer ones pass": {
			history: `
				sent 0 k
				sent 1 k
				ack 0 1
				a 1
				dead a 0
				dead a 0
				b 0 1`,
			want: map[string]Group{"a": {Delivered: 1, Distinct: 1, Dead: 1}, "b": {Delivered: 2, Distinct: 2}},
		},
		"handled after a crash repeated it although it was dead before: handled counts": {
			history: `
				sent 0 k
				ack 0
				dead a 0
				crash
				a 0
				b 0`,
			crashes: 1,
			want:    map[string]Group{"a": {Delivered: 1, Distinct: 1}, "b": {Delivered: 1, Distinct: 1}},
		},
		"a request is repeated until it is answered": {
			history: `
				sent 0 k
				crash
				sent 0 k
				ack 0
				ack 0
				a 0 0
				b 0`,
			crashes: 1,
			want: map[string]Group{
				"a": {Delivered: 2, Distinct: 1, Duplicates: 1}, "b": {Delivered: 1, Distinct: 1}},
		},
		"the greatest lag is kept": {
			history: `
				sent 0 k
				ack 0
				lag a 7
				lag a 3
				a 0
				b 0`,
			want: map[string]Group{"a": {Delivered: 1, Distinct: 1, MaxLag: 7}, "b": {Delivered: 1, Distinct: 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := play(t, tc.history).Verdict()
			if faults := v.Faults(tc.crashes); faults != nil {
				t.Errorf("a good history was found bad: %q", faults)
			}
			if !maps.Equal(v.Groups, tc.want) {
				t.Errorf("groups are\n%+v, want\n%+v", v.Groups, tc.want)
			}
		})
	}
}

func TestJudgeRejectsBadHistories(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		history string
		crashes int
		want    []string // each a part of one fault, in order
	}{
		"nothing happened": {want: []string{"nothing was produced"}},
		"an acknowledged event reached one group only": {
			history: "sent 0 k\nack 0\na 0",
			want:    []string{"group b lost 1"},
		},
		"an event was never acknowledged": {
			history: "sent 0 k\nsent 1 k\nack 0\na 0\nb 0",
			want:    []string{"1 events were sent and never acknowledged"},
		},
		"first deliveries of one key swapped": {
			history: "sent 0 k\nsent 1 k\nack 0 1\na 1 0\nb 0 1",
			want:    []string{"group a got 1 events after a newer one"},
		},
		"first deliveries of one key swapped across a crash": {
			history: "sent 0 k\nsent 1 k\nsent 2 k\nack 0 1 2\na 0 2\ncrash\na 0 1 2\nb 0 1 2",
			crashes: 1,
			want:    []string{"group a got 1 events after a newer one"},
		},
		"a report of an event that was never sent": {
			history: "sent 0 k\nack 0\na 0 5\nb 0",
			want:    []string{"1 reports name an event that was never sent"},
		},
		"a dead letter of an event that was never sent": {
			history: "sent 0 k\nack 0\na 0\nb 0\ndead a 9",
			want:    []string{"1 reports name"},
		},
		"a report for a group that does not exist": {
			history: "sent 0 k\nack 0\na 0\nb 0\nc 0",
			want:    []string{"1 reports name"},
		},
		"an acknowledgement of an event that was never sent": {
			history: "sent 0 k\nack 0 1\na 0\nb 0",
			want:    []string{"1 reports name"},
		},
		"too few crashes": {
			history: "sent 0 k\nack 0\na 0\nb 0\ncrash",
			crashes: 2,
			want:    []string{"1 crashes happened, 2 were asked for"},
		},
		"too many crashes": {
			history: "sent 0 k\nack 0\na 0\nb 0\ncrash",
			want:    []string{"1 crashes happened, 0 were asked for"},
		},
		"the driver let one key overtake itself": {
			history: "sent 0 k\nsent 1 k\nack 1 0\na 0 1\nb 0 1",
			want:    []string{"the driver itself is at fault"},
		},
		"only a dead letter for one group, lost for the other": {
			history: "sent 0 k\nack 0\ndead a 0",
			want:    []string{"group b lost 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := play(t, tc.history).Verdict().Faults(tc.crashes)
			ok := slices.EqualFunc(faults, tc.want, strings.Contains)
			if !ok {
				t.Errorf("faults are %q, want parts %q", faults, tc.want)
			}
		})
	}
}

func TestUnacknowledgedEventThatArrivedIsNotLost(t *testing.T) {
	t.Parallel()
	v := play(t, "sent 0 k\nsent 1 k\nack 0\na 0 1\nb 0").Verdict()
	if v.Unknown != 1 || v.Groups["a"].Lost != 0 || v.Groups["b"].Lost != 0 {
		t.Errorf("verdict is %+v; want one unknown, nothing lost", v)
	}
}

func TestOpenCountsAcrossPages(t *testing.T) {
	t.Parallel()
	l := NewLedger("a")
	const n = 3*pageBits + 77
	for i := range ID(n) {
		l.Sent(i, NoKey)
		l.Acked(i)
		if i%3 != 0 {
			l.Handled("a", i)
		}
	}
	l.Dead("a", 0)
	l.Dead("a", 1) // handled: not dead
	want := uint64((n+2)/3 - 1)
	if got := l.Open("a"); got != want {
		t.Errorf("Open = %d, want %d", got, want)
	}
	handled, dead := l.Settled("a")
	if handled != n-(n+2)/3 || dead != 1 {
		t.Errorf("Settled = %d, %d", handled, dead)
	}
}

func TestKeyNumbersAreBounded(t *testing.T) {
	t.Parallel()
	l := NewLedger("a")
	if l.keysMax != MaxKeys {
		t.Errorf("the bound is %d", l.keysMax)
	}
	l.keysMax = 100
	for i := range l.keysMax {
		if _, ok := l.KeyNumber(fmt.Sprint(i)); !ok {
			t.Fatalf("key %d was refused", i)
		}
	}
	if _, ok := l.KeyNumber("one more"); ok {
		t.Error("a key above the limit was numbered")
	}
	if n, ok := l.KeyNumber("7"); !ok || n != 8 {
		t.Errorf("a known key got %d, %v", n, ok)
	}
}

func TestEventAboveTheLimitPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	NewLedger("a").Sent(MaxEvents, NoKey)
}

func BenchmarkLedgerHandled(b *testing.B) {
	l := NewLedger("a")
	for i := range ID(1 << 20) {
		l.Sent(i, uint32(i%1000+1))
	}
	i := ID(0)
	b.ReportAllocs()
	for b.Loop() {
		l.Handled("a", i%(1<<20))
		i++
	}
}
