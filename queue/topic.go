package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/seglog"
)

// Topic is a partitioned queue that any number of consumer groups read, each
// at its own pace. All methods are safe for concurrent use.
//
// Invariants: the events that some group has not committed are at most
// Capacity, and their sizes at most CapacityBytes. A request is accepted whole, or, when it is larger than
// Capacity and producers wait, in slices each of which is accepted whole.
// With a router, equal keys share a partition.
//
// Locks, in the order in which they may be taken: a group's of Run; groupsMu; a
// group's of its first use; its readers';
// the turn; the budget's; the marks' of a partition; a partition's append lock;
// the log's. None is held while user code runs or while a channel is waited
// for, and during I/O none but two: groupsMu, while the positions of a group are
// made, moved or deleted on disk, and a group's of Run, while its retry log is
// read at the beginning of a run.
type Topic[T any] struct {
	config Config[T] // immutable
	parts  []*partition[T]
	byKey  keyRouter      // the router, when it can route by a given key
	budget *demand.Budget // nil when unbounded
	clock  *seglog.Clock
	disk   *fileEngine[T] // nil in memory
	logger *slog.Logger
	full   error // the topic's own refusal; matches ErrFull
	closed atomic.Bool
	plain  atomic.Bool // open, and a single event may go the short way
	noTold atomic.Bool // the missing group was logged
	// creditSize is what single events take from the budget at once.
	creditSize int
	plans      sync.Pool // of *plan, for routed batches
	slow       bool      // a single event takes the way of batches: on disk, or measured
	measured   bool      // events are measured before they are admitted
	measures   sync.Pool // of *measured
	insiders   insiders[T]
	ended      chan struct{} // closed when the first Close has returned
	endErr     error         // what it returned
	seen       topicSeen

	turn    seglog.Turn   // guards what stands below, on lines off those above
	next    *partition[T] // whose turn is next
	credit  int           // capacity taken in advance; see admit.go
	joined  bool          // the turn publishes single events, and no batch is under way
	calm    int           // single events since the last batch, while not joined
	strict  int           // requests that want the budget to be exact
	batches atomic.Int64  // round-robin batches that may be appending

	_        [128]byte
	groupsMu sync.Mutex
	groups   map[string]*Group[T]
}

// Open returns a new topic in memory, or opens one on disk when Config.Dir is
// set. The error matches [penstock.ErrInvalid] and names the field when the
// configuration is wrong; nothing was made then.
func Open[T any](c Config[T]) (*Topic[T], error) { return OpenContext(context.Background(), c) }

// OpenContext is [Open] that ends with its context: a topic on disk that was
// not closed cleanly, or that has a CapacityBytes, is read before it is there.
// Nothing is lost by a stop, and nothing stays open. The error matches that of
// ctx and its cause. How far a long open is goes to the log.
func OpenContext[T any](ctx context.Context, c Config[T]) (*Topic[T], error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("open topic %q: %w", c.Name, err)
	}
	t := &Topic[T]{
		config: c,
		clock:  seglog.NewClock(),
		logger: c.Logger.With("topic", c.Name),
		full:   fmt.Errorf("topic %q: %w", c.Name, penstock.ErrFull),
		ended:  make(chan struct{}),
		groups: make(map[string]*Group[T]),
	}
	t.turn.Init()
	t.plans.New = func() any { return new(plan) }
	t.measures.New = func() any { return new(measured) }
	t.measured = c.CapacityBytes > 0 || c.MaxEvent > 0
	t.slow = t.measured || c.Dir != ""
	t.byKey, _ = c.Router.(keyRouter)
	if c.Capacity > 0 || c.CapacityBytes > 0 {
		budget, err := demand.NewBudget(demand.BudgetConfig{Events: c.Capacity, Bytes: c.CapacityBytes, Refill: t.refill})
		if err != nil {
			return nil, fmt.Errorf("open topic %q: %w", c.Name, err)
		}
		t.budget, t.creditSize = budget, creditSize(c.Capacity)
	}
	t.parts = make([]*partition[T], c.Partitions)
	for i := range t.parts {
		t.parts[i] = newPartition[T](i)
		if c.CapacityBytes > 0 {
			t.parts[i].ledger = &ledger{}
		}
	}
	for i, p := range t.parts {
		p.next = t.parts[(i+1)%len(t.parts)]
	}
	t.next = t.parts[0]
	t.plain.Store(!t.slow && c.Router == nil)
	if t.budget == nil {
		t.credit = math.MaxInt // spend makes it whole again
	}
	if c.Dir == "" {
		for _, p := range t.parts {
			p.log = seglog.New[T](seglog.Config{SegmentSize: c.SegmentSize, Clock: t.clock})
			p.log.TakesTurns(&t.turn, p.index, len(t.parts))
		}
		t.look()
		return t, nil
	}
	engine, err := openFileEngine(ctx, t)
	if err != nil {
		return nil, err // says "open topic" and the name already
	}
	t.disk = engine
	engine.keeper.start(engine)
	t.look()
	return t, nil
}

// Name returns the topic's name.
func (t *Topic[T]) Name() string { return t.config.Name }

// Partitions returns the number of partitions.
func (t *Topic[T]) Partitions() int { return len(t.parts) }

// refill collects the capacity that commits have freed since the last call
// (BQ-48). The budget calls it with its mutex held, one call at a time.
func (t *Topic[T]) refill() (int, penstock.Bytes) {
	n, bytes := 0, penstock.Bytes(0)
	for _, p := range t.parts {
		if mark := p.marks.Committed(); mark > p.returned {
			free, size := int(mark-p.returned), penstock.Bytes(0)
			p.returned = mark
			if p.ledger != nil {
				size = p.ledger.release(mark)
			}
			free, size = p.debt.pay(free, size)
			n, bytes = n+free, bytes+size
		}
	}
	return n, bytes
}

// pressed reports whether producers wait for capacity.
func (t *Topic[T]) pressed() bool { return t.budget != nil && t.budget.Waiting() > 0 }

// freed tells producers in line that commits may have made room. It costs one
// load while nobody waits.
func (t *Topic[T]) freed() {
	if t.budget != nil && t.budget.Waiting() > 0 {
		t.budget.Poke()
	}
}

// Close ends the topic: producers and consumers that wait return
// [penstock.ErrClosed], and so does every later call. A topic in memory is
// gone with everything in it; a topic on disk is synced first. Close waits for
// the storage, not for handlers; a second call waits for the first and returns
// what it returned.
func (t *Topic[T]) Close() error {
	if t.closed.Swap(true) {
		<-t.ended
		return t.endErr
	}
	defer close(t.ended)
	t.endErr = t.close()
	return t.endErr
}

func (t *Topic[T]) close() error {
	t.plain.Store(false)
	t.lookAway()
	if t.budget != nil {
		t.budget.Close()
	}
	if t.boundedOnDisk() {
		close(t.disk.line.closed)
	}
	t.groupsMu.Lock()
	groups := t.groups
	t.groups = nil
	t.groupsMu.Unlock()
	var err error
	for _, g := range groups {
		g.shut()
		err = errors.Join(err, g.parking.close())
	}
	t.clock.Stop()
	for _, p := range t.parts {
		if p.log != nil {
			p.log.Retire()
		}
	}
	if t.disk != nil {
		if err = errors.Join(err, t.disk.close()); err != nil {
			return fmt.Errorf("close topic %q: %w", t.config.Name, err)
		}
	}
	return nil
}
