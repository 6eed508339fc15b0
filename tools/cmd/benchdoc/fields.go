package main

// fields say what the JSON holds, for those who read it with a program. A field
// is not renamed and keeps its meaning; new ones may come.
var fields = []struct{ of, name, text string }{
	{"row", "name", "of the row; /64B, /p1 and /g4 at its end say how it differs from the row without them"},
	{"row", "ns_per_event", "penstock's nanoseconds per event, median of the rounds; in rows of latency the median latency"},
	{"row", "events_per_s", "1e9 / ns_per_event"},
	{"row", "allocs_per_event", "allocations of all goroutines inside the clock"},
	{"row", "baseline", "what it is compared with"},
	{"row", "baseline_ns", "the baseline's nanoseconds per event"},
	{"row", "ratio", "the baseline's time over penstock's in the same round, median of the rounds"},
	{"row", "p50", "percentiles of penstock's latency over all rounds, with p99 and p999"},
	{"row", "p99", ""},
	{"row", "p999", ""},
	{"row", "baseline_p99", "the same of the baseline, with baseline_p999"},
	{"row", "baseline_p999", ""},
	{"row", "rounds", "how many there were"},
	{"row", "ns_min", "the fastest and the slowest round, with ns_max, baseline_ns_min, baseline_ns_max"},
	{"row", "ns_max", ""},
	{"row", "baseline_ns_min", ""},
	{"row", "baseline_ns_max", ""},
	{"row", "ratio_min", "the smallest and the largest ratio of a round, with ratio_max"},
	{"row", "ratio_max", ""},
	{"row", "must", "what the ratio must reach; absent where nothing is demanded"},
	{"row", "goal", "what it is to reach; absent where nothing is aimed at"},
	{"row", "verdict", "goal: it does; must: it reaches must only; missed: neither"},
	{"row", "allocs_verdict", "goal: fewer than 0.005 allocations per event in the steady state; else missed"},
	{"row", "published", "the ratio of BufferQueue to its channel that its authors published for this shape"},
	{"row", "others", "more baselines of the same rounds, each with baseline, baseline_ns, ratio, ratio_min, ratio_max, must, goal, verdict"},
	{"row", "text", "what is compared, and what is inside the clock"},
	{"row", "machine", "cpu, cores, gomaxprocs, os, arch, go"},
	{"row", "date", "of the run, in UTC"},
	{"peer", "workload", "what all peers were asked to do"},
	{"peer", "peer", "the queue; penstock has a row too"},
	{"peer", "version", "of its module; empty for code of ours"},
	{"peer", "ns_per_event", "its nanoseconds per event, median of the rounds, with ns_min and ns_max"},
	{"peer", "ns_min", ""},
	{"peer", "ns_max", ""},
	{"peer", "allocs_per_event", "allocations of all goroutines inside the clock"},
	{"peer", "penstock_ns", "penstock's nanoseconds per event in the same rounds"},
	{"peer", "ratio", "its time over penstock's in the same round, median of the rounds, with ratio_min and ratio_max"},
	{"peer", "ratio_min", ""},
	{"peer", "ratio_max", ""},
	{"peer", "goal", "what the ratio is to reach, with verdict: goal or missed"},
	{"peer", "verdict", ""},
	{"peer", "lacks", "what it does not do that penstock does"},
	{"peer", "rounds", "as in a row, with machine and date"},
	{"peer", "machine", ""},
	{"peer", "date", ""},
}

// described lists the fields that have a text of their own.
func described(p *page) {
	p.line("")
	p.line("## Fields of the JSON")
	p.line("")
	p.line("Each file is an array with an object per row: *row* in queue.json, stage.json, log.json and stream.json, *peer* in peers.json. A field keeps its name and meaning; new ones may come, and one without a value may be absent. Times are nanoseconds.")
	p.line("")
	p.head("in", "field", "meaning")
	for _, f := range fields {
		if f.text != "" {
			p.cells(f.of, code(f.name), f.text)
		}
	}
}
