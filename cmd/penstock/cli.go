package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// env is what a command runs with.
type env struct {
	ctx            context.Context // ends with the first wish to stop
	now            <-chan struct{} // closed with the second; nil = never
	stdin          io.Reader
	stdout, stderr io.Writer
}

// cli is the command line. Each command's Run method gets the env.
type cli struct {
	Demo     demoCmd     `cmd:"" help:"Run a node under load, kill it as often as you like, and judge what was lost."`
	Bench    benchCmd    `cmd:"" help:"Run benchmark rows, each beside a baseline that needs no other code."`
	Fsck     fsckCmd     `cmd:"" help:"Look for damage in a data directory."`
	Segments segmentsCmd `cmd:"" help:"List the segment files of a data directory, and who keeps them."`
	Dump     dumpCmd     `cmd:"" help:"Print the stored events of a data directory."`
	Du       duCmd       `cmd:"" help:"Add up what the topics of a data directory take on disk."`
	Repair   repairCmd   `cmd:"" help:"Say what a repair of a data directory would lose, and do it with --yes."`
	Version  versionCmd  `cmd:"" help:"Say which penstock this is."`
	Node     nodeCmd     `cmd:"" hidden:"" help:"The process that the demo kills."`
}

const description = `penstock is the buffer between your Go code and everything slower than it.

Exit codes:

    0    ok
    1    failed: events were lost or came out of order, or something did not work
    2    wrong use of the command line
    3    wrong configuration
    4    a node or a service is unreachable
    5    refused by policy, for example a data directory that others can write to
    6    stored data is damaged
    7    the data directory is in use by another process
    130  interrupted

NO_COLOR and a standard error that is no terminal are honoured: plain lines, no escape codes.`

// exited carries the wish of kong to end the process, after --help.
type exited int

// parse reads the command line. The command is nil when there is nothing left
// to do.
func parse(args []string, e *env) (command *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			code, ok := r.(exited)
			if !ok {
				panic(r)
			}
			command, err = nil, nil
			if code != 0 {
				err = &failure{code: exitUsage, what: fmt.Sprintf("the command line ended with %d", int(code))}
			}
		}
	}()
	parser, err := kong.New(&cli{},
		kong.Name("penstock"), kong.Description(description),
		kong.Writers(e.stdout, e.stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		return nil, err
	}
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help": // as many other commands have it
		args = append(slices.Clone(args[1:]), "--help")
	}
	command, err = parser.Parse(args)
	var wrong *kong.ParseError
	if errors.As(err, &wrong) {
		return nil, usage(wrong, args)
	}
	if err != nil {
		return nil, &failure{code: exitUsage, what: err.Error(), fix: "run: penstock --help"}
	}
	return command, nil
}

// usage turns an error of the parser into what, why and what to do.
func usage(wrong *kong.ParseError, args []string) error {
	f := &failure{code: exitUsage, err: wrong}
	what, hint, _ := strings.Cut(wrong.Error(), ", did you mean ")
	f.what = what
	help := "penstock --help"
	if wrong.Context != nil && wrong.Context.Selected() != nil {
		help = "penstock " + wrong.Context.Selected().Name + " --help"
	}
	f.fix = "run: " + help
	if hint != "" && len(hint) > len(`"-x"?`) { // one letter is like any other
		f.fix = "did you mean " + hint + " Otherwise run: " + help
	}
	if len(args) > 0 && strings.HasPrefix(what, "unknown flag") {
		f.why = "unknown flags are errors, so that a typing error never means \"use the default\""
	}
	return f
}
