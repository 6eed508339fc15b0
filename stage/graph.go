package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// Graph is a set of connected stages that start, run and end together. Make one
// with [NewGraph], connect stages with [Connect], and call [Graph.Run]. A graph
// runs once. All methods are safe for concurrent use; Connect comes before the
// start.
//
// A graph ends when all its stages have. Once the last of its sinks has ended,
// nothing can be delivered any more, but to consumers of other graphs, which do
// not count: then the graph ends the stages that remain, discards what they hold
// and cancels the callbacks' context. A stage that waits for a subscription (see
// [Mode]) goes on until the graph drains. One
// stage's failure ends the stages after it by their cancel modes, and no others
// (ADR 0024, 0046).
//
// Invariants: live is the number of stages that have not ended, sinks how many
// of them are sinks; causes only grows; links has the
// subscriptions of the graph's consumers that have not ended; idle is closed
// exactly when live becomes 0, done after every goroutine of the graph has
// returned.
type Graph struct {
	fuse          bool
	drain         time.Duration
	startWithin   time.Duration
	abortOnCancel bool
	supervises    strategy
	restarts      Restarts // of all stages
	log           *slog.Logger
	poison        bool          // tests: see outlet.poison
	once          bool          // Poison was given
	clock         *seglog.Clock // coarse; see base.enter

	draining  atomic.Bool // ends of producers are no reason to stop before the last
	idle      chan struct{}
	done      chan struct{}
	gaveUp    chan struct{} // closed when a stage was given up
	wg        sync.WaitGroup
	callbacks context.Context         // set by Start
	cancel    context.CancelCauseFunc // of callbacks; set by Start

	mu        sync.Mutex
	started   bool
	starting  bool // Start runs Inits
	hopeless  bool // gaveUp is closed
	quitting  bool // every stage was told to end at once
	nodes     []node
	links     []*Subscription
	names     map[string]bool // of mailboxes and of faces
	pending   []late          // Connect with names that had no owner yet
	declared  int             // calls of Connect
	refused   []error
	unstarted error // of the last Start, if it failed
	live      int
	sinks     int
	causes    []error
	cut       *penstock.DrainError // the drain was cut short, or the graph aborted
	aborted   error
	result    error
}

// NewGraph returns an empty graph.
func NewGraph(opts ...GraphOption) *Graph {
	g := &Graph{
		fuse: true, drain: DefaultGraphDrain, startWithin: DefaultStart, clock: seglog.NewClock(),
		idle: make(chan struct{}), done: make(chan struct{}), gaveUp: make(chan struct{}),
	}
	for i, o := range opts {
		if o == nil {
			g.refuse(nilOption("NewGraph", i, len(opts)))
			continue
		}
		o(g)
	}
	return g
}

func (g *Graph) refuse(err error) { g.refused = append(g.refused, err) }

// Run starts the graph and waits for its end. It returns nil when every stage
// ended normally. When stages failed, it returns the first failure; later ones
// are joined behind it.
//
// When ctx ends, Run drains (ADR 0010): sources produce nothing more, and
// everything on its way is delivered, for at most [DrainWithin]. Only then the
// callbacks' context is cancelled, and Run returns a *[penstock.DrainError] with
// the number of events that were not settled; they are gone. Run returns after every callback
// has: a callback that ignores its context keeps it.
func (g *Graph) Run(ctx context.Context) error {
	if err := g.Start(ctx); err != nil {
		return err
	}
	return g.Wait()
}

// Start checks the graph and starts it, or returns why it cannot: then nothing
// was started, no callback but an [Init] has run, and the error matches
// [penstock.ErrInvalid], or [ErrProducerNotAlive] or [ErrConsumerNotAlive] when no
// stage has a name that was connected, or is that of an Init.
//
// A Start that has failed ends what waits for the graph: every stage and every
// subscription is done, with its error. When what it said is missing was added
// since, by Connect, Add or As, Start may be called again, and stages and
// subscriptions then live anew. A graph is not started any more when an Init has
// failed, a dispatcher has refused, or what is wrong cannot be taken back.
//
// ctx is that of [Graph.Run].
func (g *Graph) Start(ctx context.Context) error {
	loose, err := g.start(ctx)
	for _, l := range loose { // the logger is user code: no lock is held
		l.warn()
	}
	return err
}

func (g *Graph) start(ctx context.Context) ([]looseEnd, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started || g.starting {
		return nil, &penstock.FieldError{Field: "Graph", Reason: "was started before; a graph runs once"}
	}
	g.revive()
	if err := g.prepare(ctx); err != nil {
		g.failStart(err)
		return nil, err
	}
	loose := g.looseEnds()
	g.callbacks, g.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	g.started = true
	executors := g.executors()
	for _, l := range g.links {
		l.adopt()
	}
	for _, n := range g.nodes {
		g.countIn(n.common())
	}
	for _, x := range executors {
		g.launch(x)
	}
	// The watcher: ends after the last stage; Wait waits for it.
	go g.watch(ctx)
	return loose, nil
}

func (g *Graph) countIn(b *base) {
	b.ctx = &callContext{g.callbacks, b}
	g.live++
	if b.kind == KindSink {
		g.sinks++
	}
}

func (g *Graph) launch(x *executor) {
	// An executor: ends with its last stage; watch waits for it. After a
	// runtime.Goexit in a callback another takes over.
	x.again = func() { g.wg.Go(x.run) }
	x.again()
}

// Wait blocks until the graph has ended and returns what [Graph.Run] returns.
// It returns an error at once when the graph was not started, with that of the
// last Start, if it failed.
func (g *Graph) Wait() error {
	if err := g.runs(); err != nil {
		return err
	}
	<-g.done
	return g.result
}

// Stop drains the graph as the end of Run's context does, but until ctx ends,
// and returns what Run returns. A callback of the graph must not call it, nor
// Wait: it would wait for itself. It may call [Graph.Abort].
func (g *Graph) Stop(ctx context.Context) error {
	if err := g.runs(); err != nil {
		return err
	}
	g.beginDrain()
	select {
	case <-g.idle:
	case <-ctx.Done():
		g.expire(penstock.ContextError(ctx))
	}
	return g.Wait()
}

// Abort ends the graph at once: the callbacks' context is cancelled with err,
// and everything on its way is discarded and counted. It does not wait. Run and
// Wait then return err, and how many events were not settled as a
// *[penstock.DrainError] joined to it. A nil err stands for "aborted". Abort
// before Start, or after the end, changes nothing.
func (g *Graph) Abort(err error) {
	if err == nil {
		err = errAborted
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.started || g.live == 0 || g.aborted != nil {
		return
	}
	g.aborted = err
	g.causes = append(g.causes, err)
	g.cutShort(err)
}

// watch carries the end of the graph's context into a drain, and closes done.
func (g *Graph) watch(ctx context.Context) {
	select {
	case <-g.idle:
	case <-ctx.Done():
		if g.abortOnCancel {
			g.Abort(penstock.ContextError(ctx))
			break
		}
		g.drainWithin(ctx, func() error { return penstock.ContextError(ctx) })
	case <-g.gaveUp:
		g.drainWithin(ctx, func() error { return errGaveUp })
	}
	<-g.idle
	g.wg.Wait()
	g.lookForWrites()
	g.clock.Stop()
	g.cancel(nil)
	g.mu.Lock()
	g.result = g.outcome()
	g.mu.Unlock()
	close(g.done)
}

// drainWithin drains the graph, and cuts it short after its time. The end of ctx
// cuts it short too where that is to abort the graph.
func (g *Graph) drainWithin(ctx context.Context, why func() error) {
	g.beginDrain()
	deadline := time.NewTimer(g.drain)
	defer deadline.Stop()
	var abort <-chan struct{}
	if g.abortOnCancel {
		abort = ctx.Done()
	}
	select {
	case <-g.idle:
	case <-abort:
		g.Abort(penstock.ContextError(ctx))
	case <-deadline.C:
		g.expire(why())
	}
}

func (g *Graph) beginDrain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining.Swap(true) {
		return
	}
	for _, l := range g.links {
		if l.from.graph() != g { // which goes on
			l.Cancel()
		}
	}
	for _, n := range g.nodes {
		if b := n.common(); b.kind == KindSource {
			b.wake(ctlStop)
		} else {
			b.wake(0) // a gate without a consumer has to see it
		}
	}
}

// expire ends a drain whose time is up.
func (g *Graph) expire(why error) {
	var inCallback []string
	now := time.Now()
	g.mu.Lock()
	cut := g.live > 0 && g.cut == nil
	if cut {
		for _, n := range g.nodes {
			if text := n.common().userCode(now); text != "" {
				inCallback = append(inCallback, text)
			}
		}
		g.cutShort(why)
		g.cut.Busy = inCallback
	}
	g.mu.Unlock()
	if cut {
		g.logger().Warn("drain deadline passed", slog.Any("in_callback", inCallback))
	}
}

func (g *Graph) cutShort(why error) {
	if g.cut == nil {
		g.cut = &penstock.DrainError{Gone: true, Err: why}
	}
	g.quit(why)
}

func (g *Graph) quit(why error) {
	g.quitting = true
	g.cancel(why)
	for _, n := range g.nodes {
		n.common().wake(ctlQuit)
	}
}

// failed notes why a stage has failed.
func (g *Graph) failed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.causes = append(g.causes, err)
}

// stageEnded is called by each stage, once, on its goroutine.
func (g *Graph) stageEnded(b *base) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.live--
	if b.kind == KindSink {
		g.sinks--
	}
	switch {
	case g.live == 0:
		close(g.idle)
	case b.kind == KindSink && g.sinks == 0:
		g.quit(errNoConsumers)
	}
}

// outcome says what became of the graph, after the last stage has ended.
func (g *Graph) outcome() error {
	left := 0
	for _, n := range g.nodes {
		left += n.common().left
	}
	errs := slices.Clone(g.causes)
	if g.cut != nil && left > 0 {
		g.cut.Left = left
		errs = append(errs, g.cut)
	}
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return errors.Join(errs...)
}

func (g *Graph) logger() *slog.Logger {
	if g.log != nil {
		return g.log
	}
	return slog.Default()
}

// name gives helpers a name of their own in the graph: "map#3" is the third
// stage that was connected, and a map.
func (g *Graph) name(b *base) {
	if b.auto && b.settings.named == "" {
		b.name = fmt.Sprintf("%s#%d", b.name, len(g.nodes)+1)
	}
}
