// Package guard calls user code on a goroutine of its own, so that whatever the
// code does to its goroutine comes back as an error.
package guard

import (
	"runtime/debug"

	"github.com/penstock/penstock"
)

// Call runs f, waits for it, and returns its error. A panic of f, and a
// runtime.Goexit, become a *penstock.PanicError with where in it. Call blocks
// for as long as f does.
func Call(where string, f func() error) (err error) {
	ended := make(chan struct{})
	go func() { // ends with f; Call waits for it
		finished := false
		defer close(ended)
		defer func() {
			if !finished {
				err = &penstock.PanicError{Where: where, Value: recover(), Stack: debug.Stack()}
			}
		}()
		err = f()
		finished = true
	}()
	<-ended
	return err
}
