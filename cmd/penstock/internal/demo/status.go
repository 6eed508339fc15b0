package demo

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// snapshot is what a status line is made of.
type snapshot struct {
	elapsed    time.Duration
	phase      string  // "" while producing
	rateIn     float64 // acknowledged events per second, lately
	produced   uint64
	nodeUp     bool // it answers
	starting   bool // it was killed, and the next one is not ready
	crashes    int
	full       bool // the node answers 429
	diskBytes  int64
	unanswered uint64
	groups     []groupView
}

// groupView is one group in a status line.
type groupView struct {
	name    string
	lag     uint64        // events
	behind  time.Duration // age of the oldest event that it owes
	rateOut float64       // events settled per second, lately
	dead    uint64
	stats   wire.GroupStats // as the node told last
}

// phaseStopping is when the node may be gone at any moment.
const phaseStopping = "stopping the node"

// smallLag is what a group owes in passing: no word is lost on it.
const smallLag = 500 * time.Millisecond

// rows returns the status in two rows: what happens to all, and how far each
// group is behind, in events and, when it matters, in seconds.
func (s *snapshot) rows() (all, groups string) {
	var dead uint64
	var b strings.Builder
	b.WriteString("lag")
	for _, g := range s.groups {
		dead += g.dead
		fmt.Fprintf(&b, "  %s %s", g.name, g.lagText(s.rateIn))
	}
	all = fmt.Sprintf("%s  in %s/s  dead %d  disk %s", clock(s.elapsed), count(s.rateIn), dead, size(s.diskBytes))
	if s.crashes > 0 {
		all += fmt.Sprintf("  crashes %d", s.crashes)
	}
	if why := s.why(); why != "" {
		all += "  [" + why + "]"
	}
	return all, b.String()
}

// lagText is "1,204", or "21,060 4.2s (drains in 61s)" when it matters.
func (g *groupView) lagText(rateIn float64) string {
	if g.behind < smallLag {
		return count(float64(g.lag))
	}
	return fmt.Sprintf("%s %.1fs (%s)", count(float64(g.lag)), g.behind.Seconds(), g.drains(rateIn))
}

// drains says when the group will have caught up at the rates of the moment.
func (g *groupView) drains(rateIn float64) string {
	gain := g.rateOut - rateIn
	switch {
	case g.rateOut <= 0:
		return "stands still"
	case gain <= 0.01*g.rateOut:
		return "grows"
	}
	return "drains in " + short(time.Duration(float64(g.lag)/gain*float64(time.Second)))
}

// why says in words what holds things up: first what concerns all, then the
// group that is behind most.
func (s *snapshot) why() string {
	switch {
	case s.phase == phaseStopping:
		return s.phase
	case s.starting:
		return "the node was killed and recovers its log"
	case !s.nodeUp:
		return "the node does not answer"
	}
	var worst *groupView
	for i := range s.groups {
		if g := &s.groups[i]; g.behind >= smallLag && (worst == nil || g.behind > worst.behind) {
			worst = g
		}
	}
	var words []string
	if s.phase != "" {
		words = append(words, s.phase)
	}
	if s.full {
		words = append(words, "the topic is full, so producers wait")
	}
	if worst != nil {
		words = append(words, worst.name+": "+worst.why())
	}
	return strings.Join(words, "; ")
}

// why says in words why the group is behind.
func (g *groupView) why() string {
	switch {
	case g.stats.Failing != "":
		return "retries, because " + g.stats.Failing
	case g.stats.Consumers > 0 && g.stats.Busy == g.stats.Consumers:
		return "all " + strconv.Itoa(g.stats.Consumers) + " handlers are at work, each call is slow"
	case g.stats.Busy > 0:
		return "few partitions hold what is left"
	}
	return "its handlers wait for events to be read"
}

// clock returns "MM:SS".
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// short returns a duration in the one unit that fits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	}
	return "hours"
}

// count returns a whole number with commas between thousands.
func count(v float64) string {
	s := strconv.FormatInt(int64(math.Round(max(v, 0))), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// size returns a size in MiB or GiB.
func size(bytes int64) string {
	mib := float64(bytes) / (1 << 20)
	if mib < 1024 {
		return fmt.Sprintf("%.0f MiB", mib)
	}
	return fmt.Sprintf("%.1f GiB", mib/1024)
}

// cut shortens a line to width columns.
func cut(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return line
}
