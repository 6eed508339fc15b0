package measure

// Row is one line of a result: a side of ours beside its baseline, and where
// there are more, beside those. Times are nanoseconds. A ratio is baseline time
// over ours in the same round, its median over the rounds: above 1 means that
// ours is faster.
type Row struct {
	Name           string  `json:"name"`
	NsPerEvent     float64 `json:"ns_per_event"`
	EventsPerS     float64 `json:"events_per_s"`
	AllocsPerEvent float64 `json:"allocs_per_event"`
	Baseline       string  `json:"baseline"`
	BaselineNs     float64 `json:"baseline_ns"`
	Ratio          float64 `json:"ratio"`

	// Of ours and of the baseline, for latency rows; ns_per_event and
	// baseline_ns are then the medians, and the ratio is that of the medians.
	P50          float64 `json:"p50,omitempty"`
	P99          float64 `json:"p99,omitempty"`
	P999         float64 `json:"p999,omitempty"`
	BaselineP99  float64 `json:"baseline_p99,omitempty"`
	BaselineP999 float64 `json:"baseline_p999,omitempty"`

	// Over the rounds.
	Rounds        int     `json:"rounds,omitempty"`
	NsMin         float64 `json:"ns_min,omitempty"`
	NsMax         float64 `json:"ns_max,omitempty"`
	BaselineNsMin float64 `json:"baseline_ns_min,omitempty"`
	BaselineNsMax float64 `json:"baseline_ns_max,omitempty"`
	RatioMin      float64 `json:"ratio_min,omitempty"`
	RatioMax      float64 `json:"ratio_max,omitempty"`

	// What the ratio must and should reach, and whether it does: "goal",
	// "must" (the goal is missed) or "missed"; absent where nothing is demanded.
	Must    float64 `json:"must,omitempty"`
	Goal    float64 `json:"goal,omitempty"`
	Verdict string  `json:"verdict,omitempty"`
	// Whether ours allocates nothing per event in the steady state: "goal" or
	// "missed".
	AllocsVerdict string `json:"allocs_verdict,omitempty"`
	// The ratio that the authors of BufferQueue published for their queue and
	// their channel, in a row that repeats one of theirs.
	Published float64 `json:"published,omitempty"`
	// Other baselines, and other percentiles.
	Others []Comparison `json:"others,omitempty"`

	Text    string   `json:"text,omitempty"` // what is compared, and what is inside the clock
	Machine *Machine `json:"machine,omitempty"`
	Date    string   `json:"date,omitempty"` // of the run, in UTC
}

// Comparison is ours beside one more baseline, measured in the same rounds.
type Comparison struct {
	Baseline   string  `json:"baseline"`
	BaselineNs float64 `json:"baseline_ns"`
	Ratio      float64 `json:"ratio"`
	RatioMin   float64 `json:"ratio_min"`
	RatioMax   float64 `json:"ratio_max"`
	Must       float64 `json:"must,omitempty"`
	Goal       float64 `json:"goal,omitempty"`
	Verdict    string  `json:"verdict,omitempty"`
}

// Judged sets the demands of a row and its verdict.
func (r *Row) Judged(g Goal) { r.Must, r.Goal, r.Verdict = g.Must, g.Goal, g.Verdict(r.Ratio) }

// Compare returns ours beside a baseline, by their figures per round.
func Compare(baseline string, base, ours []float64, g Goal) Comparison {
	ratio := Ratio(base, ours)
	return Comparison{
		Baseline: baseline, BaselineNs: Median(base),
		Ratio: ratio.Median, RatioMin: ratio.Min, RatioMax: ratio.Max,
		Must: g.Must, Goal: g.Goal, Verdict: g.Verdict(ratio.Median),
	}
}

// PeerRow is one line of the comparison with other queues: one workload and one
// peer, penstock beside it in the same rounds. Times are nanoseconds.
type PeerRow struct {
	Workload       string  `json:"workload"`
	Peer           string  `json:"peer"`
	Version        string  `json:"version"` // of the peer's module; "" for code of our own
	NsPerEvent     float64 `json:"ns_per_event"`
	NsMin          float64 `json:"ns_min"`
	NsMax          float64 `json:"ns_max"`
	AllocsPerEvent float64 `json:"allocs_per_event"`
	PenstockNs     float64 `json:"penstock_ns"`
	// The peer's time over penstock's: above 1 means that penstock is faster.
	Ratio    float64 `json:"ratio"`
	RatioMin float64 `json:"ratio_min"`
	RatioMax float64 `json:"ratio_max"`
	Goal     float64 `json:"goal,omitempty"`
	Verdict  string  `json:"verdict,omitempty"`

	Lacks   string   `json:"lacks"` // what the peer does not do, in a line
	Rounds  int      `json:"rounds"`
	Machine *Machine `json:"machine"`
	Date    string   `json:"date"` // of the run, in UTC
}
