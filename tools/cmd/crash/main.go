// Command crash runs the demo under kill -9 many times in a row with different
// seeds and judges every run. It prints one line of JSON per run.
//
//	go run ./cmd/crash -binary FILE [-seeds 20] [-first 1] [-for 15s] [-crashes 5]
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
	"path/filepath"
	"time"

	"github.com/penstock/penstock/tools/internal/verdict"
)

// line is what is printed for one run.
type line struct {
	Seed    uint64          `json:"seed"`
	OK      bool            `json:"ok"`
	Error   string          `json:"error,omitempty"`
	Verdict verdict.Verdict `json:"verdict"`
	Seconds float64         `json:"seconds"`
}

func main() {
	var r verdict.Run
	flag.StringVar(&r.Binary, "binary", "", "the binary; required")
	flag.DurationVar(&r.For, "for", 15*time.Second, "how long each run produces")
	flag.IntVar(&r.Crashes, "crashes", 5, "kills per run")
	flag.Float64Var(&r.Rate, "rate", 0, "events per second; 0 leaves the demo's own")
	flag.Uint64Var(&r.Seed, "first", 1, "seed of the first run; each run takes the next")
	seeds := flag.Int("seeds", 20, "number of runs")
	flag.Parse()
	r.Args = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, r, *seeds, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, r verdict.Run, n int, w io.Writer) error {
	if r.Binary == "" || n < 1 {
		return errors.New("-binary is required and -seeds must be positive")
	}
	var err error
	if r.Binary, err = filepath.Abs(r.Binary); err != nil {
		return err
	}
	out := json.NewEncoder(w)
	bad := 0
	for range n {
		start := time.Now()
		v, err := r.Do(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l := line{Seed: r.Seed, OK: err == nil, Verdict: v, Seconds: time.Since(start).Round(time.Millisecond).Seconds()}
		if err != nil {
			l.Error = err.Error()
			bad++
		}
		if err := out.Encode(l); err != nil {
			return err
		}
		r.Seed++
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d runs failed", bad, n)
	}
	return nil
}
