package planted

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/tools/internal/repo"
)

func TestMain(m *testing.M) { leak.Main(m) }

const sample = `# why this matters
claim: a sum is a sum
package: ./p
test: TestSum
limit: 30s
-- old p/p.go --
	return a + b
-- new --
	return a - b
`

func TestParseReadsHeadAndEdits(t *testing.T) {
	f, err := Parse("sum", sample)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != "sum" || f.Claim != "a sum is a sum" || f.Module != "." || f.Package != "./p" || f.Test != "TestSum" || f.Limit != 30*time.Second {
		t.Errorf("%+v", f)
	}
	if len(f.Edits) != 1 || f.Edits[0] != (Edit{File: "p/p.go", Old: "\treturn a + b", New: "\treturn a - b"}) {
		t.Errorf("%+v", f.Edits)
	}
}

func TestParseReadsSeveralEdits(t *testing.T) {
	f, err := Parse("two", sample+"-- old q.go --\na\nb\n-- new --\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Edits) != 2 || f.Edits[1] != (Edit{File: "q.go", Old: "a\nb", New: ""}) {
		t.Errorf("%+v", f.Edits)
	}
}

func TestParseRefusesIncompleteFaults(t *testing.T) {
	for name, text := range map[string]string{
		"no edits":      "claim: c\npackage: ./p\ntest: TestSum\n",
		"no claim":      strings.Replace(sample, "claim: a sum is a sum", "", 1),
		"no package":    strings.Replace(sample, "package: ./p", "", 1),
		"not a test":    strings.Replace(sample, "test: TestSum", "test: .*", 1),
		"unknown field": strings.Replace(sample, "claim:", "color:", 1),
		"no new":        strings.Replace(sample, "-- new --\n", "", 1),
		"empty old":     strings.Replace(sample, "\treturn a + b\n", "", 1),
		"no limit":      strings.Replace(sample, "30s", "0s", 1),
	} {
		if _, err := Parse("f", text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// module writes a small module with a function, a test that notices when it is
// wrong, and one that does not.
func module(t *testing.T) *repo.Repo {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26.0\n",
		"p/p.go": "package p\n\nfunc sum(a, b int) int {\n\treturn a + b\n}\n",
		"p/p_test.go": `package p

import "testing"

func TestSum(t *testing.T) {
	if sum(2, 1) != 3 {
		t.Error("wrong")
	}
}

func TestBlind(t *testing.T) { sum(2, 1) }

func TestRed(t *testing.T) { t.Error("always") }

func TestSkipped(t *testing.T) { t.Skip("not here") }

func TestHang(t *testing.T) {
	if sum(2, 1) != 3 {
		select {}
	}
}
`,
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &repo.Repo{Root: root, Modules: []repo.Module{{Path: "m", Dir: root, Rel: "."}}}
}

func TestOutcomes(t *testing.T) {
	r := module(t)
	runner := NewRunner(r, t.TempDir())
	good := Edit{File: "p/p.go", Old: "a + b", New: "a - b"}
	for _, test := range []struct {
		name, test string
		edit       Edit
		want, how  string
		reason     string
	}{
		{"caught", "TestSum", good, Caught, "failed", ""},
		{"caught by a hang", "TestHang", good, Caught, "timeout", ""},
		{"missed", "TestBlind", good, Missed, "", ""},
		{"test is red anyway", "TestRed", good, Invalid, "", "without the fault"},
		{"test is skipped", "TestSkipped", good, Invalid, "", "was skipped"},
		{"test does not exist", "TestNone", good, Invalid, "", "did not run"},
		{"does not build", "TestSum", Edit{File: "p/p.go", Old: "a + b", New: "a - c"}, Invalid, "", "undefined: c"},
		{"snippet is gone", "TestSum", Edit{File: "p/p.go", Old: "a * b", New: "a - b"}, Invalid, "", "occurs 0 times"},
		{"snippet is ambiguous", "TestSum", Edit{File: "p/p.go", Old: "int", New: "uint"}, Invalid, "", "occurs 2 times"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := Fault{Name: "f", Claim: "c", Module: ".", Package: "./p", Test: test.test, Limit: 2 * time.Second, Edits: []Edit{test.edit}}
			got := runner.Run(t.Context(), f)
			if got.Outcome != test.want || got.How != test.how || !strings.Contains(got.Reason, test.reason) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestTheProductIsNotTouched(t *testing.T) {
	r := module(t)
	f, err := Parse("sum", sample)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.Root, "p", "p.go")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if got := NewRunner(r, dir).Run(t.Context(), f); got.Outcome != Caught {
		t.Fatalf("%+v", got)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("the source was changed")
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range left { // the runner keeps the pruned tests for the next fault
		if strings.HasPrefix(d.Name(), "fault") {
			t.Errorf("%s is left behind", d.Name())
		}
	}
}

func TestJudgeATimeoutAndALeak(t *testing.T) {
	run := "=== RUN   TestA\n"
	if how, err := judge(run+"panic: test timed out after 1s\n", "TestA", true); how != "timeout" || err != nil {
		t.Errorf("%q, %v", how, err)
	}
	if how, err := judge(run+"--- PASS: TestA (0.00s)\nPASS\nleak: 1 goroutines outlived the tests\n", "TestA", true); how != "leak" || err != nil {
		t.Errorf("%q, %v", how, err)
	}
	if _, err := judge(run+"--- PASS: TestA (0.00s)\nPASS\n", "TestA", false); !errors.Is(err, errPassed) {
		t.Errorf("%v", err)
	}
	if _, err := judge(run+"exit status 2\n", "TestA", true); err == nil || errors.Is(err, errPassed) {
		t.Errorf("%v", err)
	}
}

// TestEveryFaultApplies keeps the fault files in step with the product: each
// must parse, and its old snippets must occur exactly once.
func TestEveryFaultApplies(t *testing.T) {
	r, err := repo.Find(".")
	if err != nil {
		t.Fatal(err)
	}
	faults, err := Load("faults")
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) == 0 {
		t.Fatal("no faults")
	}
	for _, f := range faults {
		t.Run(f.Name, func(t *testing.T) {
			if _, err := r.Module(f.Module); err != nil {
				t.Error(err)
			}
			if _, err := f.Apply(r.Root, t.TempDir()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheGuaranteesNameFaultsThatExist keeps docs/guarantees.md in step: each
// fault that it names exists, and each fault that exists is named.
func TestTheGuaranteesNameFaultsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	faults, err := Load("faults")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range faults {
		known[f.Name] = true
		if !strings.Contains(string(text), "`"+f.Name+"`") {
			t.Errorf("docs/guarantees.md does not name the fault %s", f.Name)
		}
	}
	for line := range strings.Lines(string(text)) {
		_, names, ok := strings.Cut(line, "Planted: ")
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(strings.TrimRight(names, ".\n"), ", ") {
			if !known[strings.Trim(name, "`")] {
				t.Errorf("docs/guarantees.md names the fault %s, which does not exist", name)
			}
		}
	}
}
