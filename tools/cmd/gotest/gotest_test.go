package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/tools/internal/repo"
)

func TestMain(m *testing.M) { leak.Main(m) }

const sample = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestC","Output":"    a_test.go:9: not root\n"}
{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p","Elapsed":0.1}
`

func TestResultsAreCountedAndFailuresShown(t *testing.T) {
	var out bytes.Buffer
	r := newResults()
	if err := r.read(strings.NewReader(sample), &out); err != nil {
		t.Fatal(err)
	}
	var all report
	all.add(r)
	all.summary(&out, time.Second)
	if all.ok() {
		t.Error("a failed test counts as ok")
	}
	for _, want := range []string{"a_test.go:7: wrong", "FAIL\tp\t0.1s", "NOT RUN p TestC: a_test.go:9: not root", "FAILED p TestA"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if !strings.HasSuffix(out.String(), "\n1 passed, 1 failed\n") {
		t.Errorf("last line of:\n%s", out.String())
	}
}

func TestASkipWithoutAReasonIsAProblem(t *testing.T) {
	r := newResults()
	if err := r.read(strings.NewReader(`{"Action":"skip","Package":"p","Test":"TestC"}`), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	var all report
	if all.add(r); all.ok() {
		t.Error("a silent skip counts as ok")
	}
}

func TestTestsThatDidNotRunAreNamed(t *testing.T) {
	dir := t.TempDir()
	source := `package p

func TestMain(m *testing.M) {}
func TestRan(t *testing.T)  {}
func TestLost(t *testing.T) {}
func Testing()              {}
func FuzzLost(f *testing.F) {}
func helper(t *testing.T)   {}

func ExampleLost() {
	// Output: 1
}

func ExampleCompiledOnly() {}
`
	if err := os.WriteFile(filepath.Join(dir, "p_test.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	packages := []repo.Package{
		{ImportPath: "p", Dir: dir, TestGoFiles: []string{"p_test.go"}},
		{ImportPath: "q", Dir: dir, TestGoFiles: []string{"p_test.go"}},
		{ImportPath: "r", Dir: dir},
	}
	r := newResults()
	r.outcome[testKey{"p", ""}] = "pass"
	r.outcome[testKey{"p", "TestRan"}] = "pass"
	err := missing(packages, r)
	if err == nil {
		t.Fatal("nothing is missing")
	}
	want := "p: TestLost did not run\np: FuzzLost did not run\np: ExampleLost did not run\nq: its tests did not run"
	if err.Error() != want {
		t.Errorf("got:\n%s\nwant:\n%s", err, want)
	}
}

// testSource runs the tests of a module with one package, whose only file has
// this text, and returns what was written.
func testSource(t *testing.T, source string, timeout time.Duration) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module broken\n\ngo 1.26.0\n", "p_test.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &repo.Repo{Root: dir}
	m := repo.Module{Path: "broken", Dir: dir, Rel: "."}
	var all report
	var out bytes.Buffer
	if err := testModule(t.Context(), r, m, []string{"CGO_ENABLED=0"}, options{timeout: timeout}, &all, &out); err != nil {
		all.problems = append(all.problems, err.Error())
	}
	if all.ok() {
		t.Error("counts as ok")
	}
	return out.String()
}

func TestAModuleWhosePackageDoesNotBuildFails(t *testing.T) {
	out := testSource(t, "package p\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { undefined() }\n", time.Minute)
	if !strings.Contains(out, "undefined: undefined") {
		t.Errorf("the compiler's message is not shown:\n%s", out)
	}
}

// TestStacksOfAHangAndOfAPanicAreShown: a test binary that runs out of time, or
// is ended by a panic, says where it was.
func TestStacksOfAHangAndOfAPanicAreShown(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		want []string
	}{
		"hang":                       {"hang(make(chan int))", []string{"test timed out after 2s", "UNFINISHED: broken TestA", "broken.hang("}},
		"panic":                      {"panic(\"boom\")", []string{"panic: boom", "broken.TestA("}},
		"panic of another goroutine": {"go panic(\"boom\"); hang(make(chan int))", []string{"panic: boom", "broken.TestA"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := testSource(t, "package p\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { "+test.body+" }\n\nfunc hang(c chan int) { <-c }\n", 2*time.Second)
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
		})
	}
}

func TestOutputOfATestThatDidNotEndIsBounded(t *testing.T) {
	line := `{"Action":"output","Package":"p","Test":"TestA","Output":"` + strings.Repeat("x", 1000) + `\n"}`
	in := `{"Action":"output","Package":"p","Test":"TestA","Output":"first\n"}` + strings.Repeat(line, 100) +
		`{"Action":"output","Package":"p","Test":"TestA","Output":"last\n"}{"Action":"fail","Package":"p"}`
	var out bytes.Buffer
	if err := newResults().read(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if n := out.Len(); n > unfinishedMax+200 || strings.Contains(out.String(), "first") || !strings.Contains(out.String(), "last\n") {
		t.Errorf("%d bytes of an unfinished test are shown: %.100q ... want the last %d", n, out.String(), unfinishedMax)
	}
}
