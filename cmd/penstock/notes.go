package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	maxNotes  = 256 << 10       // bytes that wait to be written
	notesOver = 2 * time.Second // for the last lines at the end of the process
)

// notes is standard error for whoever reads it: a Write never waits for the
// reader. What does not fit into 256 KiB that wait is dropped, and counted
// where the lines are missing. So a pipe that nobody reads, or a terminal that
// is stopped with Ctrl-S, holds up neither the work nor the end of it.
//
// It is safe for concurrent use. Errors of the place below are ignored: there
// is no other place to report them to.
//
// Invariants: len(waiting) + held <= maxNotes; writing is true while a
// goroutine carries them out; idle is closed when none does.
type notes struct {
	to io.Writer

	mu      sync.Mutex
	waiting []byte
	held    int // bytes on their way, taken from waiting
	dropped int // lines that are missing behind waiting
	writing bool
	idle    chan struct{}
}

func newNotes(to io.Writer) *notes {
	idle := make(chan struct{})
	close(idle)
	return &notes{to: to, idle: idle}
}

// Write takes b whole, or drops it whole. It always reports success.
func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dropped > 0 || n.held+len(n.waiting)+len(b) > maxNotes {
		n.dropped += max(bytes.Count(b, []byte{'\n'}), 1)
		return len(b), nil
	}
	n.waiting = append(n.waiting, b...)
	if !n.writing {
		n.writing, n.idle = true, make(chan struct{})
		// Carries out what waits and ends when nothing does; finish waits for
		// it, but no longer than its limit.
		go n.carry(n.idle)
	}
	return len(b), nil
}

func (n *notes) carry(idle chan struct{}) {
	defer close(idle)
	for {
		n.mu.Lock()
		text := n.waiting
		n.waiting, n.held = nil, len(text)
		if n.dropped > 0 {
			text = fmt.Appendf(text, "(%d lines were dropped here: nobody read them)\n", n.dropped)
			n.dropped = 0
		}
		if len(text) == 0 {
			n.writing = false
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		_, _ = n.to.Write(text)
	}
}

// finish waits until everything is written, at most for limit.
func (n *notes) finish(limit time.Duration) {
	n.mu.Lock()
	idle := n.idle
	n.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}

// Fd returns the descriptor of the place below, so that it can be asked
// whether it is a terminal; an impossible one when it has none.
func (n *notes) Fd() uintptr {
	if f, ok := n.to.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}
