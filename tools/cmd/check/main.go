// Command check runs the checks that need no test to run:
//
//	go run ./cmd/check format vet lint cross
//
// format compares every Go file with what gofmt would write; vet and lint run
// go vet and the staticcheck that tools/go.mod pins, in every module; cross
// compiles and vets, or type-checks with all tests, every module that users
// build, for every platform that penstock supports (ADR 0001). Without arguments
// all of them run, two at a time. It works offline once the modules are
// downloaded.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

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
	out := &shared{w: w}
	tasks := make([]task, len(chosen))
	for i, s := range chosen {
		tasks[i] = task{s.name, func() error { return s.run(ctx, r, out) }}
	}
	return beside(out, tasks)
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
