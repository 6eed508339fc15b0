package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/penstock/penstock/tools/internal/repo"
)

// target is a platform that penstock builds for.
type target struct{ os, arch string }

// targets is the list of ADR 0001.
var targets = []target{
	{"linux", "amd64"}, {"linux", "arm64"}, {"linux", "386"},
	{"darwin", "amd64"}, {"darwin", "arm64"},
	{"windows", "amd64"}, {"windows", "arm64"},
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

// lint builds the pinned staticcheck into bin/ and runs it in every module.
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
	var errs []error
	for _, m := range r.Modules {
		cmd := exec.CommandContext(ctx, binary, "./...")
		cmd.Dir = m.Dir
		cmd.Env = append(repo.Env(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("module %s: %w\n%s", m.Path, err, bytes.TrimSpace(out)))
		}
	}
	return errors.Join(errs...)
}

// cross builds and vets, tests included, for every target. The modules tools and
// bench are left out: they run where penstock is developed, not where it is used.
func cross(ctx context.Context, r *repo.Repo, w io.Writer) error {
	var errs []error
	for _, t := range targets {
		start := time.Now()
		n := len(errs)
		for _, m := range r.Modules {
			if m.Rel == "tools" || m.Rel == "bench" {
				continue
			}
			for _, args := range [][]string{{"build", "-o", os.DevNull, "./..."}, {"vet", "./..."}} {
				if _, err := r.Go(ctx, m, t.env(), args...); err != nil {
					errs = append(errs, fmt.Errorf("%s/%s: %w", t.os, t.arch, err))
				}
			}
		}
		word := "ok  "
		if len(errs) > n {
			word = "FAIL"
		}
		fmt.Fprintf(w, "%s cross    %s %s\n", word, strings.Join([]string{t.os, t.arch}, "/"), time.Since(start).Round(100*time.Millisecond))
	}
	return errors.Join(errs...)
}
