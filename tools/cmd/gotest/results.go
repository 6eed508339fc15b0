package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	FailedBuild string
}

// testKey names a test, or with an empty test a package.
type testKey struct{ pkg, test string }

// results is what the events of one `go test` run said.
type results struct {
	outcome map[testKey]string // pass, fail or skip
	output  map[testKey][]string
	order   []testKey // in the order of their end
}

func newResults() *results {
	return &results{outcome: map[testKey]string{}, output: map[testKey][]string{}}
}

// read takes events until the end and writes the closing line of each package,
// the output of tests that failed, and what the compiler said, to w.
func (r *results) read(in io.Reader, w io.Writer) error {
	for dec := json.NewDecoder(in); ; {
		var e event
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r.take(e, w)
	}
}

func (r *results) take(e event, w io.Writer) {
	key := testKey{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "output":
		if e.Test == "" && isClosing(e.Output) {
			fmt.Fprint(w, e.Output)
			return
		}
		r.output[key] = append(r.output[key], e.Output)
	case "pass", "fail", "skip":
		r.outcome[key] = e.Action
		r.order = append(r.order, key)
		if e.Action == "fail" {
			fmt.Fprint(w, strings.Join(r.output[key], ""))
		}
		if e.Action == "fail" && e.Test == "" {
			r.writeUnfinished(e.Package, w)
		}
		if e.Action != "skip" {
			delete(r.output, key)
		}
	}
}

// unfinishedMax bounds what is shown of a test that did not end: the last of
// it, where the stacks stand.
const unfinishedMax = 64 << 10

// writeUnfinished writes what was printed in the name of tests of a failed
// package and not shown yet. `go test` files the panic of a test binary, and all
// stacks when it ran out of time, under the test that printed last, which never
// ends then, or has ended before.
func (r *results) writeUnfinished(pkg string, w io.Writer) {
	var tests []string
	for key := range r.output {
		if key.pkg == pkg && key.test != "" && r.outcome[key] != "skip" {
			tests = append(tests, key.test)
		}
	}
	slices.Sort(tests)
	for _, test := range tests {
		key := testKey{pkg, test}
		text := strings.Join(r.output[key], "")
		delete(r.output, key)
		fmt.Fprintf(w, "--- UNFINISHED: %s %s\n", pkg, test)
		if left := len(text) - unfinishedMax; left > 0 {
			fmt.Fprintf(w, "(%d bytes left out)\n", left)
			text = text[left:]
		}
		fmt.Fprint(w, text)
	}
}

// isClosing reports whether a line of a package's output is the one that sums
// it up.
func isClosing(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "?   \t")
}

func (r *results) failedPackages() int {
	n := 0
	for key, outcome := range r.outcome {
		if key.test == "" && outcome == "fail" {
			n++
		}
	}
	return n
}

// reason returns what a skipped test gave as its reason.
func (r *results) reason(key testKey) string {
	var text []string
	for _, line := range r.output[key] {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		text = append(text, line)
	}
	return strings.Join(text, " ")
}

// report sums up the results of several modules.
type report struct {
	passed, failed, packages int
	failures, skips          []string
	problems                 []string
}

func (p *report) add(r *results) {
	for _, key := range r.order {
		outcome := r.outcome[key]
		if key.test == "" {
			p.packages++
			if outcome == "fail" {
				p.failures = append(p.failures, key.pkg)
			}
			continue
		}
		switch outcome {
		case "pass":
			p.passed++
		case "fail":
			p.failed++
			p.failures = append(p.failures, key.pkg+" "+key.test)
		case "skip":
			reason := r.reason(key)
			if reason == "" {
				p.problems = append(p.problems, fmt.Sprintf("%s %s was skipped without a reason", key.pkg, key.test))
			}
			p.skips = append(p.skips, fmt.Sprintf("%s %s: %s", key.pkg, key.test, reason))
		}
	}
}

func (p *report) ok() bool { return len(p.failures) == 0 && len(p.problems) == 0 }

func (p *report) summary(w io.Writer, took time.Duration) {
	for _, s := range p.skips {
		fmt.Fprintln(w, "NOT RUN", s)
	}
	slices.Sort(p.failures)
	for _, f := range p.failures {
		fmt.Fprintln(w, "FAILED", f)
	}
	for _, problem := range p.problems {
		fmt.Fprintln(w, "PROBLEM", problem)
	}
	fmt.Fprintf(w, "%d packages, %d skipped, %d problems, %s\n", p.packages, len(p.skips), len(p.problems), took.Round(time.Second))
	fmt.Fprintf(w, "%d passed, %d failed\n", p.passed, p.failed)
}
