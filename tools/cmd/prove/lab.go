package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/penstock/penstock/tools/internal/repo"
)

// lab is what the attacks share: the repository, a folder for their files and
// the binary, which is built when the first attack asks for it.
type lab struct {
	repo   *repo.Repo
	temp   string
	binary func() (string, error)
}

func newLab() (*lab, error) {
	r, err := repo.Find(".")
	if err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "prove")
	if err != nil {
		return nil, err
	}
	l := &lab{repo: r, temp: temp}
	l.binary = sync.OnceValues(l.build)
	return l, nil
}

func (l *lab) close() { _ = os.RemoveAll(l.temp) }

// build builds the real binary from its own module.
func (l *lab) build() (string, error) {
	m, err := l.repo.Module("cmd/penstock")
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.temp, "penstock")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	_, err = l.repo.Go(context.Background(), m, []string{"CGO_ENABLED=0"}, "build", "-o", path, ".")
	return path, err
}

// dir makes a new folder for the files of one attack.
func (l *lab) dir() (string, error) { return os.MkdirTemp(l.temp, "data") }

// test runs tests of the repository by their exact names and makes sure that
// each of them ran and passed.
func (l *lab) test(ctx context.Context, module, pkg string, names ...string) error {
	m, err := l.repo.Module(module)
	if err != nil {
		return err
	}
	out, err := l.repo.Go(ctx, m, []string{"CGO_ENABLED=0"}, "test", "-json", "-count=1", "-run", "^("+strings.Join(names, "|")+")$", pkg)
	passed := map[string]bool{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var e struct{ Action, Test string }
		if dec.Decode(&e) != nil {
			break
		}
		if e.Action == "pass" {
			passed[e.Test] = true
		}
	}
	for _, name := range names {
		if !passed[name] {
			return fmt.Errorf("%s %s did not pass: %v", pkg, name, err)
		}
	}
	return err
}

// roleVariable names what a child process of an attack does. Children are this
// same program, so that they use the same API in a process of their own, which
// can be killed.
const roleVariable = "PENSTOCK_PROVE_ROLE"

// roles are what a child can do: it gets its arguments and returns an error.
var roles = map[string]func(args []string) error{}

func childMain(role string) int {
	f, ok := roles[role]
	if !ok {
		fmt.Fprintln(os.Stderr, "prove: no role", role)
		return 2
	}
	if err := f(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", role+":", err)
		return 1
	}
	return 0
}

// child is a running process that an attack can talk to and kill.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // of its standard output; closed at its end

	mu     sync.Mutex
	errOut bytes.Buffer
}

// startRole starts this program as a child with a role.
// attr may be nil.
func (l *lab) startRole(ctx context.Context, attr *syscall.SysProcAttr, role string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = attr
	return start(cmd)
}

// start starts a process. Its standard error is kept for messages.
func start(cmd *exec.Cmd) (*child, error) {
	c := &child{cmd: cmd, lines: make(chan string, 1<<16)}
	errs, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	told := make(chan struct{})
	// Reads the child's standard error to its end, which the child's death brings;
	// waited for below.
	go func() {
		defer close(told)
		_, _ = io.Copy((*errorLog)(c), errs)
	}()
	// The same for its output; wait waits for it. Who finds the lines at their end
	// finds the reason, too.
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
		<-told
	}()
	return c, nil
}

type errorLog child

func (e *errorLog) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.errOut.Write(p)
}

// errors returns what the child has written to its standard error.
func (c *child) errors() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(c.errOut.String())
}

// next returns the child's next line.
func (c *child) next(ctx context.Context) (string, error) {
	select {
	case text, ok := <-c.lines:
		if !ok {
			return "", fmt.Errorf("the child ended: %s", c.errors())
		}
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// wait reads what is left of the child's output, waits for its end and returns
// the lines.
func (c *child) wait() ([]string, error) {
	var lines []string
	for text := range c.lines {
		lines = append(lines, text)
	}
	return lines, c.cmd.Wait()
}

// kill ends the child as kill -9 does and returns the lines it still wrote.
func (c *child) kill() []string {
	_ = c.cmd.Process.Kill() // fails only when it has ended already
	lines, _ := c.wait()     // the error says that it was killed
	return lines
}

// copyTree copies the folder from into the new folder to, files and folders
// only.
func copyTree(from, to string) error { return os.CopyFS(to, os.DirFS(from)) }

// files returns the paths of the files below dir whose names match, sorted.
func files(dir, pattern string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		ok, err := filepath.Match(pattern, d.Name())
		if ok {
			found = append(found, path)
		}
		return err
	})
	slices.Sort(found)
	return found, err
}
