package measure

// A Goal is what a ratio is to reach. Zero is no demand.
type Goal struct {
	Must float64 // below it the row is lost
	Goal float64 // what is aimed at
}

// Verdicts.
const (
	Met    = "goal"   // the goal is reached
	Enough = "must"   // the goal is missed, what must be is reached
	Missed = "missed" // neither
)

// Verdict judges a ratio: Met, Enough or Missed, "" without a demand.
func (g Goal) Verdict(ratio float64) string {
	switch {
	case g.Must == 0 && g.Goal == 0:
		return ""
	case ratio >= max(g.Goal, g.Must):
		return Met
	case g.Must > 0 && ratio >= g.Must:
		return Enough
	}
	return Missed
}

// allocsAtMost is what counts as no allocation per event: the start of a
// goroutine and the like, some forty times in 8192 events.
const allocsAtMost = 0.005

// NoAllocs judges allocations per event: Met or Missed.
func NoAllocs(perEvent float64) string {
	if perEvent < allocsAtMost {
		return Met
	}
	return Missed
}
