package segfile

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

var (
	traceLine = regexp.MustCompile(`^(\d+) +(.*)$`)
	traceCall = regexp.MustCompile(`^(\w+)\((?:\d+<([^>]*)>)?(.*)$`)
	traceEnd  = regexp.MustCompile(`^<\.\.\. (\w+) resumed>(.*)$`)
	traceName = regexp.MustCompile(`"([^"]*)"`)
)

// trace follows the system calls of a process: which files hold what was
// written and not synced.
type trace struct {
	written map[string]int // writes to a file, or changes of a directory
	synced  map[string]int // of them, those that a finished sync covers
	calls   map[string]started
	syncs   int
	acks    int
}

type started struct {
	path string
	at   int // writes when a sync began
}

// line takes a line of strace -f -y. It returns an error at an acknowledgement
// before a sync that covers it.
func (t *trace) line(line string) error {
	m := traceLine.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	pid, rest := m[1], m[2]
	if e := traceEnd.FindStringSubmatch(rest); e != nil {
		t.end(pid, e[1], e[2])
		return nil
	}
	c := traceCall.FindStringSubmatch(rest)
	if c == nil {
		return nil
	}
	name, path, args := c[1], c[2], c[3]
	switch {
	case name == "write" && strings.Contains(args, `"ack `):
		t.acks++
		for file, n := range t.written {
			if t.synced[file] < n {
				return fmt.Errorf("acknowledged before a sync of %s: %s", file, line)
			}
		}
	case name == "pwrite64" && strings.HasSuffix(path, segmentExt):
		t.written[path]++
	case strings.HasPrefix(name, "rename"):
		if names := traceName.FindAllStringSubmatch(rest, -1); len(names) == 2 && strings.HasSuffix(names[1][1], segmentExt) {
			t.written[filepath.Dir(names[1][1])]++
		}
	case name == "fsync" || name == "fdatasync":
		t.calls[pid] = started{path, t.written[path]}
		if !strings.Contains(args, "unfinished") {
			t.end(pid, name, args)
		}
	}
	return nil
}

// end takes the end of a call.
func (t *trace) end(pid, name, result string) {
	if (name == "fsync" || name == "fdatasync") && strings.HasSuffix(strings.TrimSpace(result), "= 0") {
		c := t.calls[pid]
		t.synced[c.path] = max(t.synced[c.path], c.at)
		t.syncs++
	}
}

func newTrace() *trace {
	return &trace{written: map[string]int{}, synced: map[string]int{}, calls: map[string]started{}}
}

// TestNoAcknowledgementBeforeItsSync looks at the system calls of another
// process: the kernel is told to sync a frame, and the name of a new segment,
// before the append is acknowledged.
func TestNoAcknowledgementBeforeItsSync(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("NOT CHECKED: there is no strace on this machine, so nobody looks at system calls")
	}
	if out, err := exec.Command(strace, "-f", "-qq", "-e", "trace=none", "true").CombinedOutput(); err != nil {
		t.Skipf("NOT CHECKED: strace may not trace here: %v: %s", err, out)
	}
	exe, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	log := filepath.Join(dir, "trace")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, strace, "-f", "-y", "-qq", "-s", "64", "-o", log,
		"-e", "trace=write,pwrite64,fsync,fdatasync,rename,renameat,renameat2", exe)
	cmd.Env = append(os.Environ(), childMode+"=once", childDir+"="+filepath.Join(dir, "data"), childText+"="+penstock.Synced.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(log)
	must(t, err)
	tr := newTrace()
	for line := range strings.Lines(string(b)) {
		must(t, tr.line(strings.TrimSpace(line)))
	}
	renames := 0
	for path, n := range tr.written {
		if !strings.HasSuffix(path, segmentExt) {
			renames += n
		}
	}
	if tr.acks != onceAppends || tr.syncs < onceAppends || renames < 3 {
		t.Fatalf("%d acknowledgements, %d syncs, %d segments seen; want %d, as many and 3", tr.acks, tr.syncs, renames, onceAppends)
	}
}

// TestTraceFindsAnEarlyAcknowledgement: the check above is one.
func TestTraceFindsAnEarlyAcknowledgement(t *testing.T) {
	const (
		frame = `7 pwrite64(5</d/p00000/00000000000000000000.seg>, "PFRM", 128, 4096) = 128`
		sync  = `7 fdatasync(5</d/p00000/00000000000000000000.seg>) = 0`
		ack   = `8 write(1<pipe:[1]>, "ack 0\n", 6) = 6`
		name  = `7 renameat(AT_FDCWD</>, "/d/p00000/next.tmp", AT_FDCWD</>, "/d/p00000/00000000000000000007.seg") = 0`
		dir   = `7 fsync(6</d/p00000>) = 0`
	)
	for _, c := range []struct {
		early bool
		lines []string
	}{
		{false, []string{frame, sync, ack}},
		{true, []string{frame, ack, sync}},
		{true, []string{sync, frame, ack}},
		{true, []string{frame, name, sync, ack}},
		{false, []string{frame, name, dir, sync, ack}},
		{true, []string{frame, strings.Replace(sync, "= 0", "= -1 EIO (Input/output error)", 1), ack}},
		{true, []string{frame, `7 fdatasync(5</d/p00000/00000000000000000000.seg> <unfinished ...>`, ack, `7 <... fdatasync resumed>) = 0`}},
		{false, []string{frame, `7 fdatasync(5</d/p00000/00000000000000000000.seg> <unfinished ...>`, `7 <... fdatasync resumed>) = 0`, ack}},
		{true, []string{frame, `7 fdatasync(5</d/p00000/00000000000000000000.seg> <unfinished ...>`, frame, `7 <... fdatasync resumed>) = 0`, ack}},
	} {
		tr, early := newTrace(), false
		for _, line := range c.lines {
			early = tr.line(line) != nil || early
		}
		if early != c.early {
			t.Errorf("%q: found early: %t, want %t", c.lines, early, c.early)
		}
	}
}
