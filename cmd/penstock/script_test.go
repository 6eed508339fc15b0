package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/internal/leak"
	"github.com/rogpeppe/go-internal/testscript"
)

// commandEnv makes the test binary be the command. The demo starts its node
// from the same binary, which inherits the variable.
const commandEnv = "PENSTOCK_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
		return
	}
	leak.Main(m)
}

// TestScripts runs testdata/script/*.txt, one script per feature. Beside the
// usual commands of testscript there are
//
//	code N COMMAND...     runs a command that must end with exit code N
//	flip FILE POSITION    inverts a byte of a file
//	verdict [FIELD=N]...  checks the verdict in the last line of standard output
func TestScripts(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	name := "penstock"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if err := link(self, filepath.Join(bin, name)); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv(commandEnv, "1")
			env.Setenv("TMPDIR", env.WorkDir)
			// What the commands that look at a data directory look at.
			from := os.DirFS(filepath.Join("..", "..", "segfile", "testdata", "format1"))
			return errors.Join(os.CopyFS(filepath.Join(env.WorkDir, "golden"), from), os.CopyFS(filepath.Join(env.WorkDir, "second"), from))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "verdict": verdict, "flip": flip},
	})
}

// link makes the file at to be the one at from, by a copy where there are no
// symbolic links.
func link(from, to string) error {
	if os.Symlink(from, to) == nil {
		return nil
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o700)
}

func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code is %d, want %d", got, want)
	}
}

func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE POSITION")
	}
	at, err := strconv.Atoi(args[1])
	ts.Check(err)
	name := ts.MkAbs(args[0])
	b, err := os.ReadFile(name)
	ts.Check(err)
	b[at] ^= 0xff
	ts.Check(os.WriteFile(name, b, 0o600))
}

func verdict(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("verdict cannot be negated")
	}
	lines := strings.Split(strings.TrimSpace(ts.ReadFile("stdout")), "\n")
	last := lines[len(lines)-1]
	var v judge.Verdict
	d := json.NewDecoder(strings.NewReader(last))
	d.DisallowUnknownFields()
	ts.Check(d.Decode(&v))
	if len(v.Groups) != 6 {
		ts.Fatalf("there are %d groups: %s", len(v.Groups), last)
	}
	for name, g := range v.Groups {
		if g.Lost != 0 || g.OrderViolations != 0 || g.Distinct+g.Dead != v.Produced || g.Delivered != g.Distinct+g.Duplicates {
			ts.Fatalf("group %s: %+v of %d", name, g, v.Produced)
		}
	}
	if v.Unknown != 0 || v.RSSMaxMiB <= 0 || v.RSSMaxMiB >= 300 {
		ts.Fatalf("unknown %d, largest process %.0f MiB", v.Unknown, v.RSSMaxMiB)
	}
	for _, arg := range args {
		field, want, _ := strings.Cut(arg, "=")
		got := map[string]uint64{"produced": v.Produced, "crashes": uint64(v.Crashes), "slow_lag": min(v.Groups["emails"].MaxLag, 1)}
		if fmt.Sprint(got[field]) != want {
			ts.Fatalf("%s is %d, want %s", field, got[field], want)
		}
	}
}

// outcome runs the command in this process.
func outcome(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(context.Background(), nil, args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestEveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"demo", "bench", "fsck", "segments", "dump", "du", "repair", "version"} {
		code, out, _ := outcome(t, command, "--help")
		if code != 0 || !strings.Contains(out, "Example") || !strings.Contains(out, "penstock "+command) {
			t.Errorf("%s --help: code %d\n%s", command, code, out)
		}
	}
}

func TestHelpListsCommandsAndExitCodes(t *testing.T) {
	t.Parallel()
	code, out, _ := outcome(t)
	if code != 0 {
		t.Fatalf("code %d", code)
	}
	for _, want := range []string{"demo", "bench", "version", "0    ok", "6    stored data is damaged", "130  interrupted"} {
		if !strings.Contains(out, want) {
			t.Errorf("help does not say %q:\n%s", want, out)
		}
	}
	if slices.Contains(strings.Fields(out), "node") && strings.Contains(out, "penstock node") {
		t.Errorf("the hidden command is shown:\n%s", out)
	}
}
