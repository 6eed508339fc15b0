package bench

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// small runs a row fast: the shape is the same, the figures mean nothing.
func small(t *testing.T) Config {
	return Config{Rounds: 1, Dir: t.TempDir(), slice: time.Microsecond, limit: time.Minute, events: 640}
}

// TestEveryRowRuns runs each row at a small size, with all its checks.
func TestEveryRowRuns(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			c := small(t)
			switch {
			case strings.HasPrefix(name, "latency/"):
				c.events = 8
			case strings.HasPrefix(name, "queue/idle/"):
				c.events = 64
			}
			got, err := Run(t.Context(), []string{name}, c)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 {
				t.Fatalf("%d rows", len(got))
			}
			r := got[0]
			if r.Name != name || r.Baseline == "" || r.NsPerEvent <= 0 || r.BaselineNs <= 0 || r.Ratio <= 0 || r.EventsPerS <= 0 || r.AllocsPerEvent < 0 {
				t.Errorf("row %+v", got)
			}
			if latency := strings.HasPrefix(name, "latency/"); latency != (r.P50 > 0 && r.P99 >= r.P50 && r.P999 >= r.P99) {
				t.Errorf("percentiles %v %v %v", r.P50, r.P99, r.P999)
			}
			if left, err := os.ReadDir(c.Dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestQueueRowsCoverTheirVariants: each workload in 8 and 64 bytes, one and
// four partitions, one and four groups, and what holds of the rows besides.
func TestQueueRowsCoverTheirVariants(t *testing.T) {
	names := Names()
	for _, w := range strings.Fields("produce/single produce/batch consume/b1 consume/b10 consume/b100 consume/b1000 flow/b1 flow/b100 flow/b1000") {
		for _, size := range []string{"", "/64B"} {
			for _, s := range []string{"", "/p1", "/g4", "/p1/g4"} {
				if name := "queue/" + w + size + s; !slices.Contains(names, name) {
					t.Errorf("no row %s", name)
				}
			}
		}
	}
	for _, r := range rows {
		if len(r.text) < 20 || r.baseline == "" || r.events <= 0 || r.open == nil {
			t.Errorf("%s: incomplete", r.name)
		}
		if suffixed := strings.HasSuffix(r.name, "/64B") || strings.HasSuffix(r.name, "/p1") || strings.HasSuffix(r.name, "/g4"); suffixed && r.goal != (measure.Goal{}) {
			t.Errorf("%s: a demand is stated for the row without a suffix only", r.name)
		}
	}
}

// TestDemandsAreThoseStated holds what queue and stages are measured by.
func TestDemandsAreThoseStated(t *testing.T) {
	for name, want := range map[string]measure.Goal{
		"queue/produce/single": {Must: 1.5, Goal: 1.9}, "queue/produce/batch": {Must: 15, Goal: 20},
		"queue/produce/shared": {Goal: 1.5},
		"queue/consume/b1":     {Must: 3, Goal: 3.9}, "queue/consume/b10": {Goal: 20},
		"queue/consume/b100": {Must: 60, Goal: 69}, "queue/consume/b1000": {Must: 150, Goal: 200},
		"queue/flow/b1": {Must: 2.5, Goal: 3}, "queue/flow/4to1/b1": {Goal: 2},
		"stage/linear/batch": {Must: 0.55, Goal: 0.55}, "stage/linear/batch/min500": {Goal: 0.6},
		"stage/linear/event": {Must: 5, Goal: 5}, "stage/fused/event": {Must: 6, Goal: 6}, "stage/demand1": {Must: 0.6, Goal: 0.6},
		"stage/broadcast4": {Goal: 0.8}, "stage/broadcast4/min500": {Goal: 0.8},
		"stage/partition4": {Goal: 0.6}, "stage/partition4/min500": {Goal: 0.6},
	} {
		at := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if at < 0 || rows[at].goal != want {
			t.Errorf("%s: %d, want %v", name, at, want)
		}
	}
	for name, want := range map[string]map[string]float64{
		"queue/produce/single": {"mutex and slice": 1.1},
		"queue/produce/batch":  {"mutex and slice": 0.5},
		"queue/consume/b10":    {"mutex and slice": 1},
		"queue/consume/b100":   {"chan of recycled batches": 1.25},
		"queue/consume/b1000":  {"chan of recycled batches": 2},
		"queue/flow/b100":      {"mutex and swapped slices": 0.95},
		"queue/flow/b1000":     {"chan of recycled batches": 0.9},
		"queue/flow/4to1/b1":   {"mutex and swapped slices": 1},
		"queue/flow/4to4/b1":   {"mutex and swapped slices": 1.5},
		"stage/partition4":     {"chan per event": 3},
		"latency/queue/parked": {"parked chan, p99": 1 / 1.5, "parked chan, p99.9": 1 / 2.0},
	} {
		c := small(t)
		if strings.HasPrefix(name, "latency/") {
			c.events = 8
		}
		got, err := Run(t.Context(), []string{name}, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range got[0].Others {
			if o.Goal != want[o.Baseline] || (o.Goal > 0) != (o.Verdict != "") || o.Ratio <= 0 || o.BaselineNs <= 0 {
				t.Errorf("%s: %+v, want goal %v", name, o, want[o.Baseline])
			}
			delete(want, o.Baseline)
		}
		if len(want) > 0 {
			t.Errorf("%s: not compared with %v", name, want)
		}
	}
}

func TestSelectTakesPartsOfNames(t *testing.T) {
	flows := []string{"queue/flow/4to4/b1", "queue/flow/4to4/b100", "queue/flow/4to4/b1000"}
	for _, c := range []struct {
		patterns []string
		want     []string
	}{
		{[]string{"queue/flow/4to4"}, flows},
		{[]string{"queue/flow/4to4/b100", "queue/flow/4to4/"}, []string{flows[1], flows[0], flows[2]}},
		{[]string{"queue/flow/b100"}, []string{"queue/flow/b100"}}, // and not those with a suffix
		{[]string{"stage/demand1"}, []string{"stage/demand1"}},
		{nil, Names()},
	} {
		got, err := Select(c.patterns)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.patterns, got, err, c.want)
		}
	}
	got, err := Select([]string{"queue"})
	if err != nil || !slices.Contains(got, "latency/queue/parked") || slices.Contains(got, "stage/demand1") {
		t.Errorf("queue: %q, %v; want its rows and those of its latency", got, err)
	}
	for _, p := range []string{"nothing", "queue/flow/b", "queu", ""} {
		if _, err := Select([]string{p}); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), `"`+p+`"`) {
			t.Errorf("%q: %v, want ErrInvalid and the pattern", p, err)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	names := Names()
	slices.Sort(names)
	if n := len(slices.Compact(names)); n != len(rows) || n == 0 {
		t.Errorf("%d names of %d rows", n, len(rows))
	}
}

// TestRecordsFollowFromTheirNumber: they are copied out of a table, and what is
// read back is compared with the same function.
func TestRecordsFollowFromTheirNumber(t *testing.T) {
	for _, size := range []int{8, 9, 100, 264, 1024} {
		for _, number := range []int{0, 1, 247, 248, 255, 256, 1<<20 + 77} {
			rec := make([]byte, size)
			putRecord(rec, number)
			if got := numberOf(rec); got != number {
				t.Errorf("a record of %d bytes has the number %d, want %d", size, got, number)
			}
			for i := 8; i < size; i++ {
				if rec[i] != byte(number+i) {
					t.Fatalf("record %d of %d bytes: byte %d is %d, want %d", number, size, i, rec[i], byte(number+i))
				}
			}
		}
	}
}

func TestRunRefusesAndEnds(t *testing.T) {
	if _, err := Run(t.Context(), Names(), Config{Rounds: -1}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("negative rounds: %v", err)
	}
	if _, err := Run(t.Context(), []string{"queue"}, Config{}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("part of a name: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	c := small(t)
	seen := []string{}
	c.Progress = func(done, total int, row string) {
		if seen = append(seen, row); done == 1 {
			cancel(cause)
		}
	}
	got, err := Run(ctx, Names()[2:5], c)
	if len(got) != 1 || !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !strings.Contains(err.Error(), Names()[3]) {
		t.Errorf("%d rows, %v; want the first row and both causes", len(got), err)
	}
	if !slices.Equal(seen, Names()[2:4]) {
		t.Errorf("progress %q", seen)
	}
}

func TestRowThatFailsIsNamed(t *testing.T) {
	lost := errors.New("an event was lost")
	good := func(c *measure.Clock) error { c.Start(); c.Stop(1); return nil }
	bad := func(*measure.Clock) error { return lost }
	for name, p := range map[string]pair{
		"ours":     {ours: bad, base: good},
		"baseline": {ours: good, base: bad},
		"by hand":  {ours: good, base: good, also: []also{{name: "by hand", side: bad}}},
	} {
		closed := false
		p.close = func() error { closed = true; return nil }
		r := row{name: "x/y", open: func(env) (pair, error) { return p, nil }}
		if _, err := r.run(t.Context(), small(t)); !errors.Is(err, lost) || !closed || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, closed %v", name, err, closed)
		}
	}
}

// TestRowIsMadeOfItsRounds gives sides whose figures are known.
func TestRowIsMadeOfItsRounds(t *testing.T) {
	takes := func(ns int) side {
		return func(c *measure.Clock) error { c.Add(time.Duration(ns), 1); return nil }
	}
	r := row{
		name: "x/y", text: "text", baseline: "chan", goal: measure.Goal{Must: 2, Goal: 4}, steady: true, published: 7,
		open: func(env) (pair, error) {
			return pair{ours: takes(10), base: takes(30), also: []also{{"by hand", measure.Goal{Goal: 1}, takes(5)}}}, nil
		},
	}
	got, err := r.run(t.Context(), Config{Rounds: 7, limit: time.Minute, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	want := Row{
		Name: "x/y", NsPerEvent: 10, EventsPerS: 1e8, Baseline: "chan", BaselineNs: 30, Ratio: 3,
		Rounds: 7, NsMin: 10, NsMax: 10, BaselineNsMin: 30, BaselineNsMax: 30, RatioMin: 3, RatioMax: 3,
		Must: 2, Goal: 4, Verdict: measure.Enough, AllocsVerdict: measure.Met, Published: 7, Text: "text",
		Others: []measure.Comparison{{Baseline: "by hand", BaselineNs: 5, Ratio: 0.5, RatioMin: 0.5, RatioMax: 0.5, Goal: 1, Verdict: measure.Missed}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
}

// TestLatencyRowHoldsPercentiles: medians by round, tails of all rounds.
func TestLatencyRowHoldsPercentiles(t *testing.T) {
	waits := func(unit time.Duration) side {
		return func(c *measure.Clock) error {
			for i := range 1000 {
				c.Samples = append(c.Samples, time.Duration(1000-i)*unit)
			}
			c.Add(time.Millisecond, 1000)
			return nil
		}
	}
	r := row{name: "x/y", baseline: "chan", goal: measure.Goal{Goal: 0.5}, tail: [2]measure.Goal{{Goal: 2}, {Goal: 3}}, open: func(env) (pair, error) {
		return pair{ours: waits(1), base: waits(2)}, nil
	}}
	got, err := r.run(t.Context(), Config{Rounds: 1, slice: 1, limit: time.Minute, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got.P50 != 501 || got.P99 != 991 || got.P999 != 1000 || got.BaselineP99 != 1982 || got.NsPerEvent != 501 || got.BaselineNs != 1002 || got.Ratio != 2 || got.Verdict != measure.Met {
		t.Errorf("%+v", got)
	}
	if len(got.Others) != 2 || got.Others[0].Verdict != measure.Met || got.Others[1].Verdict != measure.Missed || got.Others[1].BaselineNs != 2000 {
		t.Errorf("%+v", got.Others)
	}
}

// TestQueueThatLosesEventsHasNoRow: the checks of the queue rows fail when the
// queue does not hand out what was produced.
func TestQueueThatLosesEventsHasNoRow(t *testing.T) {
	topic, groups, err := openTopic(layout{partitions, 1}, queue.Config[measure.Word]{}, queue.GroupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer topic.Close()
	consumer := groups[0].Consumer(0)
	events := measure.Numbered[measure.Word](40)
	for name, produced := range map[string][]measure.Word{
		"one lost":     slices.Delete(slices.Clone(events), 7, 8),
		"one repeated": append(slices.Clone(events), events[3]),
		"two swapped":  append([]measure.Word{{4}, {1}, {2}, {3}, {0}}, events[5:]...),
	} {
		if err := topic.Produce(t.Context(), produced...); err != nil {
			t.Fatal(err)
		}
		if err := pullAll(&measure.Clock{Every: true}, consumer, partitions, len(events)); err == nil {
			t.Errorf("%s: not noticed", name)
		}
		for {
			if _, ok, err := consumer.TryPull(1000); !ok || err != nil {
				break
			}
		}
	}
}
