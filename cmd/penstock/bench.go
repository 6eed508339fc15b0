package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/bench"
)

type benchCmd struct {
	Names  []string `arg:"" optional:"" name:"name" help:"Rows to run: queue, stage, stream, log or latency, a part such as queue/consume, or one row. None runs all."`
	List   bool     `help:"List the rows and end."`
	Rounds int      `default:"0" help:"Rounds per row; a figure is the median over them. At most 1000; 0 is 7, or 1 with --quick."`
	Quick  bool     `help:"Short rounds: every check holds, but the figures mean little."`
	Dir    string   `placeholder:"DIR" help:"Directory for the rows on disk. Without it a temporary one, removed at the end."`
	Output string   `short:"o" enum:"text,json" default:"text" help:"Form of the result: text or json."`
	JSON   bool     `name:"json" help:"The same as -o json: one array with an object per row."`
}

// Help is shown by --help.
func (benchCmd) Help() string {
	return `Each row is measured beside its baseline in the same run; only the ratio carries over to another machine.
A whole name selects that row alone, a part of one the rows below it: queue/consume/b1/ those that differ from queue/consume/b1.
A row in which an event is lost, repeated or out of order fails, and the exit code is 1. A goal that is missed is shown,
and changes no exit code: figures of another machine, or of a busy one, prove nothing.

Example:

    penstock bench queue stage --json`
}

// Run runs the rows.
func (c *benchCmd) Run(e *env) error {
	if c.Rounds < 0 || c.Rounds > maxRounds {
		return &penstock.FieldError{Field: "--rounds", Reason: fmt.Sprintf("%d is not between 0 and %d", c.Rounds, maxRounds)}
	}
	names, err := bench.Select(c.Names)
	if errors.Is(err, penstock.ErrInvalid) {
		return &failure{code: exitUsage, what: reasonOf(err), fix: "rows begin with " + strings.Join(families(), ", ") + "; run: penstock bench --list", err: err}
	}
	if err != nil {
		return err
	}
	if c.List {
		_, err := fmt.Fprintln(e.stdout, strings.Join(names, "\n"))
		return err
	}
	rows, err := bench.Run(e.ctx, names, bench.Config{Rounds: c.Rounds, Quick: c.Quick, Dir: c.Dir, Progress: func(done, total int, row string) {
		fmt.Fprintf(e.stderr, "bench %d/%d %s\n", done+1, total, row)
	}})
	if c.JSON || c.Output == "json" {
		if rows == nil {
			rows = []bench.Row{}
		}
		return errors.Join(err, json.NewEncoder(e.stdout).Encode(rows))
	}
	if len(rows) == 0 {
		return err
	}
	return errors.Join(err, c.table(e, rows))
}

// maxRounds bounds a row to some minutes.
const maxRounds = 1000

// reasonOf returns an error without the name of a field that nobody typed.
func reasonOf(err error) string {
	var field *penstock.FieldError
	if errors.As(err, &field) {
		return field.Reason
	}
	return err.Error()
}

// families returns the first parts of the names of the rows.
func families() (all []string) {
	for _, name := range bench.Names() {
		first, _, _ := strings.Cut(name, "/")
		if !slices.Contains(all, first) {
			all = append(all, first)
		}
	}
	return all
}

func (c *benchCmd) table(e *env, rows []bench.Row) error {
	t := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "row\tns/event\tallocs/event\tbaseline ns\tratio\tmin..max\tmust\tgoal\t  verdict\t  baseline")
	for _, r := range rows {
		latency := ""
		if r.P50 > 0 {
			latency = fmt.Sprintf("  (ours: p50 %.1f, p99 %.1f, p99.9 %.1f us)", r.P50/1e3, r.P99/1e3, r.P999/1e3)
		}
		fmt.Fprintf(t, "%s\t%.2f\t%.4f\t%.2f\t%.2f\t%.2f..%.2f\t%s\t%s\t  %s\t  %s%s\n", r.Name, r.NsPerEvent, r.AllocsPerEvent,
			r.BaselineNs, r.Ratio, r.RatioMin, r.RatioMax, demand(r.Must), demand(r.Goal), r.Verdict, r.Baseline, latency)
		for _, o := range r.Others {
			fmt.Fprintf(t, "\t\t\t%.2f\t%.2f\t%.2f..%.2f\t%s\t%s\t  %s\t  %s\n",
				o.BaselineNs, o.Ratio, o.RatioMin, o.RatioMax, demand(o.Must), demand(o.Goal), o.Verdict, o.Baseline)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.stdout, "\nratio = time of the baseline / ours, measured in turns in this run: above 1 is faster than the baseline")
	return err
}

// demand writes what a ratio is to reach, "" for nothing.
func demand(ratio float64) string {
	if ratio == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", ratio)
}
