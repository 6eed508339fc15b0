package demo

import (
	"bytes"
	"io"
	"sync"
)

const (
	clearLine    = "\r\x1b[K"
	defaultWidth = 80
)

// screen writes status lines, and whole lines of others, to one place without
// mixing them. On a terminal the status is one line that is rewritten; anywhere
// else each status is a line of its own and there are no escape codes. It is
// safe for concurrent use.
type screen struct {
	terminal bool
	width    func() int

	mu      sync.Mutex
	w       io.Writer
	shown   string // the status that stands on the terminal now
	partial []byte // of a line written by others
}

func newScreen(o Output) *screen {
	s := &screen{terminal: o.Terminal, width: o.Width, w: o.Status}
	if s.w == nil {
		s.w = io.Discard
	}
	if s.width == nil {
		s.width = func() int { return defaultWidth }
	}
	return s
}

// columns is how wide a status line may be; 0 = any width.
func (s *screen) columns() int {
	if !s.terminal {
		return 0
	}
	return max(s.width(), 20)
}

// status shows a status line.
func (s *screen) status(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal {
		_, _ = io.WriteString(s.w, line+"\n")
		return
	}
	s.shown = line
	_, _ = io.WriteString(s.w, clearLine+line)
}

// end takes the status line off the terminal.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal && s.shown != "" {
		_, _ = io.WriteString(s.w, clearLine)
		s.shown = ""
	}
}

// Write shows whole lines above the status line. The rest waits for its end.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partial = append(s.partial, b...)
	end := bytes.LastIndexByte(s.partial, '\n')
	if end < 0 {
		return len(b), nil
	}
	whole := string(s.partial[:end+1])
	s.partial = append(s.partial[:0], s.partial[end+1:]...)
	if s.terminal {
		whole = clearLine + whole + s.shown
	}
	_, _ = io.WriteString(s.w, whole)
	return len(b), nil
}
