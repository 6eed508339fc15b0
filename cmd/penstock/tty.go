package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// descriptor is a file, or what stands before one.
type descriptor interface{ Fd() uintptr }

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(descriptor)
	return ok && term.IsTerminal(int(f.Fd()))
}

// plainWanted says why escape codes are not to be used although there is a
// terminal; "" when they are.
func plainWanted() string {
	switch {
	case os.Getenv("NO_COLOR") != "":
		return "NO_COLOR"
	case os.Getenv("TERM") == "dumb":
		return "TERM=dumb"
	}
	return ""
}

// widthOf returns a function that tells the width of the terminal w now.
func widthOf(w io.Writer) func() int {
	return func() int {
		if f, ok := w.(descriptor); ok {
			if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
				return width
			}
		}
		return 80
	}
}
