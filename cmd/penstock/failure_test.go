package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/demo"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		code int
		says []string
	}{
		"none":              {nil, 0, nil},
		"plain":             {errors.New("something broke"), 1, []string{"error: something broke"}},
		"bad value":         {&penstock.FieldError{Field: "rate", Reason: "is odd"}, 2, []string{"rate: is odd", "fix"}},
		"interrupted":       {fmt.Errorf("wait: %w", context.Canceled), 130, []string{"interrupted"}},
		"unsafe directory":  {fmt.Errorf("x: %w", demo.ErrUnsafeDir), 5, []string{"why", "chmod"}},
		"damaged":           {&penstock.CorruptError{Topic: "orders", File: "s1", Cause: errors.New("crc")}, 6, []string{"s1", "never skipped"}},
		"cut below commit":  {fmt.Errorf("x: %w", penstock.ErrOffsetOutOfRange), 6, []string{"never skipped"}},
		"in use":            {fmt.Errorf("x: %w", penstock.ErrLocked), 7, []string{"why", "--dir"}},
		"permission":        {fmt.Errorf("x: %w", os.ErrPermission), 1, []string{"--dir"}},
		"node in use":       {&demo.NodeError{Code: 7, Said: "locked by process 5"}, 7, []string{"locked by process 5", "two writers"}},
		"node damaged":      {&demo.NodeError{Code: 6, Said: "corrupt"}, 6, []string{"corrupt"}},
		"node killed":       {&demo.NodeError{Code: -1}, 1, []string{"said nothing"}},
		"with words":        {&failure{code: 3, what: "w", why: "y\nz", fix: "f"}, 3, []string{"error: w\n  why  y\n       z\n  fix  f\n"}},
		"reported already":  {silent{4}, 4, nil},
		"with words, below": {fmt.Errorf("x: %w", &failure{code: 3, what: "w"}), 3, []string{"error: w\n"}},
	} {
		var b strings.Builder
		if code := report(&b, tc.err); code != tc.code {
			t.Errorf("%s: code %d, want %d", name, code, tc.code)
		}
		if tc.says == nil && b.Len() > 0 {
			t.Errorf("%s: says %q", name, b.String())
		}
		for _, want := range tc.says {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: says %q, want %q", name, b.String(), want)
			}
		}
	}
}

func TestDamageThatANodeFindsWhileItRunsEndsWith6(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	e := &env{ctx: t.Context(), stdout: &out, stderr: &errs}
	r := demo.Result{Faults: []string{"the node ended by itself"}, Node: &demo.NodeError{Code: exitDamaged, How: "exit status 6", Said: "corrupt"}}
	if code := report(&errs, (&demoCmd{}).conclude(e, r, true)); code != exitDamaged || !strings.Contains(errs.String(), "the node ended") {
		t.Errorf("code %d, stderr %q", code, errs.String())
	}
	r.Node = nil
	if code := report(&errs, (&demoCmd{}).conclude(e, r, true)); code != exitFailed {
		t.Errorf("without a node that ended: code %d", code)
	}
}

func TestVersionOfABuild(t *testing.T) {
	t.Parallel()
	v := versionOf(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-29T00:00:00Z"}, {Key: "vcs.modified", Value: "true"}}})
	if v.Version != "v1.2.3" || v.Commit != "abc" || v.CommitTime != "2026-11-29T00:00:00Z" || !v.Modified {
		t.Errorf("version is %+v", v)
	}
	if v := versionOf(nil); v.Version != "unknown" || v.Go == "" {
		t.Errorf("without build information: %+v", v)
	}
}

func TestLinesAreCounted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "a": 1, "a\n": 1, "a\nb": 2, "a\n\n": 2, "a\n  ": 1, strings.Repeat("x", 200_000) + "\nb\n": 2} {
		if got, err := countLines(strings.NewReader(text)); err != nil || got != want {
			t.Errorf("countLines of %d bytes = %d, %v, want %d", len(text), got, err, want)
		}
	}
}

// goneReader is a standard output that nobody reads any more.
type goneReader struct{}

func (goneReader) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
}

// A dump into head was an error: "write /dev/stdout: broken pipe".
func TestReaderThatHasSeenEnoughIsNoError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "segfile", "testdata", "format1"))); err != nil {
		t.Fatal(err)
	}
	say := func(want int, commands ...[]string) {
		for _, args := range commands {
			var errs strings.Builder
			code := run(t.Context(), nil, args, strings.NewReader(""), goneReader{}, &errs)
			if code != want || strings.Contains(errs.String(), "pipe") {
				t.Errorf("%q: code %d, says %q, want code %d", args[0], code, errs.String(), want)
			}
		}
	}
	say(exitOK, []string{"dump", dir, "--unsynced"}, []string{"dump", dir, "--unsynced", "--json"}, []string{"segments", dir},
		[]string{"du", dir}, []string{"fsck", dir}, []string{"repair", dir})

	// What was found is told by the exit code, whoever reads.
	file := filepath.Join(dir, "orders", "p00000", "00000000000000000000.seg")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[4300] ^= 0xff
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	say(exitDamaged, []string{"fsck", dir, "--deep"})
}
