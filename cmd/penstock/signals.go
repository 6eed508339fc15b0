package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// errStopped is the cause of the end that a signal asks for.
type errStopped struct{ signal os.Signal }

func (e errStopped) Error() string { return "stopped by " + e.signal.String() }

// watchSignals returns a context that ends with the first SIGINT or SIGTERM.
// The second one ends the process at once with exit code 130.
func watchSignals(stderr io.Writer) context.Context {
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// Lives as long as the process; nobody waits for it.
	go func() {
		first := <-signals
		stop(errStopped{first}) // the command says what it does about it
		<-signals
		fmt.Fprintln(stderr, "ended at once; what was not handled is kept in --dir and will be replayed by the next run, a temporary directory is left behind")
		os.Exit(exitInterrupted)
	}()
	return ctx
}
