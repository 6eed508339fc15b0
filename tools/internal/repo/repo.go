// Package repo knows the shape of the repository: its root, its modules and
// their packages, and how the go command is run in them.
//
// Every go command runs with GOWORK=off, so that each module is built by what
// its own go.mod says, and with a GOFLAGS of our own, so that the result does
// not depend on the settings of the machine.
package repo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// RootModule is the path of the module at the root of the repository.
const RootModule = "github.com/penstock/penstock"

// Repo is a checkout of the repository.
type Repo struct {
	Root    string   // absolute path
	Modules []Module // the root module first, then by folder
}

// Module is one go.mod of the repository.
type Module struct {
	Path string // module path
	Dir  string // absolute
	Rel  string // relative to the root, slash-separated, "." for the root module
}

// Package is what `go list` says about a package, as far as the checks need it.
type Package struct {
	ImportPath   string
	Dir          string
	Name         string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// HasTests reports whether the package has a test file.
func (p Package) HasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// Find returns the repository that holds dir: the nearest folder upwards whose
// go.mod is that of the root module.
func Find(dir string) (*Repo, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for at := dir; ; at = filepath.Dir(at) {
		path, err := modulePath(filepath.Join(at, "go.mod"))
		if err == nil && path == RootModule {
			return load(at)
		}
		if filepath.Dir(at) == at {
			return nil, fmt.Errorf("no go.mod of %s in %s or above", RootModule, dir)
		}
	}
}

// load lists the modules below root. Folders that the go command ignores
// (testdata, names with a leading dot or underscore) are left out.
func load(root string) (*Repo, error) {
	r := &Repo{Root: root}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && Ignored(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Name() != "go.mod" {
			return nil
		}
		name, err := modulePath(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		r.Modules = append(r.Modules, Module{Path: name, Dir: filepath.Dir(path), Rel: filepath.ToSlash(rel)})
		return nil
	})
	slices.SortFunc(r.Modules, func(a, b Module) int { return strings.Compare(a.Rel, b.Rel) })
	return r, err
}

// Ignored reports whether the go command passes over a folder of that name.
func Ignored(name string) bool {
	return name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func modulePath(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.Trim(strings.TrimSpace(name), `"`), nil
		}
	}
	return "", fmt.Errorf("%s: no module line", file)
}

// Module returns the module at rel (slash-separated, "." for the root module).
func (r *Repo) Module(rel string) (Module, error) {
	for _, m := range r.Modules {
		if m.Rel == rel {
			return m, nil
		}
	}
	return Module{}, fmt.Errorf("no module in %q", rel)
}

// CheckReplaces returns an error that names every module other than the root's
// whose go.mod does not replace the root module by a folder of this checkout:
// such a module would be tested against some published version.
func (r *Repo) CheckReplaces() error {
	var errs []error
	for _, m := range r.Modules {
		if m.Rel == "." {
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.Dir, "go.mod"))
		if err != nil {
			return err
		}
		if !replacesRoot(string(data), m.Rel) {
			up := strings.TrimSuffix(strings.Repeat("../", strings.Count(m.Rel, "/")+1), "/")
			errs = append(errs, fmt.Errorf("%s/go.mod: no line `replace %s => %s`", m.Rel, RootModule, up))
		}
	}
	return errors.Join(errs...)
}

func replacesRoot(gomod, rel string) bool {
	for line := range strings.Lines(gomod) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "replace "))
		if len(words) >= 3 && words[0] == RootModule && words[1] == "=>" && filepath.ToSlash(filepath.Join(rel, words[2])) == "." {
			return true
		}
	}
	return false
}

// Packages lists the packages of a module.
func (r *Repo) Packages(ctx context.Context, m Module, env ...string) ([]Package, error) {
	out, err := r.Go(ctx, m, env, "list", "-json=ImportPath,Dir,Name,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	if err != nil {
		return nil, err
	}
	var list []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p Package
		if err := dec.Decode(&p); err == io.EOF {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("output of go list: %w", err)
		}
		list = append(list, p)
	}
}

// Command prepares the go command in a module, with env added to the
// environment. The caller sets its outputs and runs it.
func (r *Repo) Command(ctx context.Context, m Module, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.Dir
	cmd.Env = append(Env(), env...)
	return cmd
}

// Go runs the go command in a module and returns what it wrote to standard
// output. The error holds what it wrote to standard error.
func (r *Repo) Go(ctx context.Context, m Module, env []string, args ...string) ([]byte, error) {
	cmd := r.Command(ctx, m, env, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), m.Rel, err, bytes.TrimSpace(errOut.Bytes()))
	}
	return out.Bytes(), nil
}

// fixed are the settings under which every check runs.
var fixed = []string{"GOWORK=off", "GOFLAGS=-buildvcs=false", "GOOS=", "GOARCH=", "GOEXPERIMENT=", "GODEBUG="}

// Env returns the environment of this process with our settings in place of
// those of the machine.
func Env() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc(fixed, func(f string) bool {
			return strings.HasPrefix(v, f[:strings.IndexByte(f, '=')+1])
		})
	})
	return append(env, fixed...)
}
