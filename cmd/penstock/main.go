// Command penstock shows, measures and operates penstock from a terminal.
//
//	penstock demo       a node under load, killed and judged
//	penstock bench      the benchmark rows, each beside its baseline
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
	stop := watchSignals(os.Stderr)
	os.Exit(run(stop, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole command: it returns the exit code. ctx ends when the user
// asked to stop.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	e := &env{ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr}
	command, err := parse(args, e)
	if err == nil && command != nil {
		err = command.Run(e)
	}
	return report(stderr, err)
}
