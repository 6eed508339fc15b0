//go:build unix

package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// started is a demo process that is ready.
type started struct {
	node   string // host and port of its node
	cmd    *exec.Cmd
	out    io.Closer
	stdout *bufio.Reader
	stderr *strings.Builder
}

// demoCommand returns the command, with temp for its temporary directories.
func demoCommand(t *testing.T, temp string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), commandEnv+"=1", "TMPDIR="+temp)
	return cmd
}

// startDemo starts the command and returns when its node is ready.
func startDemo(t *testing.T, args ...string) *started {
	t.Helper()
	return startDemoIn(t, t.TempDir(), args...)
}

func startDemoIn(t *testing.T, temp string, args ...string) *started {
	t.Helper()
	s := &started{cmd: demoCommand(t, temp, args...), stderr: &strings.Builder{}}
	s.cmd.Stderr = s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(90*time.Second, func() { _ = s.cmd.Process.Kill() })
	t.Cleanup(func() { guard.Stop() })
	s.out, s.stdout = out, bufio.NewReader(out)
	for { // the header ends with how to stop
		line, err := s.stdout.ReadString('\n')
		if err != nil {
			t.Fatalf("before it was ready: %v; stderr:\n%s", err, s.stderr)
		}
		if _, url, ok := strings.Cut(line, "node     http://"); ok {
			s.node = strings.TrimSpace(url)
		}
		if strings.Contains(line, "Ctrl-C") {
			return s
		}
	}
}

// end waits for the process and returns its exit code and the rest of its
// standard output.
func (s *started) end(t *testing.T) (code int, stdout string) {
	t.Helper()
	rest, err := io.ReadAll(s.stdout)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // the code says more
	return s.cmd.ProcessState.ExitCode(), string(rest)
}

// dirOfOrphan returns a data directory whose node may outlive the test a
// little: what it still writes does not make the removal fail.
func dirOfOrphan(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "penstock-orphan-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		guard := time.After(30 * time.Second)
		for err := os.RemoveAll(dir); err != nil; err = os.RemoveAll(dir) {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-guard:
				t.Errorf("the data directory cannot be removed: %v", err)
				return
			}
		}
	})
	return dir
}

func TestFirstSignalDrainsAndJudges(t *testing.T) {
	t.Parallel()
	// Tests that run under nohup ignore SIGHUP, and so would the demo that they
	// start. A signal that is caught has its default action in a child.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(caught) })
	for name, tc := range map[string]struct {
		signal os.Signal
		args   []string
		code   int
	}{
		"SIGTERM before its time": {syscall.SIGTERM, []string{"--for", "1h", "--rate", "500"}, exitInterrupted},
		"SIGHUP before its time":  {syscall.SIGHUP, []string{"--for", "1h", "--rate", "500"}, exitInterrupted},
		"SIGINT before its time":  {os.Interrupt, []string{"--for", "1h", "--rate", "500"}, exitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startDemo(t, tc.args...)
			if err := s.cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			code, stdout := s.end(t)
			if code != tc.code || !strings.Contains(stdout, `"unknown":0`) {
				t.Errorf("code %d, stdout\n%s\nstderr\n%s", code, stdout, s.stderr)
			}
			if !strings.Contains(s.stderr.String(), "stopping: no more events are made") {
				t.Errorf("stderr is\n%s", s.stderr)
			}
		})
	}
}

func TestSecondSignalLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	s := startDemoIn(t, temp, "--for", "1h", "--rate", "1000", "--drain", "1h")
	// Two different signals, so that the system does not make one of them. The
	// second is there before the drain that the first begins can end.
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	code, _ := s.end(t)
	if code != exitInterrupted || !strings.Contains(s.stderr.String(), "ending at once") {
		t.Errorf("code %d, stderr\n%s", code, s.stderr)
	}
	if c, err := net.Dial("tcp", s.node); err == nil {
		_ = c.Close()
		t.Error("the node outlives its driver")
	}
	emptyDir(t, temp)
}

func emptyDir(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestReaderThatGoesAwayLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	s := startDemoIn(t, temp, "--for", "500ms", "--rate", "500")
	if err := s.out.Close(); err != nil { // as head -n 7 does
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // the code says more
	if code := s.cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(s.stderr.String(), "could not be written") {
		t.Errorf("code %d, stderr\n%s", code, s.stderr)
	}
	emptyDir(t, temp)
}

func TestStandardErrorThatNobodyReads(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	// Fills the pipe to the last byte, so that the first line would block.
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = w.Write(make([]byte, 1))
	}
	cmd := demoCommand(t, t.TempDir(), "--for", "500ms", "--rate", "500", "--json")
	cmd.Stderr = w
	guard := time.AfterFunc(90*time.Second, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), `"unknown":0`) {
		t.Errorf("%v, stdout %q", err, out)
	}
}

func TestNoNodeOutlivesItsDriver(t *testing.T) {
	t.Parallel()
	s := startDemo(t, "--for", "1h", "--rate", "500", "--dir", dirOfOrphan(t))
	c, err := net.Dial("tcp", s.node)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// After one answer the connection stays open for two minutes, unless the
	// node stops.
	if _, err := io.WriteString(c, "GET /v1/stats HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(c)
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := answers.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the node goes on without its driver")
	}
	s.end(t)
}
