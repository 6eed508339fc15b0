package stream

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/penstock/penstock"
)

// sound returns err, or a *penstock.PanicError when err itself is broken: an
// error of user code may panic when it is asked for its text or for what it
// matches, as a nil pointer in an error does. It is asked here, where user code
// runs; nobody behind it need be careful.
func sound(where string, err error) (out error) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil { // as text: an error in it would be asked again
			out = &penstock.PanicError{Where: where + ": its error", Value: fmt.Sprint(v), Stack: debug.Stack()}
		}
	}()
	_ = err.Error()
	for _, known := range []error{ErrConsumerGone, ErrAway, errUnattached, errExpired, errStopped, penstock.ErrUnknownOutcome, penstock.ErrNotFound} {
		_ = errors.Is(err, known)
	}
	return err
}

// seamErrors are what a [Consumer] says about itself. A handler, or a hook, in
// this process may meet them in what it calls itself.
var seamErrors = [...]error{ErrConsumerGone, ErrAway, errUnattached}

// handlerError is an error of a handler that matches one of them: it is a
// failure like any other.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

func (e *handlerError) Is(target error) bool {
	return !slices.Contains(seamErrors[:], target) && errors.Is(e.err, target)
}

func (e *handlerError) As(target any) bool { return errors.As(e.err, target) }

// ofHandler keeps an error of a handler, or of a hook, from being taken for one
// of the seam.
func ofHandler(err error) error {
	for _, said := range seamErrors {
		if errors.Is(err, said) {
			return &handlerError{err}
		}
	}
	return err
}

// failuresOfHandler is ofHandler for the errors of single events.
func failuresOfHandler(name string, failed []ItemFailure) {
	for i := range failed {
		failed[i].Err = ofHandler(sound("consumer "+name, failed[i].Err))
	}
}
