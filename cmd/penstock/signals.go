package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errStopped is the cause of the end that a signal asks for.
type errStopped struct{ signal os.Signal }

func (e errStopped) Error() string { return "stopped by " + e.signal.String() }

// hardEnd is how long a command may take to end at once and to tidy up.
const hardEnd = 5 * time.Second

// watchSignals returns a context that ends with the first SIGINT, SIGTERM or
// SIGHUP, and a channel that is closed with the second. A third one, or five
// seconds, end the process whatever it does. SIGHUP stays ignored where it is,
// as nohup wants it.
//
// SIGPIPE is caught, so that a reader of standard output or standard error
// that goes away is an error of the write and not the end of the process
// between two steps, which would leave a temporary directory behind.
func watchSignals(stderr *notes) (ctx context.Context, now <-chan struct{}) {
	ctx, stop := context.WithCancelCause(context.Background())
	again := make(chan struct{})
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // nobody needs to hear it
	// Lives as long as the process; nobody waits for it.
	go func() {
		first := <-signals
		stop(errStopped{first}) // the command says what it does about it
		<-signals
		fmt.Fprintln(stderr, "ending at once: what was not handled is left")
		close(again)
		limit := time.NewTimer(hardEnd)
		defer limit.Stop()
		select {
		case <-signals:
		case <-limit.C:
		}
		fmt.Fprintf(stderr, "ended without tidying up: a temporary directory may be left in %s\n", os.TempDir())
		stderr.finish(notesOver)
		os.Exit(exitInterrupted)
	}()
	return ctx, again
}
