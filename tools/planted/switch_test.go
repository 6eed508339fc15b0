package planted

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// loops is a file whose functions have labels, no result, named results and
// type parameters.
const loops = `package p

const limit = 3

var seen int

func count(n int) (sum int) {
outer:
	for i := range n {
		for range i {
			sum++
			continue outer
		}
	}
	return
}

func note(n int) {
	if n > limit {
		return
	}
	seen += n
}

func first[T any](s []T) T { return s[0] }
`

const loopsTest = `package p

import "testing"

func TestCount(t *testing.T) {
	if count(3) != 2 {
		t.Error("wrong")
	}
}

func TestNote(t *testing.T) {
	seen = 0
	note(2)
	if seen != 2 {
		t.Error("wrong")
	}
}

func TestFirst(t *testing.T) {
	if first([]string{"a", "b"}) != "a" {
		t.Error("wrong")
	}
}
`

func TestFaultsOfAPackageShareABinary(t *testing.T) {
	r := module(t)
	for name, text := range map[string]string{"loops.go": loops, "loops_test.go": loopsTest} {
		if err := os.WriteFile(filepath.Join(r.Root, "p", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var faults []Fault
	fault := func(test, old, fresh string, more ...Edit) {
		file := "p/loops.go"
		if strings.Contains(old, "a + b") {
			file = "p/p.go"
		}
		edits := append([]Edit{{File: file, Old: old, New: fresh}}, more...)
		faults = append(faults, Fault{Name: fmt.Sprint("f", len(faults)), Claim: "c", Module: ".", Package: "./p", Test: test, Limit: 5 * time.Second, Edits: edits})
	}
	fault("TestSum", "a + b", "a - b")
	fault("TestSum", "return a + b", "return b")
	fault("TestCount", "sum++", "sum += 2")
	fault("TestCount", "continue outer", "break outer")
	fault("TestNote", "seen += n", "")
	fault("TestFirst", "return s[0]", "return s[1]")
	fault("TestCount", "range n", "range n", Edit{File: "p/p.go", Old: "a + b", New: "b + a"}) // missed
	fault("TestNote", "const limit = 3", "const limit = 1")                                    // not in a body
	fault("TestRed", "a + b", "b")
	fault("TestSum", "a + b", "a + c") // does not build

	runner := NewRunner(r, t.TempDir())
	if err := runner.Share(t.Context(), faults); err == nil || !strings.Contains(err.Error(), "undefined: c") {
		t.Errorf("Share with a fault that does not build: %v", err)
	}
	if err := runner.Share(t.Context(), faults[:9]); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		outcome string
		alone   bool
	}{{Caught, false}, {Caught, false}, {Caught, false}, {Caught, false}, {Caught, false}, {Caught, false}, {Missed, true}, {Caught, true}, {Invalid, true}, {Invalid, true}}
	for i, f := range faults {
		got := runner.Run(t.Context(), f)
		if got.Outcome != want[i].outcome || got.Alone != want[i].alone {
			t.Errorf("%s, %q: %+v", f.Test, f.Edits[0].New, got)
		}
	}
}

func TestFewFaultsAreNotWorthSwitches(t *testing.T) {
	r := module(t)
	f, err := Parse("sum", sample)
	if err != nil {
		t.Fatal(err)
	}
	runner := NewRunner(r, t.TempDir())
	if err := runner.Share(t.Context(), []Fault{f, f}); err != nil {
		t.Fatal(err)
	}
	if got := runner.Run(t.Context(), f); got.Outcome != Caught || !got.Alone {
		t.Errorf("%+v", got)
	}
}

// A fault that the switches leave out would be compiled alone, a hundred times
// slower: there is none today, and whoever adds one shall know.
func TestEveryFaultHasASwitch(t *testing.T) {
	faults, err := Load("faults")
	if err != nil {
		t.Fatal(err)
	}
	s := &switches{root: "../..", files: map[string]*switchedFile{}}
	for _, f := range faults {
		if err := s.add(f); errors.Is(err, errNotInBodies) {
			t.Errorf("%s %v", f.Name, err)
		} else if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}
