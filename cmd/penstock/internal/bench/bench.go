package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/measure"
)

// Row is one line of the result; package measure documents its fields and
// their names in JSON.
type Row = measure.Row

// Config says how the rows are run. The zero value is the default.
type Config struct {
	// Rounds per row; 0 means 7, or 1 if Quick is set. Negative is an error.
	Rounds int
	// Quick makes rounds so short that the figures mean little: the rows run,
	// and their checks hold.
	Quick bool
	// Dir is where rows on disk make, and remove, a directory of their own; ""
	// is the system's directory for temporary files.
	Dir string
	// Progress is called before each row, if it is set. It must be cheap.
	Progress func(done, total int, row string)

	slice  time.Duration // how long a side's clock runs in a round; 0 means the default
	events int           // events per iteration; 0 means what the row states
	limit  time.Duration // after which a row that stands still is given up; 0 means rowLimit
}

const (
	defaultRounds = 7
	defaultSlice  = 30 * time.Millisecond
	quickSlice    = 2 * time.Millisecond
	rowLimit      = 10 * time.Minute
)

func (c *Config) fill() error {
	if c.Rounds < 0 {
		return &penstock.FieldError{Field: "Rounds", Reason: fmt.Sprintf("%d is negative", c.Rounds)}
	}
	rounds, slice := defaultRounds, defaultSlice
	if c.Quick {
		rounds, slice = 1, quickSlice
	}
	if c.Rounds == 0 {
		c.Rounds = rounds
	}
	if c.slice == 0 {
		c.slice = slice
	}
	if c.limit == 0 {
		c.limit = rowLimit
	}
	return nil
}

// Names returns the name of every row, in the order in which Run without a
// selection runs them.
func Names() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	return names
}

// Select returns the rows that the patterns name, each once: a pattern is a
// row's whole name, which selects this row alone, or its first parts ("queue",
// "queue/flow"). A single part also selects the rows of its latency. No pattern
// selects all. The error matches [penstock.ErrInvalid] and names the pattern
// that selects nothing.
func Select(patterns []string) ([]string, error) {
	all := Names()
	if len(patterns) == 0 {
		return all, nil
	}
	var names []string
	for _, p := range patterns {
		found := false
		for _, n := range all {
			if n != p && (slices.Contains(all, p) || !below(n, strings.TrimSuffix(p, "/"))) {
				continue
			}
			found = true
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		if !found {
			return nil, &penstock.FieldError{Field: "NAME", Reason: fmt.Sprintf("there is no row %q", p)}
		}
	}
	return names, nil
}

// below reports whether a row's name begins with the parts of a pattern.
func below(name, pattern string) bool {
	return strings.HasPrefix(name, pattern+"/") ||
		pattern != "" && !strings.Contains(pattern, "/") && strings.HasPrefix(name, "latency/"+pattern+"/")
}

// Run runs the named rows one after the other. When a row fails, it returns
// the rows before it and an error that names the row and what was wrong. ctx is
// looked at between rounds; its end is returned as an error, with the rows that
// are complete.
func Run(ctx context.Context, names []string, c Config) ([]Row, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	done := []Row{}
	machine, date := measure.This(), time.Now().UTC().Format(time.DateOnly)
	for i, name := range names {
		at := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if at < 0 {
			return done, &penstock.FieldError{Field: "names", Reason: fmt.Sprintf("there is no row %q", name)}
		}
		if c.Progress != nil {
			c.Progress(i, len(names), name)
		}
		r, err := rows[at].run(ctx, c)
		if err != nil {
			return done, fmt.Errorf("row %s: %w", name, err)
		}
		r.Machine, r.Date = machine, date
		done = append(done, r)
	}
	return done, nil
}

// A row is what is compared with what.
type row struct {
	name     string
	text     string // what is compared, and what is inside the clock
	baseline string
	events   int // per iteration
	open     func(e env) (pair, error)

	goal      measure.Goal    // of the ratio to the baseline; of the medians, in a latency row
	tail      [2]measure.Goal // of p99 and p99.9, in a latency row
	steady    bool            // in the steady state nothing is allocated
	published float64         // ratio of the same shape that the authors of BufferQueue published
}

// env is what a row needs to open.
type env struct {
	ctx    context.Context
	dir    string // a directory of the row's own, on the file system to measure
	events int    // per iteration
}

// A pair is an open row: ours and its baseline, and more baselines.
type pair struct {
	ours, base side
	also       []also
	close      func() error  // may be nil
	path       func() string // how ours wrote, part of the baseline's name; may be nil
}

// also is one more baseline, measured in the same rounds.
type also struct {
	name string
	goal measure.Goal
	side side
}

// A side does one iteration, with the part that counts inside the clock, and
// checks it. The error says what was wrong.
type side = func(c *measure.Clock) error

func (r row) run(ctx context.Context, c Config) (Row, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	dir, err := os.MkdirTemp(c.Dir, "penstock-bench-")
	if err != nil {
		return Row{}, err
	}
	defer os.RemoveAll(dir)
	events := r.events
	if c.events > 0 {
		events = c.events
	}
	p, err := r.open(env{ctx: ctx, dir: dir, events: events})
	if err != nil {
		return Row{}, err
	}
	out, err := r.measure(ctx, p, c)
	if p.close != nil {
		if closeErr := p.close(); err == nil {
			err = closeErr
		}
	}
	return out, err
}

func (r row) measure(ctx context.Context, p pair, c Config) (Row, error) {
	sides := []measure.Side{{Name: "baseline", Run: p.base}, {Name: "ours", Run: p.ours}}
	for _, a := range p.also {
		sides = append(sides, measure.Side{Name: a.name, Run: a.side})
	}
	series, err := measure.Run(ctx, measure.Plan{Rounds: c.Rounds, Slice: c.slice}, sides...)
	if err != nil {
		return Row{}, err
	}
	if p.path != nil {
		r.baseline = fmt.Sprintf("%s (ours: %s)", r.baseline, p.path())
	}
	base, ours := series[0], series[1]
	row := Row{Name: r.name, Text: r.text, Baseline: r.baseline, Rounds: c.Rounds, AllocsPerEvent: ours.Allocs, Published: r.published}
	if len(ours.Samples[0]) > 0 {
		base.Ns, ours.Ns = measure.Percentiles(base.Samples, 0.5), measure.Percentiles(ours.Samples, 0.5)
		tails(&row, base, ours, r)
	}
	row.NsPerEvent, row.NsMin, row.NsMax = spread(ours.Ns)
	row.BaselineNs, row.BaselineNsMin, row.BaselineNsMax = spread(base.Ns)
	row.Ratio, row.RatioMin, row.RatioMax = parts(measure.Ratio(base.Ns, ours.Ns))
	row.EventsPerS = 1e9 / row.NsPerEvent
	row.Judged(r.goal)
	if r.steady {
		row.AllocsVerdict = measure.NoAllocs(ours.Allocs)
	}
	for i, a := range p.also {
		row.Others = append(row.Others, measure.Compare(a.name, series[i+2].Ns, ours.Ns, a.goal))
	}
	return row, nil
}

func spread(s []float64) (median, least, most float64) { return parts(measure.SpreadOf(s)) }

func parts(s measure.Spread) (median, least, most float64) { return s.Median, s.Min, s.Max }

// tails sets the percentiles of a latency row. Those of ours and of the
// baseline are over all rounds; the ratio of p99 is paired by round, and that
// of p99.9 is of all rounds, since a round has too few samples for it.
func tails(out *Row, base, ours measure.Series, r row) {
	all, baseAll := slices.Concat(ours.Samples...), slices.Concat(base.Samples...)
	out.P50, out.P99, out.P999 = measure.Percentile(all, 0.5), measure.Percentile(all, 0.99), measure.Percentile(all, 0.999)
	out.BaselineP99, out.BaselineP999 = measure.Percentile(baseAll, 0.99), measure.Percentile(baseAll, 0.999)
	out.Others = append(out.Others,
		measure.Compare(r.baseline+", p99", measure.Percentiles(base.Samples, 0.99), measure.Percentiles(ours.Samples, 0.99), r.tail[0]),
		measure.Compare(r.baseline+", p99.9", []float64{out.BaselineP999}, []float64{out.P999}, r.tail[1]))
}
