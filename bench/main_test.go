package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/internal/measure"
)

func TestMain(m *testing.M) { leak.Main(m) }

// small runs a workload fast: the figures mean nothing.
func small(names ...string) options {
	return options{json: true, rounds: 1, slice: time.Microsecond, events: 640, limit: time.Minute, names: names}
}

// TestEveryPeerDoesEveryWorkload runs all pairs with all their checks, and
// holds which peers are in which workload.
func TestEveryPeerDoesEveryWorkload(t *testing.T) {
	all := []string{"penstock"}
	for _, p := range peers {
		all = append(all, p.name)
	}
	without := func(names ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(names, n) })
	}
	for name, want := range map[string][]string{
		"produce":   without(recycled.name, eventBus.name),
		"consume":   without(recycled.name, eventBus.name, goChannel.name),
		"flow/b1":   without(recycled.name),
		"flow/b100": {"penstock", swapped.name, recycled.name, workiva.name, goChannel.name},
		"fanout4":   without(recycled.name),
		"keyed":     without(recycled.name),

		"pipeline/event":         {"penstock", "chan", "conc/stream", "ro"},
		"log/append/b1":          {"penstock", "tidwall/wal"},
		"log/append/b100":        {"penstock", "tidwall/wal"},
		"log/append/synced/b1":   {"penstock", "tidwall/wal", "hashicorp/raft-wal"},
		"log/append/synced/b100": {"penstock", "tidwall/wal", "hashicorp/raft-wal"},
		"log/read":               {"penstock", "tidwall/wal", "hashicorp/raft-wal"},

		"pipeline/b250": {"penstock", "chan of fresh batches", "chan of recycled batches", "conc/stream", "ro"},
	} {
		t.Run(name, func(t *testing.T) {
			if i := slices.IndexFunc(logs, func(p peer) bool { return p.name == "JetStream" }); i >= 0 && strings.HasPrefix(name, "log/") {
				want = append(want, logs[i].name)
			}
			var out, progress bytes.Buffer
			if err := run(t.Context(), small(name), &out, &progress); err != nil {
				t.Fatal(err)
			}
			var rows []measure.PeerRow
			d := json.NewDecoder(&out)
			d.DisallowUnknownFields()
			if err := d.Decode(&rows); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range rows {
				got = append(got, r.Peer)
				if r.Workload != name || r.NsPerEvent <= 0 || r.Ratio <= 0 || r.PenstockNs <= 0 || r.Rounds != 1 || r.Machine == nil || r.Date == "" || r.AllocsPerEvent < 0 {
					t.Errorf("%+v", r)
				}
				if r.Peer != "penstock" && r.Lacks == "" {
					t.Errorf("%s: it is not said what it does not do", r.Peer)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("peers %q\nwant  %q", got, want)
			}
		})
	}
}

// lossy is a channel whose consumer sees something else than was produced.
func lossy(change func(vs []int) []int) peer {
	return peer{name: "lossy", open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		var held []int
		return &conn{
			produce: func(events []int) error { held = change(slices.Clone(events)); return nil },
			consume: []func(*order, int) error{func(k *order, _ int) error {
				for _, v := range held {
					k.see(v)
				}
				return nil
			}},
		}, nil
	}}
}

func TestAPeerThatLosesEventsFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(vs []int) []int
		fine   bool
	}{
		"nothing":    {func(vs []int) []int { return vs }, true},
		"one lost":   {func(vs []int) []int { return slices.Delete(vs, 5, 6) }, false},
		"last lost":  {func(vs []int) []int { return vs[:len(vs)-1] }, false},
		"one twice":  {func(vs []int) []int { return slices.Insert(vs, 5, 5) }, false},
		"one for it": {func(vs []int) []int { vs[5] = vs[6]; return vs }, false},
		"swapped":    {func(vs []int) []int { vs[5], vs[6] = vs[6], vs[5]; return vs }, false},
	} {
		w := workloads[0]
		rows, err := w.measure(t.Context(), options{rounds: 1, slice: 1, events: 64, limit: time.Minute}, []peer{lossy(c.change)})
		if c.fine != (err == nil) || c.fine != (len(rows) == 2) || err != nil && !strings.Contains(err.Error(), "lossy") {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
	}
}

// TestOrderFindsEveryFault: events 0 to 9 at one consumer.
func TestOrderFindsEveryFault(t *testing.T) {
	for name, c := range map[string]struct {
		batches [][]int
		how     arrival
		timed   bool // found without looking at every event
		fine    bool
	}{
		"none":              {[][]int{{0, 1, 2}, {3}, {4, 5, 6, 7, 8, 9}}, inSequence, true, true},
		"one lost":          {[][]int{{0, 1, 2}, {4, 5, 6, 7, 8, 9}}, inSequence, true, false},
		"last lost":         {[][]int{{0, 1, 2}, {3, 4, 5, 6, 7, 8}}, inSequence, true, false},
		"one twice":         {[][]int{{0, 1, 2}, {2, 3}, {4, 5, 6, 7, 8, 9}}, inSequence, true, false},
		"swapped batches":   {[][]int{{3}, {0, 1, 2}, {4, 5, 6, 7, 8, 9}}, inSequence, true, false},
		"wrong inside":      {[][]int{{0, 1, 1, 3}, {4, 5, 6, 7, 8, 9}}, inSequence, false, false},
		"ascending":         {[][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}, ascending, true, true},
		"descending":        {[][]int{{0, 1, 2, 3, 5, 4, 6, 7, 8, 9}}, ascending, false, false},
		"any order":         {[][]int{{9}, {0, 1, 2}, {3, 4, 5, 6, 7, 8}}, inAnyOrder, true, true},
		"any order, twice":  {[][]int{{9}, {0, 1, 2}, {3, 4, 5, 6, 7}, {9}}, inAnyOrder, true, false},
		"any order, a pair": {[][]int{{9}, {0, 2, 2, 2}, {4, 5, 6, 7, 8}}, inAnyOrder, false, false}, // the sum is right
	} {
		for _, every := range []bool{true, false} {
			bySee, byRun := newOrder(c.how, every, 10), newOrder(c.how, every, 10)
			for _, b := range c.batches {
				for _, v := range b {
					bySee.see(v)
				}
				byRun.run(b)
			}
			if found := together(10, byRun) != nil; found != (!c.fine && (every || c.timed)) {
				t.Errorf("%s, every %v, in batches: %v", name, every, byRun.err)
			}
			if found := together(10, bySee) != nil; every && found == c.fine {
				t.Errorf("%s, one by one: %v", name, bySee.err)
			}
		}
	}
	if together(3, &order{count: 2, sum: 1}, &order{count: 1, sum: 2}) != nil || together(3, &order{count: 2, sum: 1}) == nil {
		t.Error("together")
	}
}

func TestRatiosAreAgainstPenstockOfTheSameRound(t *testing.T) {
	w := workload{name: "w", goals: map[string]float64{"chan": 3}}
	got := w.row(channel, measure.Series{Ns: []float64{30, 300, 33}, Allocs: 2}, measure.Series{Ns: []float64{10, 100, 10}})
	if got.Ratio != 3 || got.RatioMin != 3 || got.RatioMax != 3.3 || got.NsPerEvent != 33 || got.PenstockNs != 10 || got.AllocsPerEvent != 2 || got.Verdict != measure.Met || got.Goal != 3 {
		t.Errorf("%+v", got)
	}
}

// TestPeersOfTheGoalsExist: a goal for a peer of another name would never be
// judged.
func TestPeersOfTheGoalsExist(t *testing.T) {
	for _, w := range workloads {
		for name := range w.goals {
			if !slices.ContainsFunc(slices.Concat(peers, logs), func(p peer) bool { return p.name == name }) {
				t.Errorf("%s: there is no peer %q", w.name, name)
			}
		}
	}
	if n := len(slices.DeleteFunc(slices.Clone(peers), func(p peer) bool { return p.module == "" })); n < 6 {
		t.Errorf("%d peers", n)
	}
}

func TestWrongArgumentsAreNamed(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), small("flow"), &out, &out); err == nil || !strings.Contains(err.Error(), `"flow"`) || out.Len() > 0 {
		t.Errorf("%v, %q", err, out.String())
	}
	o := small()
	if o.rounds = -1; run(t.Context(), o, &out, &out) == nil {
		t.Error("negative rounds")
	}
}

func TestFailureKeepsTheRowsBeforeIt(t *testing.T) {
	bad := peer{name: "bad", open: func(int, int, int) (*conn, error) { return nil, errors.New("out of order") }}
	rows, err := workloads[0].measure(t.Context(), options{rounds: 1, slice: 1, events: 64, limit: time.Minute}, []peer{bad})
	if err == nil || !strings.Contains(err.Error(), "bad") || rows != nil {
		t.Errorf("%v, %v", rows, err)
	}
}

func TestTableShowsEveryRow(t *testing.T) {
	var out bytes.Buffer
	o := small("flow/b100")
	o.json = false
	if err := run(t.Context(), o, &out, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"penstock", swapped.name, recycled.name, workiva.name, goChannel.name, "0.95", "above 1 means that penstock is faster"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
