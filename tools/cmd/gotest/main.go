// Command gotest runs the tests of every module of the repository with the
// race detector and in random order, and makes sure that they ran: a package
// with test files that reported no result, or a test function that is in the
// source and did not run, is a failure. Skipped tests are listed with their
// reasons. The last line says how many tests passed and failed.
//
//	go run ./cmd/gotest [-short] [-race=false] [-run REGEXP] [-module DIR]
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/penstock/penstock/tools/internal/repo"
)

type options struct {
	race    bool
	short   bool
	run     string
	module  string
	timeout time.Duration
}

func main() {
	var o options
	flag.BoolVar(&o.race, "race", true, "use the race detector (needs a C compiler on linux and windows)")
	flag.BoolVar(&o.short, "short", false, "pass -short to the tests")
	flag.StringVar(&o.run, "run", "", "run only tests that match; nothing is demanded of the others")
	flag.StringVar(&o.module, "module", "", "test only the module in this folder, for example cmd/penstock")
	flag.DurationVar(&o.timeout, "timeout", 15*time.Minute, "limit of each test binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, w io.Writer) error {
	r, err := repo.Find(".")
	if err != nil {
		return err
	}
	if err := r.CheckReplaces(); err != nil {
		return err
	}
	modules := r.Modules
	if o.module != "" {
		m, err := r.Module(o.module)
		if err != nil {
			return err
		}
		modules = []repo.Module{m}
	}
	env := []string{"CGO_ENABLED=0"}
	if o.race {
		env = []string{"CGO_ENABLED=1"}
		if err := ensureCompiler(ctx, w); err != nil {
			return err
		}
	}
	start := time.Now()
	var all report
	for _, m := range modules {
		fmt.Fprintf(w, "== module %s\n", m.Path)
		err := testModule(ctx, r, m, env, o, &all, w)
		if err != nil {
			all.problems = append(all.problems, err.Error())
		}
	}
	all.summary(w, time.Since(start))
	if !all.ok() {
		return errors.New("tests failed")
	}
	return nil
}

// testModule runs the tests of one module and adds what came of them to all.
// An error means that the tests could not be run or that some did not run.
func testModule(ctx context.Context, r *repo.Repo, m repo.Module, env []string, o options, all *report, w io.Writer) error {
	packages, err := r.Packages(ctx, m, env...)
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return fmt.Errorf("%s: no packages", m.Path)
	}
	args := []string{"test", "-json", "-count=1", "-shuffle=on", "-timeout", o.timeout.String()}
	if o.race {
		args = append(args, "-race")
	}
	if o.short {
		args = append(args, "-short")
	}
	if o.run != "" {
		args = append(args, "-run", o.run)
	}
	cmd := r.Command(ctx, m, env, append(args, "./...")...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	results := newResults()
	readErr := results.read(out, w)
	if readErr != nil {
		_, _ = io.Copy(io.Discard, out) // the command must be able to end
	}
	waitErr := cmd.Wait()
	all.add(results)
	if readErr != nil {
		return fmt.Errorf("%s: output of go test: %w", m.Path, readErr)
	}
	var exit *exec.ExitError
	if waitErr != nil && (!errors.As(waitErr, &exit) || results.failedPackages() == 0) {
		return fmt.Errorf("%s: go test: %w\n%s", m.Path, waitErr, bytes.TrimSpace(errOut.Bytes()))
	}
	if o.run != "" {
		return nil
	}
	return missing(packages, results)
}
