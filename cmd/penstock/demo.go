package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/demo"
)

type demoCmd struct {
	For        time.Duration `placeholder:"DURATION" help:"How long to produce, for example 15s. Without it: until the input ends, until Ctrl-C on a terminal, otherwise one minute."`
	Rate       float64       `default:"5000" help:"Events per second."`
	Input      *string       `placeholder:"FILE|-" help:"Send the lines of this NDJSON file (- is standard input) instead of generated events."`
	Key        string        `placeholder:"FIELD" help:"Field of the input lines whose value is their key; events of one key keep their order."`
	Dir        *string       `placeholder:"DIR" help:"Data directory, kept. Without it a temporary one, removed at the end."`
	Durability string        `enum:"written,synced" default:"synced" help:"What an acknowledgement means: written (survives kill -9) or synced (survives power loss)."`
	Crash      int           `placeholder:"N" help:"Kill the node without warning at N random moments, and restart it."`
	Seed       uint64        `placeholder:"N" help:"Repeats the same events, failures and moments of crashes. 0 takes a random one, told at the start."`
	Drain      time.Duration `default:"40s" help:"How long to wait for the groups after the last event."`
	Output     string        `short:"o" enum:"text,json" default:"text" help:"What standard output gets: text for people with the JSON as the last line, or json alone."`
	JSON       bool          `name:"json" help:"The same as -o json."`
}

// Help is shown by --help.
func (demoCmd) Help() string {
	return `A driver starts a node as a second process on loopback, produces into it over HTTP, and takes a report of every
event from each handler before that handler returns. Groups: billing is healthy, emails is slow, webhook calls a partner
that fails 1 call in 50 and never takes 1 id in 5,000 (retried, then dead-lettered), feed is a stream subscription,
remote is another one of the same streams whose handler is in the driver, across two HTTP requests that break with each
kill, pipeline runs a graph of stages over each batch. Only the driver judges; the node's word counts for nothing.

The last line on standard output is one JSON object:

    produced   acknowledged events
    unknown    sent and never acknowledged
    crashes    how many times the node was killed
    groups     delivered (reports), distinct (different events), duplicates, lost (acknowledged, neither handled
               nor dead), dead (dead-lettered), max_lag (events), order_violations (first deliveries after a
               newer event of the same key)
    events_per_s  produced events by the time until the last was acknowledged
    rss_max_mib   the larger of driver and node at its largest

Exit code 0: nothing lost, nothing unknown, no order violated, every crash that was asked for happened.
Ctrl-C or SIGTERM stops producing, drains and judges; the exit code is 130 when something that was asked for (the time,
the input, a crash) was cut short. The last line on standard error then says what is left. A second one kills the node and
judges at once.

Examples:

    penstock demo
    penstock demo --for 15s --crash 5 --json
    go test -json ./... | penstock demo --input - --key Package`
}

// defaultFor is how long the demo produces where nobody can press Ctrl-C.
const defaultFor = time.Minute

// Run runs the demo.
func (c *demoCmd) Run(e *env) error {
	if err := c.refuseEmpty(); err != nil {
		return err
	}
	level, err := penstock.ParseDurability(c.Durability)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	jsonOnly := c.JSON || c.Output == "json"
	terminal := isTerminal(e.stderr)
	config := demo.Config{
		For: c.For, Rate: c.Rate, Key: c.Key, Durability: level,
		Crash: c.Crash, Seed: c.Seed, Drain: c.Drain, Now: e.now,
		Command: func() *exec.Cmd { return exec.Command(self, "node") },
		Out:     demo.Output{Status: e.stderr, Terminal: terminal && plainWanted() == "", Width: widthOf(e.stderr)},
	}
	if config.Seed == 0 {
		config.Seed = 1 + rand.Uint64N(1<<32)
	}
	if !jsonOnly {
		config.Out.Text = e.stdout
	}
	if c.Dir != nil {
		config.Dir = *c.Dir
	}
	if config.For == 0 && c.Input == nil && !terminal {
		config.For = defaultFor
	}
	closeInput, err := c.openInput(e, &config)
	if err != nil {
		return err
	}
	defer closeInput()
	result, err := demo.Run(e.ctx, config)
	if err != nil {
		return err
	}
	return c.conclude(e, result, jsonOnly)
}

// refuseEmpty refuses values that look like "none" and would silently mean the
// default: a variable of a script that is not set, a rate or a drain of zero.
func (c *demoCmd) refuseEmpty() error {
	bad := func(flag, reason string) error { return &penstock.FieldError{Field: flag, Reason: reason} }
	switch {
	case c.Rate == 0:
		return bad("--rate", "0 events per second is no demo; at least 1")
	case c.Drain == 0:
		return bad("--drain", "0 leaves no time to handle the last events, so every run would fail")
	case c.Input != nil && *c.Input == "":
		return bad("--input", "names no file")
	case c.Dir != nil && *c.Dir == "":
		return bad("--dir", "names no directory")
	}
	return nil
}

// openInput opens the input and counts its lines when it is a file, so that
// the crashes can be spread over them.
func (c *demoCmd) openInput(e *env, config *demo.Config) (closeInput func() error, err error) {
	nothing := func() error { return nil }
	switch {
	case c.Input == nil:
		return nothing, nil
	case *c.Input == "-":
		config.Input = e.stdin
		return nothing, nil
	}
	const fix = "give the path of an NDJSON file, or - for standard input"
	f, err := os.Open(*c.Input)
	if err != nil {
		return nil, &failure{code: exitUsage, what: err.Error(), fix: fix, err: err}
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		what := fmt.Sprintf("--input: %s is a directory", *c.Input)
		return nil, errors.Join(&failure{code: exitUsage, what: what, fix: fix}, f.Close())
	}
	if err == nil && info.Mode().IsRegular() {
		if config.Lines, err = countLines(f); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	config.Input = f
	return f.Close, nil
}

func countLines(r io.Reader) (n int, err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		part, err := b.ReadSlice('\n')
		if err == io.EOF {
			if len(bytes.TrimSpace(part)) > 0 {
				n++
			}
			return n, nil
		}
		if err == nil {
			n++
		} else if !errors.Is(err, bufio.ErrBufferFull) {
			return n, err
		}
	}
}

// conclude prints the verdict and turns it into the exit code.
func (c *demoCmd) conclude(e *env, r demo.Result, jsonOnly bool) error {
	var unread error
	if !jsonOnly {
		unread = demo.WriteSummary(e.stdout, r)
	}
	unread = errors.Join(unread, json.NewEncoder(e.stdout).Encode(r.Verdict))
	var err error
	switch {
	case r.Interrupted:
		err = &failure{code: exitInterrupted, what: "interrupted before everything that was asked for was done"}
	case len(r.Faults) > 0:
		f := &failure{code: exitFailed, what: "the run is not good"}
		if r.Node != nil {
			f.code = explain(r.Node).code // damaged data stays 6, found at the start or later
		}
		for i, fault := range r.Faults {
			if i > 0 {
				f.why += "\n"
			}
			f.why += fault
		}
		f.fix = "repeat it with the same --seed, and with --dir to keep the journal and the data"
		if r.BadInput {
			f.fix = "correct the input or --key and run it again; what was sent before is judged above"
		}
		err = f
	case unread != nil:
		err = &failure{code: exitFailed, what: "the verdict is good and could not be written: " + unread.Error(), err: unread}
	}
	if r.Left != "" {
		defer fmt.Fprintln(e.stderr, r.Left) // the last line
	}
	if err != nil {
		return silent{report(e.stderr, err)} // before what is left, which is the last line
	}
	return nil
}
