package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/penstock/penstock/tools/steps"
)

var wakeUp = attack{
	name:  "wake-up",
	claim: "a consumer that goes to sleep misses no event, and who waits for the turn of a topic gets it, alone",
	fault: "the atomic operations of those who wait and of those who wake, in every order, from the source of the product",
	run: func(ctx context.Context, l *lab) (string, error) {
		return tryOrders(ctx, l, []string{"AWakeUp", "TheTurn"}, func(source string) string { return source })
	},
}

const ordersTests = "TestEveryOrderOf" // what the names of the tests begin with

// tryOrders compiles waker and turn, changed by change, with stepped atomics, and
// tries every order of the steps of what is named.
func tryOrders(ctx context.Context, l *lab, of []string, change func(source string) string) (detail string, err error) {
	m, err := l.repo.Module(".")
	if err != nil {
		return "", err
	}
	overlay, err := steppedSources(l, change)
	if err != nil {
		return "", err
	}
	// With one processor a consumer does not pause before it sleeps: it would be
	// the same looks over and over.
	out, err := l.repo.Go(ctx, m, []string{"CGO_ENABLED=0"}, "test", "-vet=off", "-overlay", overlay, "-count=1", "-cpu=1", "-v", "-run", "^"+ordersTests+"("+strings.Join(of, "|")+")$", "./seglog")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS: "+ordersTests); n != len(of) {
		return "", fmt.Errorf("%d of %d tests ran: %s", n, len(of), out)
	}
	var told []string
	for _, found := range regexp.MustCompile(`\d+ orders of [a-z0-9 ]+`).FindAll(out, -1) {
		told = append(told, string(found))
	}
	return strings.Join(told, ", "), nil
}

// steppedSources writes an overlay of package seglog: waker and turn on package
// steps instead of sync/atomic, and the tests of their orders in the place of the
// others.
func steppedSources(l *lab, change func(source string) string) (overlay string, err error) {
	dir, err := l.dir()
	if err != nil {
		return "", err
	}
	replaced := map[string]string{}
	folder := filepath.Join(l.repo.Root, "seglog")
	tests, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return "", err
	}
	for _, path := range tests {
		replaced[path] = "" // is not there
	}
	put := func(path, text string) {
		file := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replaced), filepath.Base(path)))
		replaced[path] = file
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o600)
		}
	}
	for name, text := range steps.Sources() {
		put(filepath.Join(folder, "steps", name), text)
	}
	put(filepath.Join(folder, "wakeup_orders_test.go"), steps.WakeUpTest)
	put(filepath.Join(folder, "turn_orders_test.go"), steps.TurnTest)
	for _, name := range []string{"waker.go", "turn.go"} {
		source, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return "", err
		}
		const atomics, stepped = `"sync/atomic"`, `atomic "github.com/penstock/penstock/seglog/steps"`
		if !strings.Contains(string(source), atomics) {
			return "", fmt.Errorf("seglog/%s does not import %s", name, atomics)
		}
		put(filepath.Join(folder, name), strings.Replace(change(string(source)), atomics, stepped, 1))
	}
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, data, 0o600)
}
