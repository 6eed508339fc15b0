package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"path/filepath"

	"github.com/penstock/penstock/tools/internal/repo"
)

// listed is a package as `go list -deps -test` gives it: a dependency stands
// before what imports it, and a package with tests comes once more with them.
type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	SFiles     []string // assembly
	CgoFiles   []string
	Standard   bool
	ForTest    string
	ImportMap  map[string]string // what stands in the source, if it means another package
	Module     *struct {
		Main      bool
		GoVersion string
	}
}

func (p *listed) own() bool { return p.Module != nil && p.Module.Main }

// typeCheck type-checks the packages of a module and their tests for a target,
// with everything that they import, from source: nothing has to be compiled
// for it. Own packages with assembly or cgo are refused, because for those it
// would not be enough.
func typeCheck(ctx context.Context, r *repo.Repo, m repo.Module, t target) error {
	out, err := r.Go(ctx, m, t.env(), "list", "-deps", "-test", "-json=ImportPath,Name,Dir,GoFiles,SFiles,CgoFiles,Standard,ForTest,ImportMap,Module", "./...")
	if err != nil {
		return err
	}
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	var errs []error
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return errors.Join(errs...)
		} else if err != nil {
			return fmt.Errorf("output of go list: %w", err)
		}
		if p.ImportPath == "unsafe" || p.Name == "main" && p.ForTest == "" && filepath.Ext(p.ImportPath) == ".test" {
			continue // the latter is what go test writes
		}
		if p.own() && len(p.SFiles)+len(p.CgoFiles) > 0 {
			errs = append(errs, fmt.Errorf("%s: it has assembly or cgo and must be compiled for %s/%s", p.ImportPath, t.os, t.arch))
		}
		pkg, err := p.check(known, t)
		if p.own() {
			errs = append(errs, err)
		}
		known[p.ImportPath] = pkg
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// check type-checks one package whose imports are known. The bodies of
// functions of other modules are left out.
func (p *listed) check(known map[string]*types.Package, t target) (*types.Package, error) {
	var errs []error
	note := func(err error) {
		if len(errs) < 10 {
			errs = append(errs, err)
		}
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			note(err)
			continue
		}
		files = append(files, f)
	}
	config := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if to, ok := p.ImportMap[path]; ok {
				path = to
			}
			if pkg := known[path]; pkg != nil {
				return pkg, nil
			}
			return nil, fmt.Errorf("package %s is not listed", path)
		}),
		Sizes:            types.SizesFor("gc", t.arch),
		IgnoreFuncBodies: !p.own(),
		FakeImportC:      true,
		Error:            note,
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		config.GoVersion = "go" + p.Module.GoVersion
	}
	pkg, _ := config.Check(p.ImportPath, set, files, nil) // its errors went to note
	return pkg, errors.Join(errs...)
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
