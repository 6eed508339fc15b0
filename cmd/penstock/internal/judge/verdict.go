package judge

import (
	"fmt"
	"slices"
)

// Verdict is the judgement over one run. Its JSON form is the last line that
// the demo prints.
type Verdict struct {
	Produced     uint64           `json:"produced"` // acknowledged events
	Unknown      uint64           `json:"unknown"`  // sent and never acknowledged
	Crashes      int              `json:"crashes"`
	Groups       map[string]Group `json:"groups"`
	EventsPerSec float64          `json:"events_per_s"`
	RSSMaxMiB    float64          `json:"rss_max_mib"`

	phantoms uint64
	ackOrder uint64
	names    []string
}

// Group is the judgement over one group.
type Group struct {
	Delivered       uint64 `json:"delivered"`        // reports, repeats included
	Distinct        uint64 `json:"distinct"`         // different events reported
	Duplicates      uint64 `json:"duplicates"`       // delivered - distinct
	Lost            uint64 `json:"lost"`             // acknowledged, neither handled nor dead
	Dead            uint64 `json:"dead"`             // dead-lettered and never handled
	MaxLag          uint64 `json:"max_lag"`          // most events behind at one moment
	OrderViolations uint64 `json:"order_violations"` // first deliveries that came after a newer event of their key
}

// Verdict judges what was noted so far.
func (l *Ledger) Verdict() Verdict {
	v := Verdict{
		Produced: l.acked.n,
		Unknown:  l.Unanswered(),
		Crashes:  l.crashes,
		Groups:   make(map[string]Group, len(l.names)),
		phantoms: l.phantoms,
		ackOrder: l.ackOrder,
		names:    slices.Clone(l.names),
	}
	for _, name := range l.names {
		g := l.groups[name]
		v.Groups[name] = Group{
			Delivered:       g.delivered,
			Distinct:        g.handled.n,
			Duplicates:      g.delivered - g.handled.n,
			Lost:            l.Open(name),
			Dead:            g.deadOnly(),
			MaxLag:          g.maxLag,
			OrderViolations: g.violations,
		}
	}
	return v
}

// Faults returns what is wrong, one sentence each, nil when the run is good.
// wantCrashes is the number of crashes that were asked for.
func (v Verdict) Faults(wantCrashes int) []string {
	var faults []string
	say := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if v.Produced == 0 {
		say("nothing was produced")
	}
	if v.Unknown > 0 {
		say("%d events were sent and never acknowledged", v.Unknown)
	}
	if v.Crashes != wantCrashes {
		say("%d crashes happened, %d were asked for", v.Crashes, wantCrashes)
	}
	if v.phantoms > 0 {
		say("%d reports name an event that was never sent", v.phantoms)
	}
	if v.ackOrder > 0 {
		say("%d acknowledgements overtook an older event of the same key: the driver itself is at fault", v.ackOrder)
	}
	for _, name := range v.names {
		g := v.Groups[name]
		if g.Lost > 0 {
			say("group %s lost %d acknowledged events", name, g.Lost)
		}
		if g.OrderViolations > 0 {
			say("group %s got %d events after a newer one of the same key", name, g.OrderViolations)
		}
		if g.Lost == 0 && v.Unknown == 0 && g.Distinct+g.Dead != v.Produced {
			say("group %s settled %d events of %d produced", name, g.Distinct+g.Dead, v.Produced)
		}
	}
	return faults
}
