// Package verdict runs the demo of the real binary and judges the last line
// that it prints, by rules of its own: the demo judges itself as well, and two
// that agree are worth more than one.
package verdict

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Verdict is the last line of the demo.
type Verdict struct {
	Produced     uint64           `json:"produced"`
	Unknown      uint64           `json:"unknown"`
	Crashes      int              `json:"crashes"`
	Groups       map[string]Group `json:"groups"`
	EventsPerSec float64          `json:"events_per_s"`
	RSSMaxMiB    float64          `json:"rss_max_mib"`
}

// Group is what happened to one group.
type Group struct {
	Delivered       uint64 `json:"delivered"`
	Distinct        uint64 `json:"distinct"`
	Duplicates      uint64 `json:"duplicates"`
	Lost            uint64 `json:"lost"`
	Dead            uint64 `json:"dead"`
	MaxLag          uint64 `json:"max_lag"`
	OrderViolations uint64 `json:"order_violations"`
}

// Limits of a good run.
const (
	MaxRSS   = 300              // MiB
	MaxAfter = 45 * time.Second // from the end of --for to the end of the process
	SlowOne  = "emails"         // the group that must fall behind
)

// Run is one run of the demo.
type Run struct {
	Binary  string
	For     time.Duration
	Crashes int
	Seed    uint64
	Rate    float64 // events per second; 0 leaves the demo's own and demands nothing
	Args    []string
}

// Do runs the demo and returns its verdict, and an error that names everything
// that is wrong with it.
func (r Run) Do(ctx context.Context) (Verdict, error) {
	args := []string{"demo", "--for", r.For.String(), "--crash", strconv.Itoa(r.Crashes), "--seed", strconv.FormatUint(r.Seed, 10), "--json"}
	if r.Rate > 0 {
		args = append(args, "--rate", strconv.FormatFloat(r.Rate, 'f', -1, 64))
	}
	ctx, cancel := context.WithTimeout(ctx, r.For+MaxAfter+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Binary, append(args, r.Args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	v, parseErr := Parse(out.String())
	if err != nil || parseErr != nil {
		return v, fmt.Errorf("demo --seed %d: %w\n%s", r.Seed, errors.Join(err, parseErr), tail(errOut.String()))
	}
	if err := r.check(v, took); err != nil {
		return v, fmt.Errorf("demo --seed %d: %w", r.Seed, err)
	}
	return v, nil
}

// Parse reads the last line of the demo's standard output.
func Parse(out string) (Verdict, error) {
	out = strings.TrimSpace(out)
	var v Verdict
	if err := json.Unmarshal([]byte(out[strings.LastIndexByte(out, '\n')+1:]), &v); err != nil {
		return v, fmt.Errorf("last line on standard output: %w", err)
	}
	return v, nil
}

// check returns everything that is wrong with the verdict of a run.
func (r Run) check(v Verdict, took time.Duration) error {
	var errs []error
	say := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	say(v.Produced == 0, "nothing was produced")
	say(v.Unknown != 0, "%d events have an unknown outcome", v.Unknown)
	say(v.Crashes != r.Crashes, "%d crashes, want %d", v.Crashes, r.Crashes)
	say(v.RSSMaxMiB >= MaxRSS, "%.0f MiB resident, the limit is %d", v.RSSMaxMiB, MaxRSS)
	say(v.RSSMaxMiB <= 0, "resident memory was not measured")
	say(len(v.Groups) == 0, "no groups")
	say(took > r.For+MaxAfter, "ended %s after --for, the limit is %s", (took - r.For).Round(time.Second), MaxAfter)
	if r.Rate > 0 {
		half := r.Rate * r.For.Seconds() / 2
		say(float64(v.Produced) < half, "%d events produced, want at least %.0f", v.Produced, half)
	}
	for name, g := range v.Groups {
		say(g.Lost != 0, "group %s lost %d events", name, g.Lost)
		say(g.OrderViolations != 0, "group %s saw %d events out of order", name, g.OrderViolations)
		say(g.Distinct+g.Dead != v.Produced, "group %s: %d distinct and %d dead of %d produced", name, g.Distinct, g.Dead, v.Produced)
		say(g.Delivered != g.Distinct+g.Duplicates, "group %s: %d delivered, but %d distinct and %d duplicates", name, g.Delivered, g.Distinct, g.Duplicates)
	}
	say(v.Groups[SlowOne].MaxLag == 0, "group %s never fell behind", SlowOne)
	return errors.Join(errs...)
}

// tail returns the end of a long text.
func tail(text string) string {
	const limit = 2000
	if len(text) > limit {
		text = "..." + text[len(text)-limit:]
	}
	return strings.TrimSpace(text)
}
