package demo

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	clearDown    = "\r\x1b[J" // from the start of the row to the end of the screen
	oneRowUp     = "\x1b[A"
	defaultWidth = 80
)

// screen writes the status, and whole lines of others, to one place without
// mixing them. On a terminal the status is a few rows that are rewritten;
// anywhere else each status is one line, and there are no escape codes. It is
// safe for concurrent use.
//
// Invariant: on a terminal the cursor stands behind the last row of shown.
type screen struct {
	terminal bool
	width    func() int

	mu      sync.Mutex
	w       io.Writer
	shown   []string // rows of the status that stand on the terminal now
	partial []byte   // of a line written by others
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

// status shows the rows of a status.
func (s *screen) status(rows ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal {
		s.put(strings.Join(rows, "  ") + "\n")
		return
	}
	width := max(s.width(), 20) - 1 // the last column stays free, or the terminal wraps
	for i, row := range rows {
		rows[i] = cut(row, width)
	}
	s.put(s.wiped() + strings.Join(rows, "\n"))
	s.shown = rows
}

// wiped returns what takes the status off the terminal.
func (s *screen) wiped() string {
	if len(s.shown) == 0 {
		return ""
	}
	return strings.Repeat(oneRowUp, len(s.shown)-1) + clearDown
}

// put writes. A place that cannot be written to does not end the run.
func (s *screen) put(text string) { _, _ = io.WriteString(s.w, text) }

// end takes the status off the terminal.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(s.wiped())
	s.shown = nil
}

// Write shows whole lines above the status. The rest waits for its end.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partial = append(s.partial, b...)
	end := bytes.LastIndexByte(s.partial, '\n')
	if end < 0 {
		return len(b), nil
	}
	s.put(s.wiped() + string(s.partial[:end+1]) + strings.Join(s.shown, "\n"))
	s.partial = append(s.partial[:0], s.partial[end+1:]...)
	return len(b), nil
}
