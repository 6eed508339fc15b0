// Command slowgroup shows what a slow consumer group costs the others: paced
// events go through a topic in memory to several groups, with and without one
// that is a hundred times slower than the producer, in turns. It prints one
// line of JSON: the latencies of the fast groups from when each event was due
// to when its handler was called, the ratio of the 99th percentiles round by
// round, the memory, and what Stats says about the slow group. It exits with 1
// when the median ratio is above the goal or memory is not bounded by what the
// slow group has not read.
//
//	go run ./cmd/slowgroup [-events 1000000] [-rate 100000] [-groups 8] [-slower 100] [-rounds 7]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/measure"
)

// ratioMax is how much the 99th percentile of the fast groups may grow by the
// slow one.
const ratioMax = 1.5

// plan is what is run.
type plan struct {
	Events     int `json:"events"` // per run; the capacity, too
	Rate       int `json:"rate"`   // events per second
	Groups     int `json:"groups"` // with the slow one
	Slower     int `json:"slower"` // the slow group handles rate/slower
	Rounds     int `json:"rounds"` // each is a run with and one without the slow group
	EventBytes int `json:"event_bytes"`
}

func (p *plan) validate() error {
	for name, n := range map[string]int{"events": p.Events, "rate": p.Rate, "slower": p.Slower, "rounds": p.Rounds} {
		if n < 1 {
			return fmt.Errorf("-%s %d: want at least 1", name, n)
		}
	}
	if p.Groups < 2 || p.Groups > 64 {
		return fmt.Errorf("-groups %d: want 2 to 64", p.Groups)
	}
	return nil
}

// report is the line that is printed.
type report struct {
	plan
	P99Without []float64 `json:"p99_us_without"` // per round
	P99With    []float64 `json:"p99_us_with"`
	P50Without float64   `json:"p50_us_without"` // median of the rounds
	P50With    float64   `json:"p50_us_with"`
	Ratio      spread    `json:"p99_ratio"` // with over without, by round
	RatioMax   float64   `json:"p99_ratio_goal"`

	HeapStart   float64 `json:"heap_mib_start"`
	HeapWithout float64 `json:"heap_mib_max_without"`
	HeapWith    float64 `json:"heap_mib_max_with"`
	HeapBound   float64 `json:"heap_mib_bound_with"` // what the slow group keeps, and a quarter, and slack
	HeapEnd     float64 `json:"heap_mib_end"`

	Slow    slowState        `json:"slow_group"` // at the end of the last run
	Held    bool             `json:"held"`
	Broken  string           `json:"broken,omitempty"`
	Machine *measure.Machine `json:"machine"`
	Date    string           `json:"date"`
}

type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func main() {
	p := plan{EventBytes: eventBytes}
	flag.IntVar(&p.Events, "events", 1_000_000, "events per run, and the topic's capacity")
	flag.IntVar(&p.Rate, "rate", 100_000, "events per second")
	flag.IntVar(&p.Groups, "groups", 8, "groups, the slow one among them")
	flag.IntVar(&p.Slower, "slower", 100, "the slow group handles 1/slower of the rate")
	flag.IntVar(&p.Rounds, "rounds", 7, "runs with and without the slow group")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, p, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "slowgroup:", err)
		os.Exit(1)
	}
}

// run runs the plan and prints its report.
func run(ctx context.Context, p plan, w io.Writer) error {
	if err := p.validate(); err != nil {
		return err
	}
	warm := p
	warm.Events = min(p.Events, p.Rate/2+1)
	if _, err := one(ctx, warm, true); err != nil {
		return err
	}
	r := report{plan: p, RatioMax: ratioMax, Machine: measure.This(), Date: time.Now().UTC().Format(time.RFC3339)}
	r.HeapStart = settledHeap()
	var p50 [2][]float64
	for round := range p.Rounds {
		for turn := range 2 {
			slow := (round+turn)%2 == 1 // who begins alternates
			o, err := one(ctx, p, slow)
			if err != nil {
				return fmt.Errorf("round %d, with the slow group %v: %w", round+1, slow, err)
			}
			r.add(o, slow)
			if slow {
				p50[1] = append(p50[1], o.p50)
			} else {
				p50[0] = append(p50[0], o.p50)
			}
		}
	}
	r.HeapEnd = settledHeap()
	r.P50Without, r.P50With = measure.Median(p50[0]), measure.Median(p50[1])
	r.Ratio = spread(measure.Ratio(r.P99With, r.P99Without))
	r.judge()
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return err
	}
	if !r.Held {
		return errors.New(r.Broken)
	}
	return nil
}

func (r *report) add(o outcome, slow bool) {
	if !slow {
		r.P99Without = append(r.P99Without, o.p99)
		r.HeapWithout = max(r.HeapWithout, o.heapMax)
		return
	}
	r.P99With = append(r.P99With, o.p99)
	r.HeapWith = max(r.HeapWith, o.heapMax)
	r.HeapBound = max(r.HeapBound, r.HeapStart+1.25*mib(o.slow.Lag*uint64(r.EventBytes))+slackMiB)
	r.Slow = o.slow
}

// slackMiB is what the heap may grow by segments in use, goroutines and garbage.
const slackMiB = 16

func (r *report) judge() {
	var broken error
	if r.Ratio.Median > r.RatioMax {
		broken = errors.Join(broken, fmt.Errorf("the fast groups' p99 is %.2f times as long beside the slow group, want at most %.2f", r.Ratio.Median, r.RatioMax))
	}
	for _, h := range []struct {
		what      string
		is, limit float64
	}{
		{"without the slow group", r.HeapWithout, r.HeapStart + slackMiB},
		{"with it", r.HeapWith, r.HeapBound},
		{"in the end", r.HeapEnd, r.HeapStart + slackMiB/2},
	} {
		if h.is > h.limit {
			broken = errors.Join(broken, fmt.Errorf("the heap %s is %.1f MiB, want at most %.1f", h.what, h.is, h.limit))
		}
	}
	if r.Held = broken == nil; !r.Held {
		r.Broken = broken.Error()
	}
}
