// Package steps runs goroutines one atomic operation at a time, in every order
// of these operations. The source to be tried is compiled with this package in
// the place of sync/atomic (go build -overlay), so it is the source of the
// product and not a model of it; see the attack wake-up of tools/cmd/prove.
//
// What it shows holds for the order of operations that Go's memory model gives
// to atomics: all of them in one sequence.
package steps

import (
	"bytes"
	"runtime"
	"sync"
)

var (
	mu      sync.Mutex // guards what follows, and the maps and flags of runs that tasks write
	current *Run
)

func setCurrent(r *Run) {
	mu.Lock()
	defer mu.Unlock()
	current = r
}

// step waits until the run lets the calling goroutine take a step. Goroutines
// that are of no run go on at once.
func step() {
	id := goroutine()
	mu.Lock()
	r := current
	if r == nil || r.free || r.byID[id] == nil {
		mu.Unlock()
		return
	}
	t := r.byID[id]
	t.at = true
	mu.Unlock()
	<-t.gate
}

// goroutine returns what tells the calling goroutine from all others.
func goroutine() string {
	var buf [64]byte
	text := buf[:runtime.Stack(buf[:], false)] // "goroutine 123 [running]:..."
	text = bytes.TrimPrefix(text, []byte("goroutine "))
	id, _, _ := bytes.Cut(text, []byte(" "))
	return string(id)
}
