package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/tools/internal/repo"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestFileIsWhatItsFiguresMake: docs/bench.md is generated, and nobody edited it
// since.
func TestFileIsWhatItsFiguresMake(t *testing.T) {
	r, err := repo.Find(".")
	if err != nil {
		t.Fatal(err)
	}
	want, err := generate(filepath.Join(r.Root, "docs", "bench"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(r.Root, "docs", "bench.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")), want) {
		t.Error("docs/bench.md is not what docs/bench/*.json make: run go -C tools run ./cmd/benchdoc")
	}
	for _, line := range []string{"cores", "bin/penstock bench queue --json", "## Lost", "latency/queue/parked", "watermill GoChannel", "stage/broadcast4/64B", "## Stages", "pipeline/event", "conc/stream", "## The log on disk", "`log/append/written/100B/single`", "## Streams", "`stream/"} {
		if !bytes.Contains(want, []byte(line)) {
			t.Errorf("no %q in the file", line)
		}
	}
}

// TestFiguresAreOfFullRuns: what is committed was measured as the file says.
func TestFiguresAreOfFullRuns(t *testing.T) {
	r, err := repo.Find(".")
	if err != nil {
		t.Fatal(err)
	}
	var rows []measure.Row
	var peers []measure.PeerRow
	dir := filepath.Join(r.Root, "docs", "bench")
	for _, name := range areas {
		var some []measure.Row
		if err := read(filepath.Join(dir, name+".json"), &some); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, some...)
	}
	if err := read(filepath.Join(dir, "peers.json"), &peers); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Rounds < 7 || r.Machine == nil || r.Date == "" || r.Text == "" {
			t.Errorf("%s: %d rounds, machine %v, date %q", r.Name, r.Rounds, r.Machine, r.Date)
		}
	}
	for _, r := range peers {
		if r.Rounds < 7 || r.Machine == nil || r.Date == "" {
			t.Errorf("%s %s: %d rounds, machine %v, date %q", r.Workload, r.Peer, r.Rounds, r.Machine, r.Date)
		}
	}
}

var machine = &measure.Machine{CPU: "Some CPU", Cores: 2, Procs: 2, OS: "linux", Arch: "amd64", Go: "go1.26"}

func sample() ([]measure.Row, []measure.PeerRow) {
	won := measure.Row{Name: "queue/produce/single", NsPerEvent: 7, Baseline: "chan", BaselineNs: 14, Ratio: 2, RatioMin: 1.9, RatioMax: 2.1, Text: "Singles.", Machine: machine, Date: "2026-11-29", Rounds: 7, AllocsVerdict: measure.Met}
	won.Judged(measure.Goal{Must: 1.5, Goal: 1.9})
	won.Others = []measure.Comparison{{Baseline: "mutex and slice", BaselineNs: 3.5, Ratio: 0.5, RatioMin: 0.4, RatioMax: 0.6, Goal: 1.1, Verdict: measure.Missed}}
	short := measure.Row{Name: "queue/consume/b1", NsPerEvent: 5, Baseline: "chan", BaselineNs: 15, Ratio: 3.14, Text: "Pulls.", Machine: machine, Date: "2026-11-29", Rounds: 7, AllocsPerEvent: 1.5, AllocsVerdict: measure.Missed}
	short.Judged(measure.Goal{Must: 3, Goal: 3.9})
	wide := measure.Row{Name: "queue/produce/single/64B/g4", NsPerEvent: 9, Baseline: "chan", BaselineNs: 36, Ratio: 4, Text: "Wide.", Machine: machine, Date: "2026-11-29", Rounds: 7}
	late := measure.Row{
		Name: "latency/queue/parked", Baseline: "parked chan", NsPerEvent: 2000, BaselineNs: 1000, P50: 2000, P99: 9000, P999: 20000, Ratio: 0.5,
		Text: "Paced.", Machine: machine, Date: "2026-11-29", Rounds: 7, Goal: 0.67, Verdict: measure.Missed,
		Others: []measure.Comparison{{Baseline: "parked chan, p99", BaselineNs: 18000, Ratio: 2, Goal: 0.67, Verdict: measure.Met}, {Baseline: "parked chan, p99.9", BaselineNs: 40000, Ratio: 2, Goal: 0.5, Verdict: measure.Met}},
	}
	peer := func(name string, ns, goal float64) measure.PeerRow {
		g := measure.Goal{Goal: goal}
		return measure.PeerRow{Workload: "flow/b1", Peer: name, Version: "v1.2.3", NsPerEvent: ns, PenstockNs: 10, Ratio: ns / 10, RatioMin: ns / 11, RatioMax: ns / 9, Goal: goal, Verdict: g.Verdict(ns / 10), Lacks: "all", Rounds: 7, Machine: machine, Date: "2026-11-29"}
	}
	return []measure.Row{won, short, wide, late}, []measure.PeerRow{peer("slow", 4000, 300), peer("penstock", 10, 0), peer("quick", 5, 1.1)}
}

// TestLossesStandFirstAndAreMarked: the reader meets what is lost before what is
// won.
func TestLossesStandFirstAndAreMarked(t *testing.T) {
	text := render(sample())
	first, rest, found := strings.Cut(text, "## Producing")
	if !found {
		t.Fatalf("no section for producing:\n%s", text)
	}
	for _, want := range []string{
		"Of 6 comparisons with a goal, 3 reach it, 1 reach what is demanded and miss the goal, 2 miss both.",
		"| `queue/produce/single` | mutex and slice | 0.50 | 0.40..0.60 |  | 1.10 | **missed** |",
		"| `queue/consume/b1` | chan | 3.14 | 0.000..0.000 | 3.00 | 3.90 | must |",
		"| `latency/queue/parked` | parked chan | 0.50 |",
		"- `queue/consume/b1`: 1.5000 allocations per event",
		"| flow/b1 | quick | **0.50** | 0.45..0.56 | all |",
		"Some CPU, 2 cores (GOMAXPROCS 2), linux/amd64, go1.26, 2026-11-29, 7 rounds",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("not before the tables: %s", want)
		}
	}
	for _, not := range []string{"| chan | 2.00 |", "| flow/b1 | slow |", "| flow/b1 | penstock |"} {
		if strings.Contains(first, not) {
			t.Errorf("among the losses: %s", not)
		}
	}
	for _, want := range []string{
		"| `queue/produce/single` | 7.00 | 0.000 | chan | 14.0 | 2.00 | 1.90..2.10 | 1.50 | 1.90 | goal |",
		"|  |  |  | mutex and slice | 3.50 | 0.50 | 0.40..0.60 |  | 1.10 | **missed** |",
		"| `latency/queue/parked` | p50 | 2.00 | parked chan | 1.00 | 0.50 |",
		"|  | p99 | 9.00 | parked chan | 18.0 | 2.00 |",
		"|  | p99.9 | 20.0 | parked chan | 40.0 | 2.00 |",
		"| `queue/produce/single` | 2.00 (7.00) |  |  |  |  |  | 4.00 (9.00) |  |",
		"| slow | 4000 | 0.000 | 400 | 364..444 | 300 | goal |",
		"| quick | 5.00 | 0.000 | 0.50 | 0.45..0.56 | 1.10 | **missed**, faster than penstock |",
		"| quick | v1.2.3 | all |",
		"- `queue/produce/single`: Singles.",
	} {
		if !strings.Contains(rest, want) {
			t.Errorf("not in the tables: %s", want)
		}
	}
	if quick, own, slow := strings.Index(rest, "| quick | 5"), strings.Index(rest, "| **penstock** | 10.0"), strings.Index(rest, "| slow | 4000"); quick < 0 || quick > own || own > slow {
		t.Errorf("peers are not sorted by time: %d, %d, %d", quick, own, slow)
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestEveryRowIsShown(t *testing.T) {
	rows, peers := sample()
	for _, name := range []string{"queue/produce/shared", "queue/produce/shared/64B", "queue/flow/4to4/b1", "queue/routing/hash", "queue/idle/flow", "queue/bufferqueue/consume/bounded/b1", "stage/linear/batch", "stage/broadcast4/64B", "log/append/written/100B/single", "stream/a/row/that/comes/later", "stream/many/g4"} {
		rows = append(rows, measure.Row{Name: name, Baseline: "beside " + name, Text: "T.", Published: 1.25, Machine: machine})
	}
	text := render(rows, peers)
	for _, r := range rows[4:] {
		if !strings.Contains(text, "| "+code(r.Name)+" | 0.000 | 0.000 | "+r.Baseline) {
			t.Errorf("%s is in no table", r.Name)
		}
	}
	if !strings.Contains(text, "| published |") || !strings.Contains(text, "| 1.25 |") {
		t.Error("published ratios are not shown")
	}
}

// TestEveryFieldIsDescribed: no field is without a line, and no line without a
// field.
func TestEveryFieldIsDescribed(t *testing.T) {
	for of, v := range map[string]any{"row": measure.Row{}, "peer": measure.PeerRow{}} {
		var want, got []string
		for f := range reflect.TypeOf(v).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			want = append(want, name)
		}
		for _, f := range fields {
			if f.of == of {
				got = append(got, f.name)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: described %q\nhas %q", of, got, want)
		}
	}
}

func TestSpreadKeepsTheRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(file, []byte(`[{"name": "a","text":"<b> & c"},{"name":"d"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "[\n{\"name\":\"a\",\"text\":\"<b> & c\"},\n{\"name\":\"d\"}\n]\n"
	for range 2 { // the second time nothing changes
		if err := spread(file); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%v\n%s", err, got)
		}
	}
	if err := os.WriteFile(file, []byte("[{]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if spread(file) == nil {
		t.Error("broken JSON: no error")
	}
}

func TestUnknownFiguresAreRefused(t *testing.T) {
	dir := t.TempDir()
	rows, peers := sample()
	write := func(name string, v any) {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("queue.json", rows)
	for _, name := range areas[1:] {
		if _, err := generate(dir); err == nil {
			t.Errorf("no %s.json: no error", name)
		}
		write(name+".json", rows[:1])
	}
	if _, err := generate(dir); err == nil {
		t.Error("no peers: no error")
	}
	write("peers.json", peers)
	if text, err := generate(dir); err != nil || len(text) == 0 {
		t.Errorf("%v", err)
	}
	write("peers.json", []map[string]any{{"workload": "w", "speed": 1}})
	if _, err := generate(dir); err == nil || !strings.Contains(err.Error(), "speed") {
		t.Errorf("unknown field: %v", err)
	}
	write("peers.json", []measure.PeerRow{})
	if _, err := generate(dir); err == nil {
		t.Error("no rows: no error")
	}
}
