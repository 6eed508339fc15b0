package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/internal/measure"
)

// peers are all queues that are compared, the hand-written ones first.
var peers = []peer{channel, swapped, recycled, ring, workivaRing, workiva, diode, unbounded, infinite, pubSub, eventBus, goChannel}

type options struct {
	json   bool
	quick  bool
	rounds int
	names  []string // workloads; none is all

	slice  time.Duration // how long a peer's clock runs in a round
	events int           // per iteration
	limit  time.Duration // after which a workload that stands still is given up
}

func main() {
	var o options
	flag.BoolVar(&o.json, "json", false, "print one JSON array with an object per workload and peer")
	flag.BoolVar(&o.quick, "quick", false, "one short round: every check holds, the figures mean little")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds per workload; 0 is 7, or 1 with -quick")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: go -C bench run . [-json] [-quick] [-rounds N] [workload...]\nworkloads: %s\n", strings.Join(workloadNames(), ", "))
		flag.PrintDefaults()
	}
	flag.Parse()
	o.names = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func workloadNames() (names []string) {
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

func (o *options) fill() error {
	for _, name := range o.names {
		if !slices.Contains(workloadNames(), name) {
			return fmt.Errorf("there is no workload %q; there are %s", name, strings.Join(workloadNames(), ", "))
		}
	}
	if o.rounds < 0 {
		return fmt.Errorf("-rounds: %d is negative", o.rounds)
	}
	rounds, slice := 7, 30*time.Millisecond
	if o.quick {
		rounds, slice = 1, time.Millisecond
	}
	if o.rounds == 0 {
		o.rounds = rounds
	}
	if o.slice == 0 {
		o.slice = slice
	}
	if o.events == 0 {
		o.events = events
	}
	if o.limit == 0 {
		o.limit = 10 * time.Minute
	}
	return nil
}

// run measures the workloads and prints their rows; on an error those that are
// complete.
func run(ctx context.Context, o options, out, progress io.Writer) error {
	if err := o.fill(); err != nil {
		return err
	}
	rows := []measure.PeerRow{}
	var failed error
	for _, w := range workloads {
		if len(o.names) > 0 && !slices.Contains(o.names, w.name) {
			continue
		}
		fmt.Fprintln(progress, "bench", w.name)
		more, err := w.measure(ctx, o, peers)
		if rows = append(rows, more...); err != nil {
			failed = fmt.Errorf("workload %s: %w", w.name, err)
			break
		}
	}
	if o.json {
		if err := json.NewEncoder(out).Encode(rows); failed == nil {
			failed = err
		}
		return failed
	}
	if err := table(out, rows); failed == nil {
		failed = err
	}
	return failed
}

// measure runs a workload with penstock and all peers that can do it.
func (w workload) measure(ctx context.Context, o options, peers []peer) (rows []measure.PeerRow, err error) {
	// A peer that lost an event lets a consumer wait for ever.
	guard := time.AfterFunc(o.limit, func() { panic("bench: workload " + w.name + " stands still") })
	defer guard.Stop()
	var names []peer
	var sides []measure.Side
	for _, p := range w.contestants(peers) {
		c, err := w.side(p, o.events)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if c == nil {
			continue
		}
		defer func() {
			if closeErr := c.end(); err == nil {
				err = closeErr
			}
		}()
		names = append(names, p)
		sides = append(sides, measure.Side{Name: p.name, Run: c.run})
	}
	series, err := measure.Run(ctx, measure.Plan{Rounds: o.rounds, Slice: o.slice}, sides...)
	if err != nil {
		return nil, err
	}
	machine, date := measure.This(), time.Now().UTC().Format(time.DateOnly)
	for i, p := range names {
		row := w.row(p, series[i], series[0])
		row.Rounds, row.Machine, row.Date = o.rounds, machine, date
		rows = append(rows, row)
	}
	return rows, nil
}

// row compares a peer with penstock, whose own row has the ratio 1.
func (w workload) row(p peer, peer, ours measure.Series) measure.PeerRow {
	ns, ratio := measure.SpreadOf(peer.Ns), measure.Ratio(peer.Ns, ours.Ns)
	goal := measure.Goal{Goal: w.goals[p.name]}
	return measure.PeerRow{
		Workload: w.name, Peer: p.name, Version: versionOf(p.module), Lacks: p.lacks,
		NsPerEvent: ns.Median, NsMin: ns.Min, NsMax: ns.Max, AllocsPerEvent: peer.Allocs,
		PenstockNs: measure.Median(ours.Ns), Ratio: ratio.Median, RatioMin: ratio.Min, RatioMax: ratio.Max,
		Goal: goal.Goal, Verdict: goal.Verdict(ratio.Median),
	}
}

// versionOf returns the version of a module that this program was built with,
// "" for code of our own.
func versionOf(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok || module == "" || module == ours.module {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}

func table(out io.Writer, rows []measure.PeerRow) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tpeer\tns/event\tallocs/event\tratio\tmin..max\tgoal\t  verdict")
	for _, r := range rows {
		goal := ""
		if r.Goal > 0 {
			goal = fmt.Sprintf("%.2f", r.Goal)
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%.4f\t%.2f\t%.2f..%.2f\t%s\t  %s\n", r.Workload, r.Peer, r.NsPerEvent, r.AllocsPerEvent, r.Ratio, r.RatioMin, r.RatioMax, goal, r.Verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, "\nratio = time of the peer / penstock's, measured in turns in this run: above 1 means that penstock is faster")
	return err
}
