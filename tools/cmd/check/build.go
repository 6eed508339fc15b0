package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/penstock/penstock/tools/internal/repo"
)

// target is a platform that penstock builds for.
type target struct {
	os, arch string
	compile  bool
}

// targets is the list of ADR 0001. Each system and each architecture is compiled
// and vetted once, by cross or by the other steps on linux/amd64; the tests of
// every target are type-checked.
var targets = []target{
	{"linux", "386", true}, {"darwin", "arm64", true}, {"windows", "amd64", true},
	{"linux", "amd64", false}, {"linux", "arm64", false}, {"darwin", "amd64", false}, {"windows", "arm64", false},
}

func (t target) env() []string {
	return []string{"GOOS=" + t.os, "GOARCH=" + t.arch, "CGO_ENABLED=0"}
}

// vet runs go vet in every module.
func vet(ctx context.Context, r *repo.Repo, _ io.Writer) error {
	var errs []error
	for _, m := range r.Modules {
		_, err := r.Go(ctx, m, []string{"CGO_ENABLED=0"}, "vet", "./...")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// lint builds the pinned staticcheck into bin/ and runs it in every module. The
// modules of go.work are read in one run, so that what they share is looked at
// once; the others as their own go.mod says.
func lint(ctx context.Context, r *repo.Repo, _ io.Writer) error {
	tools, err := r.Module("tools")
	if err != nil {
		return err
	}
	binary := filepath.Join(r.Root, "bin", "staticcheck")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	if _, err := r.Go(ctx, tools, []string{"CGO_ENABLED=0"}, "build", "-o", binary, "honnef.co/go/tools/cmd/staticcheck"); err != nil {
		return err
	}
	runs, err := lintRuns(ctx, r)
	if err != nil {
		return err
	}
	var errs []error
	for _, run := range runs {
		cmd := exec.CommandContext(ctx, binary, run.patterns...)
		cmd.Dir = run.dir
		cmd.Env = append(repo.Env(), "CGO_ENABLED=0", "GOWORK="+run.work)
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("staticcheck %s in %s: %w\n%s", strings.Join(run.patterns, " "), run.dir, err, bytes.TrimSpace(out)))
		}
	}
	return errors.Join(errs...)
}

// lintRun is one run of staticcheck.
type lintRun struct {
	dir, work string
	patterns  []string
}

// lintRuns covers every module once: those of go.work first and together.
func lintRuns(ctx context.Context, r *repo.Repo) ([]lintRun, error) {
	root, err := r.Module(".")
	if err != nil {
		return nil, err
	}
	together := lintRun{dir: r.Root, work: filepath.Join(r.Root, "go.work")}
	out, err := r.Go(ctx, root, nil, "work", "edit", "-json", together.work)
	if err != nil {
		return nil, err
	}
	var work struct{ Use []struct{ DiskPath string } }
	if err := json.Unmarshal(out, &work); err != nil {
		return nil, fmt.Errorf("output of go work edit: %w", err)
	}
	in := map[string]bool{}
	for _, u := range work.Use {
		in[path.Clean(u.DiskPath)] = true
	}
	var runs []lintRun
	for _, m := range r.Modules {
		if in[m.Rel] {
			together.patterns = append(together.patterns, "./"+path.Join(m.Rel, "..."))
			continue
		}
		runs = append(runs, lintRun{dir: m.Dir, work: "off", patterns: []string{"./..."}})
	}
	if len(together.patterns) > 0 {
		runs = append([]lintRun{together}, runs...)
	}
	return runs, nil
}

// cross compiles and vets, or type-checks, for every target, tests included. The
// modules tools and bench are left out: they run where penstock is developed,
// not where it is used.
func cross(ctx context.Context, r *repo.Repo, w io.Writer) error {
	tasks := make([]task, len(targets))
	for i, t := range targets {
		tasks[i] = task{"cross " + t.os + "/" + t.arch, func() error {
			if err := crossTarget(ctx, r, t); err != nil {
				return fmt.Errorf("%s/%s: %w", t.os, t.arch, err)
			}
			return nil
		}}
	}
	return beside(w, tasks)
}

func crossTarget(ctx context.Context, r *repo.Repo, t target) error {
	var errs []error
	for _, m := range r.Modules {
		switch {
		case m.Rel == "tools" || m.Rel == "bench":
		case t.compile:
			errs = append(errs, compile(ctx, r, m, t))
		default:
			errs = append(errs, typeCheck(ctx, r, m, t))
		}
	}
	return errors.Join(errs...)
}

// compile vets a module with its tests, which compiles what they import,
// compiles the packages that nobody imports, and links its own program. The
// examples are programs that a user would copy: they are vetted and not
// compiled.
func compile(ctx context.Context, r *repo.Repo, m repo.Module, t target) error {
	_, vetErr := r.Go(ctx, m, t.env(), "vet", "./...")
	packages, err := r.Packages(ctx, m, t.env()...)
	if err != nil {
		return errors.Join(vetErr, err)
	}
	args := []string{"build"}
	if m.Rel != "." { // a program, which is linked too
		dir, err := os.MkdirTemp("", "cross")
		if err != nil {
			return errors.Join(vetErr, err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		args = append(args, "-o", dir+string(filepath.Separator))
	}
	for _, p := range packages {
		if p.Name != "main" || m.Rel != "." {
			args = append(args, p.ImportPath)
		}
	}
	_, buildErr := r.Go(ctx, m, t.env(), args...)
	return errors.Join(vetErr, buildErr)
}
