package stream

import (
	"context"
	"runtime/debug"
	"sync"

	"github.com/penstock/penstock"
)

// task is one piece of work that may block. Its do runs on a worker and touches
// nothing but the task; done runs afterwards, in the turn of the run, and
// applies what it came to.
type task interface {
	do(ctx context.Context, w *worker) error
	done(r *run, err error)
	where() string // whose code do runs, for a panic
}

// crew is the workers of a run and the tasks that wait for one, oldest first.
// A task never waits for another one to end: a worker that takes a task while
// more of them wait calls a worker for those before it begins. A task that ends
// soon is therefore often followed by the next one on the same goroutine, and a
// task that blocks costs a goroutine. It is safe for concurrent use.
//
// Invariants: when tasks wait, a worker was called and has not looked yet, or
// somebody holds the turn of the run and looks when it is over; idle holds the
// workers that were not called.
type crew struct {
	all *latch // goroutines of workers

	mu     sync.Mutex
	tasks  []task
	first  int // of tasks that wait; those before it were taken
	idle   []*worker
	called bool // a worker was called and has not looked
	closed bool // workers without a task end
}

// worker does one task after the other.
type worker struct {
	run  *run
	call chan struct{} // of capacity 1; closed when it is to end
	room *room         // for what handlers are called with; nil while one has it
}

// takeRoom lends the room out.
func (w *worker) takeRoom() *room {
	m := w.room
	if w.room = nil; m == nil {
		m = new(room)
	}
	return m
}

// idleMax is how many workers without a task a run keeps for the next ones.
const idleMax = 16

// start has a task done. The caller holds the turn, has entered the latch, and
// leaves it in the task's done, or later. The task ends when its do returns,
// which r.ctx and the callers bring about; the loop waits for it through the
// latch. One that does not return although r.ctx has ended is left behind, and
// its result with it; the agent does not start again before it has returned.
func (r *run) start(t task) {
	c := &r.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first > 0 && len(c.tasks) == cap(c.tasks) {
		n := copy(c.tasks, c.tasks[c.first:])
		clear(c.tasks[n:])
		c.tasks, c.first = c.tasks[:n], 0
	}
	c.tasks = append(c.tasks, t)
}

// callWorker calls a worker when tasks wait and none has been called.
func (r *run) callWorker() {
	c := &r.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	r.callLocked()
}

func (r *run) callLocked() {
	c := &r.crew
	if c.called || c.first == len(c.tasks) {
		return
	}
	if n := len(c.idle); n > 0 {
		c.called = true
		w := c.idle[n-1]
		c.idle[n-1], c.idle = nil, c.idle[:n-1]
		w.call <- struct{}{} // does not wait: it was idle
		return
	}
	if !c.all.enter() {
		return // the run is over: who has a task may do those that wait
	}
	c.called = true
	w := &worker{run: r, call: make(chan struct{}, 1)}
	// A worker: ends when it is idle and the crew is closed, or there are enough
	// others; finish waits for it, unless it is left behind.
	go w.live()
}

// dismiss lets workers without a task end, at once or when they have none. No
// task is started any more.
func (r *run) dismiss() {
	c := &r.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	r.callLocked()
	c.closed = true
	for _, w := range c.idle {
		close(w.call)
	}
	c.idle = nil
}

// next takes the oldest task that waits. Without one the worker becomes idle,
// and then waits, or ends when stay is false.
func (w *worker) next(called bool) (t task, stay bool) {
	c := &w.run.crew
	c.mu.Lock()
	defer c.mu.Unlock()
	if called {
		c.called = false
	}
	if c.first < len(c.tasks) {
		t = c.tasks[c.first]
		c.tasks[c.first] = nil
		if c.first++; c.first == len(c.tasks) {
			c.tasks, c.first = c.tasks[:0], 0
		}
		w.run.callLocked()
		return t, true
	}
	if c.closed || len(c.idle) == idleMax {
		return nil, false
	}
	c.idle = append(c.idle, w)
	return nil, true
}

func (w *worker) live() {
	defer w.run.crew.all.leave()
	for called := true; ; {
		t, stay := w.next(called)
		switch {
		case t != nil:
			called = false
			w.do(t)
		case !stay:
			return
		default:
			if _, called = <-w.call; !called {
				return
			}
		}
	}
}

// do does a task and brings its result. User code that ends its goroutine takes
// the worker with it.
func (w *worker) do(t task) {
	x := result{task: t}
	finished := false
	defer func() {
		if !finished {
			x.err = sound(t.where(), &penstock.PanicError{Where: t.where(), Value: recover(), Stack: debug.Stack()})
			w.run.bring(x)
			w.run.callWorker() // for what it brought about, should this one end
		}
	}()
	if x.err = t.do(w.run.ctx, w); x.err != nil {
		x.err = sound(t.where(), x.err)
	}
	finished = true
	w.run.bring(x)
}

// funcTask is a task of two functions.
type funcTask struct {
	name string
	job  func(ctx context.Context) error
	then func(error)
}

func (f *funcTask) do(ctx context.Context, _ *worker) error { return f.job(ctx) }
func (f *funcTask) done(_ *run, err error)                  { f.then(err) }
func (f *funcTask) where() string                           { return f.name }

// spawn starts a task that is made of two functions: job, on a worker, and then,
// in a turn. See start.
func (r *run) spawn(where string, job func(ctx context.Context) error, then func(error)) {
	r.start(&funcTask{where, job, then})
}
