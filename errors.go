package penstock

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Errors that a caller branches on. Test for them with [errors.Is]; the error
// returned usually carries more, in one of the types below.
var (
	// ErrFull: capacity is used up and the component was told to fail rather
	// than to wait. Nothing of the request was accepted.
	ErrFull = errors.New("full")
	// ErrClosed: the component was closed before the call or while it waited.
	ErrClosed = errors.New("closed")
	// ErrInvalid: a configuration or an argument is wrong. See [FieldError].
	ErrInvalid = errors.New("invalid")
	// ErrExists: a name is already in use.
	ErrExists = errors.New("already exists")
	// ErrNotFound: no such topic, group, stream or subscription.
	ErrNotFound = errors.New("not found")
	// ErrTooLarge: an event or a batch is larger than a stated limit. It was
	// refused before anything was written.
	ErrTooLarge = errors.New("too large")
	// ErrCorrupt: stored data is damaged. See [CorruptError].
	ErrCorrupt = errors.New("corrupt")
	// ErrLocked: another process, or another opener in this process, holds the
	// data directory.
	ErrLocked = errors.New("locked by another opener")
	// ErrDiskFull: the file system has no room. What was acknowledged before
	// stays readable, and commits still work.
	ErrDiskFull = errors.New("disk full")
	// ErrUnknownOutcome: the operation may or may not have taken effect. It is
	// never reported as success, and a retry may make a duplicate.
	ErrUnknownOutcome = errors.New("unknown outcome")
	// ErrOffsetOutOfRange: the offset is no longer kept, or not yet written.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrUnsupported: the platform, the file system or the engine cannot do
	// what was asked.
	ErrUnsupported = errors.New("unsupported")
)

// FieldError says which field of a configuration, or which argument, is wrong
// and why. It matches [ErrInvalid].
type FieldError struct {
	Field  string // as written in Go, for example "Partitions"
	Reason string // for example "-1 is negative"
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// Is reports whether target is ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// CorruptError describes damage to stored data. It matches [ErrCorrupt].
type CorruptError struct {
	Topic     string
	Partition int
	File      string // base name of the damaged file
	Position  int64  // byte position in File where the damage begins
	First     Offset // first offset affected
	Last      Offset // last offset affected; First when it is not known
	Cause     error
}

func (e *CorruptError) Error() string {
	offsets := fmt.Sprintf("offsets %d to %d", e.First, e.Last)
	if e.Last == e.First {
		offsets = fmt.Sprintf("from offset %d on", e.First)
	}
	return fmt.Sprintf("corrupt: topic %q partition %d file %s position %d %s: %v",
		e.Topic, e.Partition, e.File, e.Position, offsets, e.Cause)
}

// Is reports whether target is ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Cause }

// PartialError reports a batch that was interrupted between slices: the first
// Accepted events were accepted and stay visible, the rest was not written.
// It unwraps to the reason of the interruption.
type PartialError struct {
	Accepted int // events, from the front of the input
	Err      error
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("interrupted after %d accepted events: %v", e.Accepted, e.Err)
}

// Unwrap returns the reason of the interruption.
func (e *PartialError) Unwrap() error { return e.Err }

// DrainError reports a drain that its deadline cut short. Left events were not
// settled. A group or a subscription delivers them again in its next run, unless
// what is named in Busy settles them yet; a graph of stages keeps nothing, and
// sets Gone.
type DrainError struct {
	Left int  // events taken and not settled
	Gone bool // they are discarded; nobody delivers them again
	// Busy names what had not come back from user code when the drain was cut
	// short, and for how long it had been there: "printer for 3s". Graphs of
	// stages and providers of streams tell it.
	Busy []string
	// Report says what the drain has done; nil when the carrier has none.
	Report *DrainReport
	Err    error
}

func (e *DrainError) Error() string {
	fate := "; they will be delivered again"
	switch {
	case e.Left == 0:
		fate = ""
	case e.Gone:
		fate = "; they are discarded"
	case len(e.Busy) > 0:
		fate = "; they will be delivered again, unless user code settles them yet"
	}
	busy := ""
	if len(e.Busy) > 0 {
		busy = "; in user code: " + strings.Join(e.Busy, ", ")
	}
	return fmt.Sprintf("drain ended with %d events not settled%s%s: %v", e.Left, fate, busy, e.Err)
}

// Unwrap returns what ended the drain.
func (e *DrainError) Unwrap() error { return e.Err }

// PanicError is a panic in user code, caught at the goroutine that ran it.
type PanicError struct {
	Where string // the component that ran the user code, for example "group billing"
	Value any    // what was passed to panic; nil for runtime.Goexit
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return e.Where + ": runtime.Goexit called"
	}
	return fmt.Sprintf("%s: panic: %v", e.Where, e.Value)
}

// Unwrap returns the panic's value when that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ContextError returns nil while ctx lives. Afterwards it returns an error that
// matches both ctx.Err() and context.Cause(ctx), so that a caller can test for
// either.
func ContextError(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
