package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/tools/internal/repo"
)

// missing compares what stands in the source with what ran. It returns an
// error that names each package with test files that reported no end, and
// each test function that did not run in a package that passed.
func missing(packages []repo.Package, r *results) error {
	var errs []error
	for _, p := range packages {
		if !p.HasTests() {
			continue
		}
		outcome, ended := r.outcome[testKey{p.ImportPath, ""}]
		switch {
		case !ended:
			errs = append(errs, fmt.Errorf("%s: its tests did not run", p.ImportPath))
			continue
		case outcome == "fail":
			continue // already reported; tests after a panic cannot run
		}
		names, err := testFunctions(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, name := range names {
			if _, ran := r.outcome[testKey{p.ImportPath, name}]; !ran {
				errs = append(errs, fmt.Errorf("%s: %s did not run", p.ImportPath, name))
			}
		}
	}
	return errors.Join(errs...)
}

// testFunctions returns the names of the tests, fuzz targets and examples
// with output of a package, as `go test` chooses them.
func testFunctions(p repo.Package) ([]string, error) {
	var names []string
	for _, file := range append(append([]string{}, p.TestGoFiles...), p.XTestGoFiles...) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		names = append(names, functionsOf(f)...)
	}
	return names, nil
}

func functionsOf(f *ast.File) []string {
	var names []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Name.Name == "TestMain" && takes(fn, "M") {
			continue
		}
		if isTest(fn.Name.Name, "Test") && takes(fn, "T") || isTest(fn.Name.Name, "Fuzz") && takes(fn, "F") {
			names = append(names, fn.Name.Name)
		}
	}
	for _, e := range doc.Examples(f) {
		if e.Output != "" || e.EmptyOutput {
			names = append(names, "Example"+e.Name)
		}
	}
	return names
}

// isTest reports whether the name is the prefix alone, or goes on with
// anything but a lower-case letter.
func isTest(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	first, _ := utf8.DecodeRuneInString(rest)
	return rest == "" || !unicode.IsLower(first)
}

// takes reports whether the only parameter of fn is a pointer to testing.kind.
func takes(fn *ast.FuncDecl, kind string) bool {
	params := fn.Type.Params.List
	if len(params) != 1 || len(params[0].Names) > 1 {
		return false
	}
	star, ok := params[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	switch x := star.X.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name == kind
	case *ast.Ident:
		return x.Name == kind
	}
	return false
}
