// Command prove attacks the claims of penstock and prints one line of JSON for
// each:
//
//	{"claim":"...","fault":"...","result":"held","detail":"...","seconds":1.2}
//
// result is held, broken, or "not run" with the reason in detail; an attack
// that did not run proves nothing and is counted apart. The exit code is 1
// when a claim is broken. Attacks use the real binary, real processes and
// signals, a real file system, and the exported API; each stands in a file of
// its own.
//
//	go run ./cmd/prove [-list] [NAME...]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// attack is one claim and the fault that is made to break it.
type attack struct {
	name  string // for the command line
	claim string // what penstock promises
	fault string // what is done to it
	run   func(ctx context.Context, l *lab) (detail string, err error)
	limit time.Duration // 0 means two minutes
}

// attacks are all there are, in the order in which they run.
var attacks = []attack{
	killDemo, killLibrary, powerLoss, powerCut, tornTail, bitFlip, twoOwners,
	slowGroup, fullTopic, drain, diskFull, badInput, idle, wakeUp,
}

// Results of an attack.
const (
	held   = "held"
	broken = "broken"
	notRun = "not run"
)

// line is what is printed for one attack.
type line struct {
	Claim   string  `json:"claim"`
	Fault   string  `json:"fault"`
	Result  string  `json:"result"`
	Detail  string  `json:"detail,omitempty"`
	Seconds float64 `json:"seconds"`
}

// skip is the reason why an attack cannot run here.
type skip string

func (s skip) Error() string { return string(s) }

func main() {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(childMain(role))
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the warnings of attacked topics are expected
	list := flag.Bool("list", false, "only list the attacks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *list, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, list bool, names []string, w io.Writer) error {
	chosen, err := choose(names)
	if err != nil {
		return err
	}
	if list {
		for _, a := range chosen {
			fmt.Fprintf(w, "%-14s %s | %s\n", a.name, a.claim, a.fault)
		}
		return nil
	}
	l, err := newLab()
	if err != nil {
		return err
	}
	defer l.close()
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	counts := map[string]int{}
	for _, a := range chosen {
		result := try(ctx, l, a)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		counts[result.Result]++
		if err := out.Encode(result); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "prove: %d held, %d broken, %d not run\n", counts[held], counts[broken], counts[notRun])
	if counts[broken] > 0 {
		return fmt.Errorf("%d claims are broken", counts[broken])
	}
	return nil
}

// try runs one attack and puts its outcome in words.
func try(ctx context.Context, l *lab, a attack) line {
	limit := a.limit
	if limit == 0 {
		limit = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	detail, err := a.run(ctx, l)
	result := line{Claim: a.claim, Fault: a.fault, Result: held, Detail: detail}
	var reason skip
	switch {
	case errors.As(err, &reason):
		result.Result, result.Detail = notRun, string(reason)
		fmt.Fprintf(os.Stderr, "prove: NOT RUN: %s: %s\n", a.claim, reason)
	case err != nil:
		result.Result, result.Detail = broken, err.Error()
	}
	result.Seconds = float64(time.Since(start).Milliseconds()) / 1000
	return result
}

// choose returns the attacks with the given names, all for no names.
func choose(names []string) ([]attack, error) {
	if len(names) == 0 {
		return attacks, nil
	}
	var chosen []attack
	for _, name := range names {
		i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no attack %q; -list shows them", name)
		}
		chosen = append(chosen, attacks[i])
	}
	return chosen, nil
}
