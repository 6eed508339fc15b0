package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/demo"
)

// Exit codes (ADR 0017).
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitConfig      = 3
	exitUnreachable = 4
	exitRefused     = 5
	exitDamaged     = 6
	exitInUse       = 7
	exitInterrupted = 130
)

// failure is an error with its exit code and words for people: what happened,
// why, and what to do about it.
type failure struct {
	code           int
	what, why, fix string
	err            error // the cause, nil when what says it all
}

func (f *failure) Error() string { return f.what }
func (f *failure) Unwrap() error { return f.err }

// silent is an error that was reported already.
type silent struct{ code int }

func (s silent) Error() string { return fmt.Sprintf("exit code %d", s.code) }

// report writes an error and returns the exit code for it.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var reported silent
	if errors.As(err, &reported) {
		return reported.code
	}
	f := explain(err)
	fmt.Fprintf(stderr, "error: %s\n", f.what)
	for _, part := range [...]struct{ label, text string }{{"why", f.why}, {"fix", f.fix}} {
		if part.text != "" {
			fmt.Fprintf(stderr, "  %s  %s\n", part.label, strings.ReplaceAll(part.text, "\n", "\n       "))
		}
	}
	return f.code
}

// explain finds the exit code and the words for an error.
func explain(err error) *failure {
	var f *failure
	var field *penstock.FieldError
	var node *demo.NodeError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &node):
		return explainNode(node)
	case errors.As(err, &field):
		return &failure{code: exitUsage, what: err.Error(), fix: "see --help for what the flag takes", err: err}
	case errors.Is(err, context.Canceled):
		return &failure{code: exitInterrupted, what: "interrupted", err: err}
	case errors.Is(err, demo.ErrUnsafeDir):
		return &failure{code: exitRefused, what: err.Error(), err: err,
			why: "whoever can write to the data directory can change what was acknowledged",
			fix: "run: chmod go-w on the directory, or name another one with --dir"}
	case errors.Is(err, penstock.ErrLocked):
		return inUse(err.Error())
	case errors.Is(err, penstock.ErrCorrupt), errors.Is(err, penstock.ErrOffsetOutOfRange):
		// A group that stands behind what is kept: the log ends too early.
		return damaged(err.Error())
	case errors.Is(err, os.ErrPermission):
		return &failure{code: exitFailed, what: err.Error(), fix: "name a directory that you can write to with --dir", err: err}
	}
	return &failure{code: exitFailed, what: err.Error(), err: err}
}

// explainNode passes on what the node said with its exit code.
func explainNode(node *demo.NodeError) *failure {
	switch node.Code {
	case exitInUse:
		return inUse(node.Said)
	case exitDamaged:
		return damaged(node.Said)
	}
	return &failure{code: exitFailed, what: node.Error(), err: node,
		fix: "its log is node.log in the data directory, which --dir DIR keeps"}
}

func inUse(what string) *failure {
	return &failure{code: exitInUse, what: what,
		why: "two writers on one data directory would destroy it",
		fix: "stop the other process (a node whose driver was killed ends by itself within seconds), or name another directory with --dir"}
}

func damaged(what string) *failure {
	return &failure{code: exitDamaged, what: what,
		why: "acknowledged data is never skipped silently",
		fix: "keep a copy of the directory and look at the file named above; another --dir starts afresh"}
}
