package planted

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/tools/internal/repo"
)

// Outcomes of a planted fault.
const (
	Caught  = "caught"  // the test passes without the fault and fails with it
	Missed  = "missed"  // the test passes with the fault: it proves nothing
	Invalid = "invalid" // the fault does not apply or build, or the test fails without it
)

// Result is what became of one planted fault.
type Result struct {
	Fault   string  `json:"fault"`
	Claim   string  `json:"claim"`
	Test    string  `json:"test"` // package and name
	Outcome string  `json:"result"`
	How     string  `json:"how,omitempty"` // how the test failed: failed, panic or timeout
	Reason  string  `json:"reason,omitempty"`
	Alone   bool    `json:"alone,omitempty"` // compiled by itself, not behind a switch
	Whole   bool    `json:"whole,omitempty"` // compiled by itself, with every test of the package
	Seconds float64 `json:"seconds"`
}

// Runner runs planted faults. It is safe for concurrent use, as long as no two
// faults of the same test run at a time.
type Runner struct {
	repo *repo.Repo
	dir  string // for binaries and changed files

	mu       sync.Mutex
	switched map[string]*switched // by module and package
	tests    map[string]*test     // compiled by itself, by module, package and name
}

// test is a test without a fault.
type test struct {
	pruned map[string]string // overlay that leaves out the other tests, nil for none
	err    error             // nil when it passes
}

// NewRunner returns a runner that keeps its files in dir.
func NewRunner(r *repo.Repo, dir string) *Runner {
	return &Runner{repo: r, dir: dir, switched: map[string]*switched{}, tests: map[string]*test{}}
}

// Run plants one fault and says what became of it.
func (r *Runner) Run(ctx context.Context, f Fault) Result {
	start := time.Now()
	result := Result{Fault: f.Name, Claim: f.Claim, Test: f.Package + " " + f.Test}
	how, err := r.turnOn(ctx, f)
	if err != nil && ctx.Err() == nil {
		result.Alone = true
		how, err = r.plant(ctx, f)
		t, _ := r.known(f)
		result.Whole = t.pruned == nil
	}
	switch {
	case errors.Is(err, errPassed):
		result.Outcome, result.Reason = Missed, "the test passes with the fault planted"
	case err != nil:
		result.Outcome, result.Reason = Invalid, err.Error()
	default:
		result.Outcome, result.How = Caught, how
	}
	result.Seconds = float64(time.Since(start).Milliseconds()) / 1000
	return result
}

// known returns what is known of the fault's test compiled by itself.
func (r *Runner) known(f Fault) (t *test, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t, known = r.tests[f.Key()]; !known {
		t = &test{}
		r.tests[f.Key()] = t
	}
	return t, known
}

var errPassed = errors.New("passed")

// plant returns how the test failed with the fault in place. errPassed means
// that it did not fail; any other error that the fault says nothing.
func (r *Runner) plant(ctx context.Context, f Fault) (how string, err error) {
	m, err := r.repo.Module(f.Module)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(r.dir, "fault")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	replaced, err := f.Apply(r.repo.Root, dir)
	if err != nil {
		return "", err
	}
	clean := r.clean(ctx, m, f)
	if clean.err != nil {
		return "", fmt.Errorf("without the fault: %w", clean.err)
	}
	overlay := maps.Clone(clean.pruned)
	if overlay == nil {
		overlay = replaced
	}
	maps.Copy(overlay, replaced)
	binary, err := r.build(ctx, m, f, dir, overlay)
	if err != nil {
		return "", fmt.Errorf("with the fault: %w", err)
	}
	return r.test(ctx, m, f, binary, "")
}

// clean makes sure, once per test, that it runs and passes without a fault, and
// finds out whether it compiles without the other tests of its package.
func (r *Runner) clean(ctx context.Context, m repo.Module, f Fault) *test {
	t, known := r.known(f)
	if known {
		return t
	}
	dir, err := os.MkdirTemp(r.dir, "clean")
	if err != nil {
		t.err = err
		return t
	}
	var binary string
	if t.pruned, err = prune(filepath.Join(m.Dir, filepath.FromSlash(f.Package)), dir, f.Test); err == nil {
		binary, err = r.build(ctx, m, f, dir, t.pruned)
	}
	if err != nil {
		t.pruned = nil
		if binary, err = r.build(ctx, m, f, dir, nil); err != nil {
			t.err = err
			return t
		}
	}
	how, err := r.test(ctx, m, f, binary, "")
	switch {
	case err == nil:
		t.err = fmt.Errorf("%s fails (%s)", f.Test, how)
	case !errors.Is(err, errPassed):
		t.err = err
	}
	_ = os.Remove(binary) // large, and not needed again
	return t
}

// build compiles the tests of the fault's package, with files replaced.
func (r *Runner) build(ctx context.Context, m repo.Module, f Fault, dir string, replaced map[string]string) (string, error) {
	overlay := filepath.Join(dir, "overlay.json")
	data, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, data, 0o644); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "planted.test")
	_, err = r.repo.Go(ctx, m, []string{"CGO_ENABLED=0"}, "test", "-c", "-vet=off", "-o", binary, "-overlay", overlay, f.Package)
	return binary, err
}

// test runs the one test of a test binary where go test would run it, with the
// fault of that name turned on when it has switches.
func (r *Runner) test(ctx context.Context, m repo.Module, f Fault, binary, on string) (how string, err error) {
	cmd := exec.CommandContext(ctx, binary, "-test.run=^"+f.Test+"$", "-test.v", "-test.count=1", "-test.timeout="+f.Limit.String())
	cmd.Dir = filepath.Join(m.Dir, filepath.FromSlash(f.Package))
	cmd.Env = append(repo.Env(), switchVariable+"="+on)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	defer sweep(filepath.Join(cmd.Dir, "testdata", "rapid", f.Test))()
	err = cmd.Run()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	return judge(out.String(), f.Test, err != nil)
}

// sweep returns a function that removes the files that came into dir since: a
// model test that fails, as it must here, writes down how, and a later run of
// the same test would begin with it. A dir that is then empty goes too, and so
// do its two parents.
func sweep(dir string) func() {
	list := func() []string {
		files, _ := filepath.Glob(filepath.Join(dir, "*")) // the pattern is well-formed
		return files
	}
	before := list()
	return func() {
		for _, file := range list() {
			if !slices.Contains(before, file) {
				_ = os.Remove(file)
			}
		}
		for _, d := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
			_ = os.Remove(d) // fails when something is left in it
		}
	}
}

// judge reads the verbose output of a test binary that ran one test. A test
// that never started or was skipped says nothing, and neither does a binary
// that failed for a reason other than the test.
func judge(out, test string, failed bool) (how string, err error) {
	switch {
	case !strings.Contains(out, "=== RUN   "+test+"\n"):
		return "", fmt.Errorf("%s did not run:\n%s", test, tail(out))
	case strings.Contains(out, "--- SKIP: "+test+" "):
		return "", fmt.Errorf("%s was skipped:\n%s", test, tail(out))
	case !failed:
		return "", errPassed
	case strings.Contains(out, "panic: test timed out"):
		return "timeout", nil
	case strings.Contains(out, "--- FAIL: "+test+" ") && !strings.Contains(out, "panic: "):
		return "failed", nil
	case strings.Contains(out, "panic: ") || strings.Contains(out, "fatal error: "):
		return "panic", nil
	case strings.Contains(out, "leak: "):
		return "leak", nil
	}
	return "", fmt.Errorf("the test binary failed, but not by %s:\n%s", test, tail(out))
}

// tail returns the end of a long output.
func tail(out string) string {
	const limit = 2000
	if len(out) > limit {
		out = "..." + out[len(out)-limit:]
	}
	return strings.TrimSpace(out)
}
