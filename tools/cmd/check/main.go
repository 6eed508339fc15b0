// Command check runs the checks that need no test to run:
//
//	go run ./cmd/check format vet lint cross
//
// format compares every Go file with what gofmt would write; vet and lint run
// go vet and the staticcheck that tools/go.mod pins, in every module; cross
// builds and vets every module that users build, for every platform that
// penstock supports (ADR 0001). Without arguments all of them run. It works
// offline once the modules are downloaded.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/penstock/penstock/tools/internal/repo"
)

// step is one check.
type step struct {
	name string
	run  func(ctx context.Context, r *repo.Repo, w io.Writer) error
}

var steps = []step{
	{"format", checkFormat},
	{"vet", vet},
	{"lint", lint},
	{"cross", cross},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, w io.Writer) error {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	r, err := repo.Find(".")
	if err != nil {
		return err
	}
	if err := r.CheckReplaces(); err != nil {
		return err
	}
	var errs []error
	for _, s := range chosen {
		start := time.Now()
		if err := s.run(ctx, r, w); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
			fmt.Fprintf(w, "FAIL %-8s %s\n", s.name, time.Since(start).Round(100*time.Millisecond))
			continue
		}
		fmt.Fprintf(w, "ok   %-8s %s\n", s.name, time.Since(start).Round(100*time.Millisecond))
	}
	return errors.Join(errs...)
}

// choose returns the steps with the given names, all for no names.
func choose(names []string) ([]step, error) {
	if len(names) == 0 {
		return steps, nil
	}
	var chosen []step
	for _, name := range names {
		n := len(chosen)
		for _, s := range steps {
			if s.name == name {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == n {
			return nil, fmt.Errorf("%q is not one of format, vet, lint, cross", strings.TrimLeft(name, "-"))
		}
	}
	return chosen, nil
}
