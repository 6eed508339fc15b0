package steps

import (
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
)

// Run is one run of a scenario in one order of its steps.
type Run struct {
	tasks    []*task
	byID     map[string]*task // by id of their goroutine
	stop     func()
	judge    func() error
	free     bool // steps wait for nobody any more
	last     *task
	switches int      // needless ones so far
	trace    []string // who took each step
}

// task is a goroutine of a run.
type task struct {
	name string
	gate chan struct{} // a token lets one step go
	at   bool          // it waits at a step
	over bool
}

// Go starts a goroutine of the scenario. It ends with f, and Explore waits for
// it. f must wait for others through steps and channels only.
func (r *Run) Go(name string, f func()) {
	t := &task{name: name, gate: make(chan struct{})}
	r.tasks = append(r.tasks, t)
	// Ends with f; after a failure stop makes it end.
	go func() {
		mu.Lock()
		r.byID[goroutine()] = t
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			t.over = true
		}()
		step()
		f()
	}()
}

// OnStuck names what is called when a run hangs, to make its goroutines end.
func (r *Run) OnStuck(stop func()) { r.stop = stop }

// AtEnd names what is called when all goroutines of a run have ended; its error
// ends Explore.
func (r *Run) AtEnd(judge func() error) { r.judge = judge }

// Explore runs a scenario in every order of its steps in which at most so many
// times a goroutine that could go on has to wait for another one; a negative
// number is no bound. Such switches are few in every known fault of this kind,
// so a small bound finds them long before all orders are through. It returns how
// many orders there were, and an error about the first that hangs, in which a
// goroutine waits and nobody is left to end that, or that is refused at its end.
// It has to be called in a bubble of testing/synctest, by one goroutine at a
// time.
func Explore(switches int, scenario func(*Run)) (orders int, err error) {
	var path []choice
	for {
		orders++
		r := &Run{byID: map[string]*task{}}
		path, err = r.follow(path, switches, scenario)
		if err != nil {
			return orders, err
		}
		for len(path) > 0 && path[len(path)-1].taken == path[len(path)-1].of-1 {
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			return orders, nil
		}
		path[len(path)-1].taken++
	}
}

// choice is which of several goroutines took a step.
type choice struct{ taken, of int }

// follow makes one run: the choices of path first, then always the first.
func (r *Run) follow(path []choice, switches int, scenario func(*Run)) ([]choice, error) {
	setCurrent(r)
	scenario(r)
	for at := 0; ; at++ {
		synctest.Wait()
		ready := r.ready(switches)
		if len(ready) == 0 {
			break
		}
		if at == len(path) {
			path = append(path, choice{0, len(ready)})
		}
		r.let(ready[path[at].taken])
	}
	var stuck []string
	for _, t := range r.tasks {
		if !t.over {
			stuck = append(stuck, t.name)
		}
	}
	if stuck != nil {
		r.release()
		return path, fmt.Errorf("%s waits for ever in this order of steps: %s", strings.Join(stuck, " and "), strings.Join(r.trace, " "))
	}
	if r.judge != nil { // it is of no run, so its steps wait for nobody
		if err := r.judge(); err != nil {
			return path, fmt.Errorf("%w in this order of steps: %s", err, strings.Join(r.trace, " "))
		}
	}
	return path, nil
}

// ready returns who may take the next step: first who took the last one.
func (r *Run) ready(switches int) []*task {
	var ready []*task
	for _, t := range r.tasks {
		if t.at {
			ready = append(ready, t)
		}
	}
	if i := slices.Index(ready, r.last); i >= 0 {
		ready[0], ready[i] = ready[i], ready[0]
		if switches >= 0 && r.switches >= switches {
			ready = ready[:1]
		}
	}
	return ready
}

// let lets a goroutine take its step.
func (r *Run) let(t *task) {
	if r.last != nil && r.last != t && r.last.at {
		r.switches++
	}
	r.last = t
	r.trace = append(r.trace, t.name)
	t.at = false
	t.gate <- struct{}{}
}

// release makes the goroutines of a run that hangs end.
func (r *Run) release() {
	mu.Lock()
	r.free = true
	mu.Unlock()
	if r.stop != nil {
		r.stop()
	}
	synctest.Wait()
}
