// Command planted plants faults into the product, each for itself, and shows
// that a named test turns red by it (see package planted). It prints one line
// of JSON per fault and exits 1 when a fault was missed or says nothing.
//
//	go run ./cmd/planted [-list] [-p N] [-dir FOLDER] [NAME...]
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
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/penstock/penstock/tools/internal/repo"
	"github.com/penstock/penstock/tools/planted"
)

func main() {
	list := flag.Bool("list", false, "only list the faults")
	dir := flag.String("dir", "", "folder of the fault files (default tools/planted/faults)")
	beside := flag.Int("p", runtime.NumCPU(), "how many faults are tried at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *list, *beside, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, list bool, beside int, names []string, w io.Writer) error {
	r, err := repo.Find(".")
	if err != nil {
		return err
	}
	if dir == "" {
		dir = filepath.Join(r.Root, "tools", "planted", "faults")
	}
	faults, err := planted.Load(dir)
	if err != nil {
		return err
	}
	if faults, err = choose(faults, names); err != nil {
		return err
	}
	if list {
		for _, f := range faults {
			fmt.Fprintf(w, "%-40s %s %s\n", f.Name, f.Package, f.Test)
		}
		return nil
	}
	return plant(ctx, r, faults, beside, w)
}

// plant compiles the faults of each package, runs those of one test one after
// the other and the tests beside each other, and writes each result when it is
// there.
func plant(ctx context.Context, r *repo.Repo, faults []planted.Fault, beside int, w io.Writer) error {
	if len(faults) == 0 {
		return errors.New("no faults")
	}
	temp, err := os.MkdirTemp("", "planted")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	runner := planted.NewRunner(r, temp)
	each(ctx, beside, by(faults, func(f planted.Fault) string { return f.Module + " " + f.Package }), func(g []planted.Fault) {
		if err := runner.Share(ctx, g); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "planted: %s: its faults are compiled one by one: %v\n", g[0].Package, err)
		}
	})
	results := make(chan planted.Result, len(faults))
	go func() { // ends with the faults or ctx; the report below waits for it
		defer close(results)
		each(ctx, beside, by(faults, func(f planted.Fault) string { return f.Key() }), func(g []planted.Fault) {
			for _, f := range g {
				if result := runner.Run(ctx, f); ctx.Err() == nil {
					results <- result
				}
			}
		})
	}()
	bad, err := report(results, w)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case bad > 0:
		return fmt.Errorf("%d of %d faults were not caught", bad, len(faults))
	}
	return nil
}

// each calls f for every group, for several at a time, until all are done or
// ctx has ended.
func each(ctx context.Context, beside int, groups [][]planted.Fault, f func([]planted.Fault)) {
	work := make(chan []planted.Fault, len(groups))
	for _, g := range groups {
		work <- g
	}
	close(work)
	var running sync.WaitGroup
	for range min(max(1, beside), len(groups)) {
		running.Go(func() { // ends with the work or ctx; waited for by the next
			for g := range work {
				if ctx.Err() != nil {
					return
				}
				f(g)
			}
		})
	}
	running.Wait()
}

// report writes the results until there are no more, and counts those that are
// not as they should be.
func report(results <-chan planted.Result, w io.Writer) (bad int, err error) {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for result := range results {
		if result.Outcome != planted.Caught {
			bad++
		}
		err = errors.Join(err, out.Encode(result))
	}
	return bad, err
}

// by puts the faults with the same key together. Those of packages with more
// faults come first, so that the long ones do not stand at the end.
func by(faults []planted.Fault, key func(planted.Fault) string) [][]planted.Fault {
	var groups [][]planted.Fault
	at := map[string]int{}
	in := map[string]int{}
	for _, f := range faults {
		in[f.Package]++
		i, ok := at[key(f)]
		if !ok {
			i = len(groups)
			at[key(f)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	slices.SortStableFunc(groups, func(a, b []planted.Fault) int { return in[b[0].Package] - in[a[0].Package] })
	return groups
}

// choose returns the faults with the given names, all for no names.
func choose(faults []planted.Fault, names []string) ([]planted.Fault, error) {
	if len(names) == 0 {
		return faults, nil
	}
	var chosen []planted.Fault
	for _, name := range names {
		i := slices.IndexFunc(faults, func(f planted.Fault) bool { return f.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no fault %q", name)
		}
		chosen = append(chosen, faults[i])
	}
	return chosen, nil
}
