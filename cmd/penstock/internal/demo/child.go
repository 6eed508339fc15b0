package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// NodeError says that the node ended by itself, or did not start.
type NodeError struct {
	Code int    // its exit code, -1 when it has none
	How  string // for example "exit status 7" or "signal: killed"
	Said string // what it called its error, otherwise the last line on its standard error
}

func (e *NodeError) Error() string {
	if e.Said != "" {
		return fmt.Sprintf("the node ended by itself (%s): %s", e.How, e.Said)
	}
	return fmt.Sprintf("the node ended by itself (%s) and said nothing", e.How)
}

var errNotReady = errors.New("the node did not become ready in time")

// child keeps one node process alive: it starts the first, replaces the ones
// that crash kills, and stops the last.
//
// Invariant: at most one process lives at any time. ready is open while no
// node is ready; at is valid when ready is closed.
type child struct {
	command func() *exec.Cmd
	config  wire.NodeConfig
	log     io.Writer // where the node's standard error goes; nil = nowhere
	failed  func(error)

	mu     sync.Mutex
	proc   *process
	ready  chan struct{}
	at     wire.Ready
	rssMax int64 // bytes, over all processes that ended
}

// process is one life of the node.
type process struct {
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	expected bool          // its end was asked for; guarded by child.mu
	ended    chan struct{} // closed when it has ended and is reaped
	said     said
}

func newChild(command func() *exec.Cmd, config wire.NodeConfig, log io.Writer, failed func(error)) *child {
	return &child{command: command, config: config, log: log, failed: failed, ready: make(chan struct{})}
}

// start starts the next incarnation and returns when it is ready.
func (c *child) start(ctx context.Context) error {
	c.config.Incarnation++
	p := &process{cmd: c.command(), ended: make(chan struct{})}
	p.said.next = c.log
	p.cmd.Stderr = &p.said
	separate(p.cmd)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	c.mu.Lock()
	c.proc = p
	c.mu.Unlock()
	answer := make(chan wire.Ready, 1)
	// Reads the one line and then the end of the node's output, reaps the
	// process, and ends with it.
	go c.attend(p, stdout, answer)
	if err := json.NewEncoder(stdin).Encode(c.config); err != nil {
		_ = p.cmd.Process.Kill() // attend reports what it said
	}
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case r := <-answer:
		c.mu.Lock()
		c.at = r
		close(c.ready)
		c.mu.Unlock()
		return nil
	case <-p.ended:
		return p.error()
	case <-timeout.C:
		return errNotReady
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attend takes care of one process until it has ended.
func (c *child) attend(p *process, stdout io.Reader, answer chan<- wire.Ready) {
	lines := bufio.NewReader(stdout)
	var r wire.Ready
	if line, err := lines.ReadBytes('\n'); err == nil && json.Unmarshal(line, &r) == nil && r.URL != "" {
		answer <- r
	}
	_, _ = io.Copy(io.Discard, lines) // to the end, as Wait wants it
	_ = p.cmd.Wait()                  // the state says more than the error
	c.mu.Lock()
	c.rssMax = max(c.rssMax, maxRSS(p.cmd.ProcessState))
	expected := p.expected
	c.mu.Unlock()
	close(p.ended)
	if !expected {
		c.failed(p.error())
	}
}

func (p *process) error() error {
	return &NodeError{Code: p.cmd.ProcessState.ExitCode(), How: p.cmd.ProcessState.String(), Said: p.said.String()}
}

// wait returns the URL of the edge of a node that is ready, waiting for one.
func (c *child) wait(ctx context.Context) (string, error) {
	at, err := c.where(ctx)
	return at.URL, err
}

// where returns the addresses of a node that is ready, waiting for one.
func (c *child) where(ctx context.Context) (wire.Ready, error) {
	for {
		c.mu.Lock()
		ready, at := c.ready, c.at
		c.mu.Unlock()
		select {
		case <-ready:
			return at, nil
		case <-ctx.Done():
			return wire.Ready{}, ctx.Err()
		}
	}
}

// starting reports whether a new node is on its way.
func (c *child) starting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ready:
		return false
	default:
		return true
	}
}

// crash kills the node without a warning (SIGKILL where there are signals)
// and starts the next one. killed is called in between.
func (c *child) crash(ctx context.Context, killed func()) error {
	c.mu.Lock()
	p := c.proc
	p.expected = true
	c.ready = make(chan struct{})
	c.mu.Unlock()
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the node: %w", err)
	}
	<-p.ended
	killed()
	return c.start(ctx)
}

// stop asks the node to stop, and kills it when it has not ended in time, or
// when now is closed. clean is false then, or when it ended with an exit code
// other than 0.
func (c *child) stop(limit time.Duration, now <-chan struct{}) (clean bool) {
	c.mu.Lock()
	p := c.proc
	if p != nil {
		p.expected = true
	}
	c.mu.Unlock()
	if p == nil {
		return true
	}
	_, _ = io.WriteString(p.stdin, wire.Stop+"\n") // it may have ended already
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode() == 0
	case <-timeout.C:
	case <-now:
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return false
}

// rss returns the largest resident set of all processes that have ended.
func (c *child) rss() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rssMax
}

// said passes on what a node writes to standard error, and remembers why it
// ended. An error as the command reports it ("error: ...", with why and fix
// below it) is not passed on: the driver tells it once, in its own report. It
// is used by one goroutine until the process has ended.
type said struct {
	next   io.Writer
	line   []byte // the last one; whole when done
	done   bool
	reason string // of the error; "" = none was told
	advice bool   // lines that are set in belong to the error
}

const maxSaid = 8000 // bytes of a line that are kept, and passed on

func (s *said) Write(b []byte) (int, error) {
	for _, c := range b {
		switch {
		case c == '\n':
			s.whole()
		case s.done:
			s.line, s.done = append(s.line[:0], c), false
		case len(s.line) < maxSaid:
			s.line = append(s.line, c)
		}
	}
	return len(b), nil
}

// whole takes a line that has ended.
func (s *said) whole() {
	if s.done {
		s.line = s.line[:0] // an empty line
	}
	s.done = true
	line := string(s.line)
	reason, isError := strings.CutPrefix(line, "error: ")
	switch {
	case isError:
		s.reason, s.advice = reason, true
		return
	case s.advice && strings.HasPrefix(line, "  "): // below the error
		return
	case s.reason == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")):
		s.reason = line
	}
	s.advice = false
	if s.next != nil {
		_, _ = io.WriteString(s.next, line+"\n") // a place for people: its errors end nothing
	}
}

func (s *said) String() string {
	if s.reason != "" {
		return s.reason
	}
	return string(s.line)
}
