package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// Row is one line of the result. Times are nanoseconds.
type Row struct {
	Name           string  `json:"name"`
	NsPerEvent     float64 `json:"ns_per_event"`
	EventsPerS     float64 `json:"events_per_s"`
	AllocsPerEvent float64 `json:"allocs_per_event"`
	Baseline       string  `json:"baseline"`
	BaselineNs     float64 `json:"baseline_ns"`
	Ratio          float64 `json:"ratio"` // baseline time over ours in the same run

	// Of ours, for latency rows; ns_per_event and baseline_ns are then the
	// medians, and the ratio is that of the medians.
	P50  float64 `json:"p50,omitempty"`
	P99  float64 `json:"p99,omitempty"`
	P999 float64 `json:"p999,omitempty"`
}

// Config says how the rows are run. The zero value is the default.
type Config struct {
	// Rounds per row; 0 means 7. Negative is an error.
	Rounds int
	// Dir is where rows on disk make, and remove, a directory of their own; ""
	// is the system's directory for temporary files.
	Dir string
	// Progress is called before each row, if it is set. It must be cheap.
	Progress func(done, total int, row string)

	slice  time.Duration // how long a side's clock runs in a round; 0 means 40 ms
	events int           // events per iteration; 0 means what rows.go states
}

const (
	defaultRounds = 7
	defaultSlice  = 40 * time.Millisecond
	// wallFactor bounds a round where little of an iteration is inside the clock.
	wallFactor = 6
)

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
// row's whole name or its first parts ("queue", "queue/flow"). No pattern
// selects all. The error matches [penstock.ErrInvalid] and names the pattern
// that selects nothing.
func Select(patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		return Names(), nil
	}
	var names []string
	for _, p := range patterns {
		found := false
		for _, n := range Names() {
			if n == p || strings.HasPrefix(n, strings.TrimSuffix(p, "/")+"/") {
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

// Run runs the named rows one after the other. When a row fails, it returns
// the rows before it and an error that names the row and what was wrong. ctx is
// looked at between rounds; its end is returned as an error, with the rows that
// are complete.
func Run(ctx context.Context, names []string, c Config) ([]Row, error) {
	if c.Rounds < 0 {
		return nil, &penstock.FieldError{Field: "Rounds", Reason: fmt.Sprintf("%d is negative", c.Rounds)}
	}
	if c.Rounds == 0 {
		c.Rounds = defaultRounds
	}
	if c.slice == 0 {
		c.slice = defaultSlice
	}
	done := []Row{}
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
		done = append(done, r)
	}
	return done, nil
}

// A row is what is compared with what.
type row struct {
	name     string
	baseline string
	events   int // per iteration
	open     func(e env) (pair, error)
}

// env is what a row needs to open.
type env struct {
	ctx    context.Context
	dir    string // a directory of the row's own, on the file system to measure
	events int    // per iteration
}

// A pair is an open row.
type pair struct {
	ours, base side
	close      func() error // may be nil
}

// A side does one iteration, with the part that counts inside the clock, and
// checks it. The error says what was wrong.
type side func(c *clock) error

// A clock runs while the work that counts is done.
type clock struct {
	every   bool // check every event, not the first and last of a batch only
	allocs  bool // count allocations as well; the time is then not of use
	elapsed time.Duration
	events  int
	mallocs uint64
	samples []time.Duration // of latency rows

	began time.Time
	mem   runtime.MemStats
}

func (c *clock) start() {
	if c.allocs {
		runtime.ReadMemStats(&c.mem)
		c.mallocs -= c.mem.Mallocs
	}
	c.began = time.Now()
}

func (c *clock) stop(events int) {
	c.elapsed += time.Since(c.began)
	c.events += events
	if c.allocs {
		runtime.ReadMemStats(&c.mem)
		c.mallocs += c.mem.Mallocs
	}
}

func (c *clock) nsPerEvent() float64 { return float64(c.elapsed.Nanoseconds()) / float64(c.events) }

// Allocations are counted over so many iterations, or fewer where they are long.
const (
	allocIterations = 20
	allocWall       = 400 * time.Millisecond
)

func (r row) run(ctx context.Context, c Config) (Row, error) {
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
	for _, s := range []side{p.base, p.ours} { // the untimed pass; it warms up too
		if err := s(&clock{every: true}); err != nil {
			return Row{}, err
		}
	}
	allocs := clock{allocs: true}
	began := time.Now()
	for i := 0; i < allocIterations && time.Since(began) < allocWall; i++ {
		if err := p.ours(&allocs); err != nil {
			return Row{}, err
		}
	}
	var ours, base, ratio []float64
	var late [2][]time.Duration
	for range c.Rounds {
		if err := penstock.ContextError(ctx); err != nil {
			return Row{}, err
		}
		b, err := round(p.base, c.slice)
		if err != nil {
			return Row{}, fmt.Errorf("baseline: %w", err)
		}
		o, err := round(p.ours, c.slice)
		if err != nil {
			return Row{}, err
		}
		late[0], late[1] = append(late[0], o.latencies...), append(late[1], b.latencies...)
		ours, base = append(ours, o.ns), append(base, b.ns)
		ratio = append(ratio, b.ns/o.ns)
	}
	row := Row{
		Name: r.name, Baseline: r.baseline,
		NsPerEvent: median(ours), BaselineNs: median(base), Ratio: median(ratio),
		AllocsPerEvent: float64(allocs.mallocs) / float64(allocs.events),
	}
	if len(late[0]) > 0 {
		row.latencies(late[0], late[1])
	}
	row.EventsPerS = 1e9 / row.NsPerEvent
	return row, nil
}

// A figure is what one side did in one round.
type figure struct {
	ns        float64 // per event: the median over the round's iterations
	latencies []time.Duration
}

// round runs iterations until their clocks have run for the slice, and one at
// the least.
func round(s side, slice time.Duration) (figure, error) {
	runtime.GC() // neither side pays for the other's garbage
	var f figure
	var each []float64
	inside := time.Duration(0)
	for began := time.Now(); len(each) == 0 || inside < slice && time.Since(began) < wallFactor*slice; {
		var c clock
		if err := s(&c); err != nil {
			return figure{}, err
		}
		inside += c.elapsed
		each = append(each, c.nsPerEvent())
		f.latencies = append(f.latencies, c.samples...)
	}
	f.ns = median(each)
	return f, nil
}

// latencies sets the percentiles of all rounds.
func (r *Row) latencies(ours, base []time.Duration) {
	slices.Sort(ours)
	slices.Sort(base)
	at := func(s []time.Duration, q float64) float64 {
		return float64(s[min(len(s)-1, int(q*float64(len(s))))].Nanoseconds())
	}
	r.P50, r.P99, r.P999 = at(ours, 0.5), at(ours, 0.99), at(ours, 0.999)
	r.NsPerEvent, r.BaselineNs = r.P50, at(base, 0.5)
	r.Ratio = r.BaselineNs / r.NsPerEvent
}

func median(s []float64) float64 {
	s = slices.Sorted(slices.Values(s))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
