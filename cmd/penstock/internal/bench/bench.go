// Package bench runs the rows of the benchmark command.
package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock"
)

// Row is one line of the result.
type Row struct {
	Name           string  `json:"name"`
	NsPerEvent     float64 `json:"ns_per_event"`
	EventsPerS     float64 `json:"events_per_s"`
	AllocsPerEvent float64 `json:"allocs_per_event"`
	Baseline       string  `json:"baseline"`
	BaselineNs     float64 `json:"baseline_ns"`
	Ratio          float64 `json:"ratio"` // baseline time over ours in the same run
}

// Config says how the rows are run.
type Config struct {
	Rounds   int
	Dir      string
	Progress func(done, total int, row string)
}

// Names returns the name of every row.
func Names() []string { return nil }

// Select returns the rows that the patterns name; all rows for no pattern.
func Select(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return Names(), nil
	}
	var names []string
	for _, p := range patterns {
		found := false
		for _, n := range Names() {
			if n == p || strings.HasPrefix(n, p+"/") {
				found = true
				if !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
		}
		if !found {
			return nil, &penstock.FieldError{Field: "NAME", Reason: fmt.Sprintf("there is no row %q", p)}
		}
	}
	return names, nil
}

// Run runs the rows.
func Run(context.Context, []string, Config) ([]Row, error) { return nil, nil }
