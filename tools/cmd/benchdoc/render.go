package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/measure"
)

// A page is the text that grows.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// head begins a table.
func (p *page) head(columns ...string) {
	p.line("| %s |", strings.Join(columns, " | "))
	p.line("|%s", strings.Repeat("---|", len(columns)))
}

func (p *page) cells(cells ...string) { p.line("| %s |", strings.Join(cells, " | ")) }

// suffixes are the parts of a name that say how a variant differs.
var suffixes = []string{"64B", "p1", "g4"}

// split parts a row's name into the name without suffixes, and the suffixes.
func split(name string) (base, suffix string) {
	parts := strings.Split(name, "/")
	n := len(parts)
	for n > 0 && slices.Contains(suffixes, parts[n-1]) {
		n--
	}
	return strings.Join(parts[:n], "/"), strings.Join(parts[n:], "/")
}

// render makes the whole text.
func render(rows []measure.Row, peers []measure.PeerRow) string {
	var p page
	p.line("# Benchmarks")
	p.line("")
	p.line("This file is made from what is in [bench](bench/) by `make bench-docs`, which runs")
	p.line("")
	p.line("```")
	for _, name := range areas {
		p.line("bin/penstock bench %s --json > docs/bench/%s.json", name, name)
	}
	p.line("go -C bench run . -json > docs/bench/peers.json")
	p.line("go -C tools run ./cmd/benchdoc")
	p.line("```")
	p.line("")
	p.line("Do not edit it. To see figures of your machine, run all but the last; `penstock bench --help` and [bench](../bench/doc.go) say more.")
	p.line("")
	machines(&p, rows, peers)
	p.line("")
	p.line("How to read it: nanoseconds hold for that machine and that hour only. A ratio is the other's time over penstock's, taken in the same round, the median of all rounds; min..max are the smallest and the largest: **above 1 penstock is faster, below 1 it is slower**. *goal* means that the ratio reaches what is aimed at, *must* that it reaches what is demanded and misses the goal, **missed** that it reaches neither. Why ratios, and what is checked while they are measured: [ADR 0038](adr/0038-figures.md).")
	p.line("")
	lost(&p, rows, peers)
	sections(&p, rows)
	variants(&p, rows)
	comparison(&p, peers)
	explained(&p, rows)
	described(&p)
	return p.String()
}

// machines lists where and when the figures come from.
func machines(p *page, rows []measure.Row, peers []measure.PeerRow) {
	var all []string
	add := func(what string, m *measure.Machine, date string, rounds int) {
		text := what + ": unknown machine"
		if m != nil {
			text = fmt.Sprintf("%s: %s, %d cores (GOMAXPROCS %d), %s/%s, %s, %s, %d rounds", what, cmpOr(m.CPU, "processor not told"), m.Cores, m.Procs, m.OS, m.Arch, m.Go, date, rounds)
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	for _, r := range rows {
		add("Rows of penstock", r.Machine, r.Date, r.Rounds)
	}
	for _, r := range peers {
		add("Peers", r.Machine, r.Date, r.Rounds)
	}
	for _, text := range all {
		p.line("- %s", text)
	}
}

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// A judged is one comparison that something is demanded of.
type judged struct {
	row, baseline   string
	ratio, min, max float64
	goal            measure.Goal
	verdict         string
}

// demands lists every comparison with a demand.
func demands(rows []measure.Row) (all []judged) {
	for _, r := range rows {
		if r.Verdict != "" {
			all = append(all, judged{r.Name, r.Baseline, r.Ratio, r.RatioMin, r.RatioMax, measure.Goal{Must: r.Must, Goal: r.Goal}, r.Verdict})
		}
		for _, o := range r.Others {
			if o.Verdict != "" {
				all = append(all, judged{r.Name, o.Baseline, o.Ratio, o.RatioMin, o.RatioMax, measure.Goal{Must: o.Must, Goal: o.Goal}, o.Verdict})
			}
		}
	}
	return all
}

// lost shows what is not reached, before everything else.
func lost(p *page, rows []measure.Row, peers []measure.PeerRow) {
	all := demands(rows)
	count := map[string]int{}
	for _, d := range all {
		count[d.verdict]++
	}
	p.line("## Lost")
	p.line("")
	p.line("Of %d comparisons with a goal, %d reach it, %d reach what is demanded and miss the goal, %d miss both.", len(all), count[measure.Met], count[measure.Enough], count[measure.Missed])
	p.line("")
	if count[measure.Met] < len(all) {
		p.head("row", "beside", "ratio", "min..max", "must", "goal", "")
		for _, d := range all {
			if d.verdict != measure.Met {
				p.cells(code(d.row), d.baseline, figure(d.ratio), between(d.min, d.max), demand(d.goal.Must), demand(d.goal.Goal), marked(d.verdict))
			}
		}
		p.line("")
	}
	if n := slices.IndexFunc(rows, allocates); n >= 0 {
		p.line("Rows that allocate in the steady state:")
		p.line("")
		for _, r := range rows {
			if allocates(r) {
				p.line("- %s: %.4f allocations per event", code(r.Name), r.AllocsPerEvent)
			}
		}
		p.line("")
	}
	faster := slices.DeleteFunc(slices.Clone(peers), func(r measure.PeerRow) bool { return r.Ratio >= 1 })
	if len(faster) > 0 {
		p.line("Where something else is faster than penstock, and what it does not do:")
		p.line("")
		p.head("workload", "peer", "its time / penstock's", "min..max", "it lacks")
		for _, r := range faster {
			p.cells(r.Workload, r.Peer, "**"+figure(r.Ratio)+"**", between(r.RatioMin, r.RatioMax), r.Lacks)
		}
		p.line("")
	}
}

func allocates(r measure.Row) bool { return r.AllocsVerdict == measure.Missed }

// sections shows the rows in groups, those with a suffix left out.
func sections(p *page, rows []measure.Row) {
	for _, s := range []struct{ title, prefix, text string }{
		{"Producing", "queue/produce/", ""},
		{"Consuming", "queue/consume/", ""},
		{"Producer and consumer together", "queue/flow/", "4to1 and 4to4 are four producers with one consumer, and with four on four partitions."},
		{"Routing", "queue/routing/", "Beside the same topic that deals events in turn. *published* is BufferQueue's own ratio of the same kind."},
		{"Waiting consumers", "queue/idle/", ""},
		{"Stages", "stage/", "Whole graphs from start to end, beside what one writes by hand for the same work. Demand 1000 and 750, so batches of 250; min500 has demand 1000 and 500. An event is one of the source's."},
		{"The log on disk", "log/", "Beside the least that one can do with the same frames; *ours* in brackets is how the log wrote, which it chooses by the name of the file system and the size of the frames ([ADR 0088](adr/0088-stores.md))."},
		{"Streams", "stream/", "From a queue to the handlers of subscriptions; an event counts for each that it is delivered to."},
		{"BufferQueue's own shapes", "queue/bufferqueue/", "*published* is the ratio of BufferQueue to its channel as its authors published it: .NET 10, Apple M2 Max, 12 cores. Another machine and another channel: it tells what was reached there, no more."},
	} {
		var in []measure.Row
		published := false
		for _, r := range rows {
			if _, suffix := split(r.Name); strings.HasPrefix(r.Name, s.prefix) && (suffix == "" || !strings.HasPrefix(s.prefix, "queue/") || s.prefix == "queue/produce/" && strings.Contains(r.Name, "/shared/")) {
				in = append(in, r)
				published = published || r.Published > 0
			}
		}
		if len(in) == 0 {
			continue
		}
		p.line("## %s", s.title)
		p.line("")
		if s.text != "" {
			p.line("%s", s.text)
			p.line("")
		}
		rowTable(p, in, published)
		p.line("")
	}
	latencies(p, rows)
}

func rowTable(p *page, rows []measure.Row, published bool) {
	columns := []string{"row", "ns/event", "allocs/event", "beside", "ns/event", "ratio", "min..max", "must", "goal", ""}
	if published {
		columns = append(columns, "published")
	}
	p.head(columns...)
	for _, r := range rows {
		cells := []string{
			code(r.Name), figure(r.NsPerEvent), fmt.Sprintf("%.3f", r.AllocsPerEvent), r.Baseline, figure(r.BaselineNs),
			figure(r.Ratio), between(r.RatioMin, r.RatioMax), demand(r.Must), demand(r.Goal), marked(r.Verdict),
		}
		if published {
			cells = append(cells, demand(r.Published))
		}
		p.cells(cells...)
		for _, o := range r.Others {
			cells := []string{"", "", "", o.Baseline, figure(o.BaselineNs), figure(o.Ratio), between(o.RatioMin, o.RatioMax), demand(o.Must), demand(o.Goal), marked(o.Verdict)}
			if published {
				cells = append(cells, "")
			}
			p.cells(cells...)
		}
	}
}

// latencies shows percentiles, in microseconds.
func latencies(p *page, rows []measure.Row) {
	begun := false
	for _, r := range rows {
		if r.P50 == 0 {
			continue
		}
		if !begun {
			begun = true
			p.line("## Latency")
			p.line("")
			p.line("One event per millisecond, from before the call that hands it over to the consumer, or on disk to the end of that call, in microseconds.")
			p.line("")
			p.head("row", "percentile", "penstock", "beside", "", "ratio", "min..max", "goal", "")
		}
		p.cells(code(r.Name), "p50", figure(r.P50/1e3), r.Baseline, figure(r.BaselineNs/1e3), figure(r.Ratio), between(r.RatioMin, r.RatioMax), demand(r.Goal), marked(r.Verdict))
		for i, o := range r.Others {
			at, own := "p99", r.P99
			if i > 0 {
				at, own = "p99.9", r.P999
			}
			p.cells("", at, figure(own/1e3), r.Baseline, figure(o.BaselineNs/1e3), figure(o.Ratio), between(o.RatioMin, o.RatioMax), demand(o.Goal), marked(o.Verdict))
		}
	}
	if begun {
		p.line("")
	}
}
