// Command fuzz finds every fuzz target of the repository and runs each for a
// while, one after the other.
//
//	go run ./cmd/fuzz [-time 10s] [-run REGEXP]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/penstock/penstock/tools/internal/repo"
)

// target is one fuzz target.
type target struct {
	module repo.Module
	pkg    string // import path
	name   string
}

func main() {
	limit := flag.Duration("time", 10*time.Second, "how long each target runs")
	match := flag.String("run", "", "only targets whose package and name match")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *limit, *match, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, limit time.Duration, match string, w io.Writer) error {
	wanted, err := regexp.Compile(match)
	if err != nil {
		return err
	}
	r, err := repo.Find(".")
	if err != nil {
		return err
	}
	targets, err := find(ctx, r)
	if err != nil {
		return err
	}
	var errs []error
	n := 0
	for _, t := range targets {
		if !wanted.MatchString(t.pkg + " " + t.name) {
			continue
		}
		n++
		start := time.Now()
		_, err := r.Go(ctx, t.module, []string{"CGO_ENABLED=0"}, "test", "-run=^$", "-fuzz=^"+t.name+"$", "-fuzztime="+limit.String(), t.pkg)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		word := "ok  "
		if err != nil {
			word = "FAIL"
			errs = append(errs, err)
		}
		fmt.Fprintf(w, "%s %s %s %s\n", word, t.pkg, t.name, time.Since(start).Round(100*time.Millisecond))
	}
	if n == 0 {
		return errors.New("no fuzz target found")
	}
	return errors.Join(errs...)
}

// find returns the fuzz targets of every module, in the order of the packages.
func find(ctx context.Context, r *repo.Repo) ([]target, error) {
	var targets []target
	for _, m := range r.Modules {
		packages, err := r.Packages(ctx, m)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			for _, file := range append(append([]string{}, p.TestGoFiles...), p.XTestGoFiles...) {
				names, err := fuzzFunctions(filepath.Join(p.Dir, file))
				if err != nil {
					return nil, err
				}
				for _, name := range names {
					targets = append(targets, target{module: m, pkg: p.ImportPath, name: name})
				}
			}
		}
	}
	return targets, nil
}

func fuzzFunctions(file string) ([]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
			names = append(names, fn.Name.Name)
		}
	}
	return names, nil
}
