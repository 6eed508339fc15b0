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
	claim: "a consumer that goes to sleep misses no event",
	fault: "the atomic operations of a consumer and of those that wake it, in every order, from the source of the product",
	run: func(ctx context.Context, l *lab) (string, error) {
		return tryOrders(ctx, l, func(source string) string { return source })
	},
}

const wakeUpTest = "TestEveryOrderOfAWakeUp"

// tryOrders compiles the waker, changed by change, with stepped atomics, and
// tries every order of its steps.
func tryOrders(ctx context.Context, l *lab, change func(source string) string) (detail string, err error) {
	m, err := l.repo.Module(".")
	if err != nil {
		return "", err
	}
	overlay, err := steppedWaker(l, change)
	if err != nil {
		return "", err
	}
	// With one processor a consumer does not pause before it sleeps: it would be
	// the same looks over and over.
	out, err := l.repo.Go(ctx, m, []string{"CGO_ENABLED=0"}, "test", "-vet=off", "-overlay", overlay, "-count=1", "-cpu=1", "-v", "-run", "^"+wakeUpTest+"$", "./seglog")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: "+wakeUpTest) {
		return "", fmt.Errorf("%s did not run: %s", wakeUpTest, out)
	}
	var told []string
	for _, found := range regexp.MustCompile(`\d+ orders of [a-z ]+`).FindAll(out, -1) {
		told = append(told, string(found))
	}
	return strings.Join(told, ", "), nil
}

// steppedWaker writes an overlay of package seglog: the waker on package steps
// instead of sync/atomic, and the test of its orders in the place of the others.
func steppedWaker(l *lab, change func(source string) string) (overlay string, err error) {
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
	put(filepath.Join(folder, "orders_test.go"), steps.WakeUpTest)
	source, readErr := os.ReadFile(filepath.Join(folder, "waker.go"))
	if readErr != nil {
		return "", readErr
	}
	text := change(string(source))
	const atomics, stepped = `"sync/atomic"`, `atomic "github.com/penstock/penstock/seglog/steps"`
	if !strings.Contains(text, atomics) {
		return "", fmt.Errorf("seglog/waker.go does not import %s", atomics)
	}
	put(filepath.Join(folder, "waker.go"), strings.Replace(text, atomics, stepped, 1))
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
