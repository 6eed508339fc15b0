package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/measure"
)

// variants shows the rows of every size, number of partitions and groups: the
// ratio to the channel, and penstock's time.
func variants(p *page, rows []measure.Row) {
	var bases, columns []string
	cell := map[string]string{}
	for _, r := range rows {
		base, suffix := split(r.Name)
		if suffix != "" && strings.HasPrefix(r.Name, "queue/") && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
		if strings.HasPrefix(r.Name, "queue/") {
			cell[base+" "+suffix] = fmt.Sprintf("%s (%s)", figure(r.Ratio), figure(r.NsPerEvent))
		}
	}
	if len(bases) == 0 {
		return
	}
	for _, size := range []string{"", "64B"} {
		for _, s := range []string{"", "p1", "g4", "p1/g4"} {
			columns = append(columns, strings.Trim(size+"/"+s, "/"))
		}
	}
	p.line("## Sizes, partitions, groups")
	p.line("")
	p.line("The ratio to a channel per group, and in brackets penstock's nanoseconds per event. 64B: events of 64 bytes, otherwise 8. p1: one partition, otherwise 4. g4: four groups, otherwise one.")
	p.line("")
	head := []string{"row"}
	for _, c := range columns {
		head = append(head, cmpOr(c, "8 bytes, 4 partitions, 1 group"))
	}
	p.head(head...)
	for _, base := range bases {
		cells := []string{code(base)}
		for _, c := range columns {
			cells = append(cells, cell[base+" "+c])
		}
		p.cells(cells...)
	}
	p.line("")
}

// comparison shows every workload with its peers, the fastest first.
func comparison(p *page, peers []measure.PeerRow) {
	p.line("## Beside other queues, pipelines and logs")
	p.line("")
	p.line("All of them in one process, in turn in every round, each set up as its documentation says; [bench](../bench/doc.go) holds the code. Sorted by time.")
	p.line("")
	var workloads []string
	for _, r := range peers {
		if !slices.Contains(workloads, r.Workload) {
			workloads = append(workloads, r.Workload)
		}
	}
	for _, w := range workloads {
		in := slices.DeleteFunc(slices.Clone(peers), func(r measure.PeerRow) bool { return r.Workload != w })
		slices.SortStableFunc(in, func(a, b measure.PeerRow) int {
			switch {
			case a.NsPerEvent < b.NsPerEvent:
				return -1
			case a.NsPerEvent > b.NsPerEvent:
				return 1
			}
			return 0
		})
		p.line("### %s", w)
		p.line("")
		p.head("peer", "ns/event", "allocs/event", "its time / penstock's", "min..max", "goal", "")
		for _, r := range in {
			name, ratio, range_, mark := r.Peer, figure(r.Ratio), between(r.RatioMin, r.RatioMax), marked(r.Verdict)
			switch {
			case r.Peer == "penstock":
				name, ratio, range_ = "**penstock**", "", ""
			case r.Ratio < 1:
				mark = strings.TrimPrefix(mark+", faster than penstock", ", ")
			}
			p.cells(name, figure(r.NsPerEvent), fmt.Sprintf("%.3f", r.AllocsPerEvent), ratio, range_, demand(r.Goal), mark)
		}
		p.line("")
	}
	p.line("What they do not do that penstock does:")
	p.line("")
	p.head("peer", "version", "it lacks")
	var seen []string
	for _, r := range peers {
		if r.Lacks != "" && !slices.Contains(seen, r.Peer) {
			seen = append(seen, r.Peer)
			p.cells(r.Peer, cmpOr(r.Version, "written by hand"), r.Lacks)
		}
	}
	p.line("")
	p.line("%s", notCompared)
	p.line("")
}

// notCompared names what a reader may miss, and why it is missing.
const notCompared = "Not compared: go-disruptor of github.com/smarty, which the module proxy did not serve when this was written; LMAX's Disruptor, which needs a JVM; Benthos, which is a stream processor that is configured, and no library that a function per event is handed to; of pipeline libraries rill, go-streams, RxGo and deliveryhero/pipeline, which the module proxy did not serve; of logs the file store of JetStream, which is reached through a server and its client only."

// explained says what each row does. Variants of a row say the same.
func explained(p *page, rows []measure.Row) {
	p.line("## What the rows do")
	p.line("")
	for _, r := range rows {
		if _, suffix := split(r.Name); suffix == "" {
			p.line("- %s: %s", code(r.Name), r.Text)
		}
	}
}

func code(name string) string { return "`" + name + "`" }

// figure writes a number with about three digits.
func figure(v float64) string {
	switch {
	case v < 0.1:
		return fmt.Sprintf("%.3f", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func between(least, most float64) string { return figure(least) + ".." + figure(most) }

// demand writes what a ratio is to reach, "" for nothing.
func demand(v float64) string {
	if v == 0 {
		return ""
	}
	return figure(v)
}

// marked makes a loss stand out.
func marked(verdict string) string {
	if verdict == measure.Missed {
		return "**missed**"
	}
	return verdict
}
