package stream

import (
	"errors"
	"fmt"
	"runtime/debug"

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
