package planted

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// worthSwitches is from how many faults of a package on one binary with
// switches is compiled sooner than a binary for each of them.
const worthSwitches = 3

// switched is the binary with switches of a package's faults.
type switched struct {
	binary string
	passes map[string]error // by test: nil when it passes with no fault on
}

// errNoSwitch says that a fault is not in a binary with switches.
var errNoSwitch = errors.New("has no switch")

// Share compiles one test binary for the faults of one package, in which each
// can be turned on, and runs their tests with none on. Faults that are not
// shared, or whose Share has failed, are compiled one by one by Run.
func (r *Runner) Share(ctx context.Context, faults []Fault) error {
	if len(faults) < worthSwitches {
		return nil
	}
	m, err := r.repo.Module(faults[0].Module)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.dir, "switched")
	if err != nil {
		return err
	}
	all := &switches{root: r.repo.Root, files: map[string]*switchedFile{}}
	var tests []string
	shared := map[string]Fault{} // one of each test
	for _, f := range faults {
		if err := all.add(f); err == nil { // what is wrong with the others Run says
			tests = append(tests, f.Test)
			shared[f.Test] = f
		}
	}
	overlay, err := prune(filepath.Join(m.Dir, filepath.FromSlash(faults[0].Package)), dir, tests...)
	if err != nil {
		return err
	}
	files, err := all.write(dir)
	if err != nil {
		return err
	}
	for path, file := range files {
		overlay[path] = file
	}
	s := &switched{passes: map[string]error{}}
	if s.binary, err = r.build(ctx, m, faults[0], dir, overlay); err != nil {
		return err
	}
	for name, f := range shared {
		if how, err := r.test(ctx, m, f, s.binary, ""); err == nil {
			s.passes[name] = fmt.Errorf("%s fails (%s)", name, how)
		} else if !errors.Is(err, errPassed) {
			s.passes[name] = err
		} else {
			s.passes[name] = nil
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.switched[group(faults[0])] = s
	return nil
}

// group names the module and the package of a fault.
func group(f Fault) string { return f.Module + " " + f.Package }

// turnOn returns how the test failed with the fault turned on in the binary
// with switches. Any error means that the fault is to be planted alone.
func (r *Runner) turnOn(ctx context.Context, f Fault) (how string, err error) {
	r.mu.Lock()
	s := r.switched[group(f)]
	r.mu.Unlock()
	if s == nil {
		return "", errNoSwitch
	}
	if err, ok := s.passes[f.Test]; !ok || err != nil {
		return "", errors.Join(errNoSwitch, err)
	}
	m, err := r.repo.Module(f.Module)
	if err != nil {
		return "", err
	}
	return r.test(ctx, m, f, s.binary, f.Name)
}
