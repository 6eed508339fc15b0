// Command penstock shows, measures and operates penstock from a terminal.
//
//	penstock demo       a node under load, killed and judged
//	penstock bench      the benchmark rows, each beside its baseline
//	penstock fsck       looks for damage in a data directory
//	penstock segments   lists its segment files, and who keeps them
//	penstock dump       prints its events
//	penstock du         adds up what it takes
//	penstock repair     says what a repair would lose, and does it
//	penstock version    what this binary is
//
// Run penstock --help for the exit codes, and penstock COMMAND --help for an
// example of each.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	stderr := newNotes(os.Stderr)
	stop, now := watchSignals(stderr)
	code := run(stop, now, os.Args[1:], os.Stdin, os.Stdout, stderr)
	stderr.finish(notesOver)
	os.Exit(code)
}

// run is the whole command: it returns the exit code. ctx ends when the user
// asked to stop, now is closed when the user asked again.
func run(ctx context.Context, now <-chan struct{}, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	e := &env{ctx: ctx, now: now, stdin: stdin, stdout: stdout, stderr: stderr}
	command, err := parse(args, e)
	if err == nil && command != nil {
		err = command.Run(e)
	}
	return report(stderr, err)
}
