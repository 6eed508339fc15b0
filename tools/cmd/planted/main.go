// Command planted plants one fault at a time into the product and shows that a
// named test turns red by it (see package planted). It prints one line of JSON
// per fault and exits 1 when a fault was missed or says nothing.
//
//	go run ./cmd/planted [-list] [-dir FOLDER] [NAME...]
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
	"slices"
	"syscall"

	"github.com/penstock/penstock/tools/internal/repo"
	"github.com/penstock/penstock/tools/planted"
)

func main() {
	list := flag.Bool("list", false, "only list the faults")
	dir := flag.String("dir", "", "folder of the fault files (default tools/planted/faults)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *list, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "planted:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, list bool, names []string, w io.Writer) error {
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
	return plant(ctx, r, faults, w)
}

// plant runs the faults and writes their results.
func plant(ctx context.Context, r *repo.Repo, faults []planted.Fault, w io.Writer) error {
	temp, err := os.MkdirTemp("", "planted")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	runner := planted.NewRunner(r, temp)
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	bad := 0
	for _, f := range faults {
		result := runner.Run(ctx, f)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if result.Outcome != planted.Caught {
			bad++
		}
		if err := out.Encode(result); err != nil {
			return err
		}
	}
	if len(faults) == 0 {
		return errors.New("no faults")
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d faults were not caught", bad, len(faults))
	}
	return nil
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
