package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// Checkpoint is what a [CheckpointStore] holds for one queue of a provider.
// The zero Checkpoint means that nothing was stored yet.
type Checkpoint struct {
	Position penstock.Token // everything up to and including it has been processed; Index 0
	Stored   bool
	Epoch    uint64 // of the owner that stored it; 0 where queues have one owner for ever
}

// CheckpointStore keeps checkpoints for queues that do not keep one themselves.
// Implementations must be safe for concurrent use. Every method must return
// soon after its ctx has ended.
type CheckpointStore interface {
	// LoadCheckpoint returns what is stored.
	LoadCheckpoint(ctx context.Context, provider string, q QueueID) (Checkpoint, error)
	// SwapCheckpoint stores to, durably, if what is stored equals from, to is
	// of the same or a higher epoch, and its position is above that of from;
	// else it changes nothing. It returns what is stored then, and whether
	// that is to. After an error what is stored is what it was, unless the
	// error matches penstock.ErrUnknownOutcome: then it may be either.
	SwapCheckpoint(ctx context.Context, provider string, q QueueID, from, to Checkpoint) (now Checkpoint, swapped bool, err error)
}

// swap is the rule of every store.
func (c Checkpoint) swap(from, to Checkpoint) (now Checkpoint, swapped bool) {
	rises := !from.Stored || to.Position.Compare(from.Position) > 0 || to.Epoch > from.Epoch && to.Position == from.Position
	if c != from || !to.Stored || to.Epoch < from.Epoch || !rises {
		return c, false
	}
	return to, true
}

type checkpointKey struct {
	provider string
	queue    QueueID
}

// MemoryCheckpoints is a checkpoint store in this process. It is gone with it.
// It is safe for concurrent use.
type MemoryCheckpoints struct {
	mu     sync.Mutex
	stored map[checkpointKey]Checkpoint
}

// NewMemoryCheckpoints returns an empty store.
func NewMemoryCheckpoints() *MemoryCheckpoints {
	return &MemoryCheckpoints{stored: map[checkpointKey]Checkpoint{}}
}

// LoadCheckpoint implements [CheckpointStore].
func (m *MemoryCheckpoints) LoadCheckpoint(_ context.Context, provider string, q QueueID) (Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stored[checkpointKey{provider, q}], nil
}

// SwapCheckpoint implements [CheckpointStore].
func (m *MemoryCheckpoints) SwapCheckpoint(_ context.Context, provider string, q QueueID, from, to Checkpoint) (Checkpoint, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := checkpointKey{provider, q}
	now, swapped := m.stored[key].swap(from, to)
	if swapped {
		m.stored[key] = now
	}
	return now, swapped, nil
}

// ErrNotOwner: another owner, with a higher epoch, has stored a checkpoint of
// the queue. What this one had to store is not stored.
var ErrNotOwner = errors.New("queue has another owner")

// CheckpointerConfig describes a checkpointer. Zero fields have the defaults
// given; a negative one is refused with a *penstock.FieldError.
type CheckpointerConfig struct {
	// Interval, 1 minute, is the least time between two saves; a restart
	// repeats at most what was processed in it. The first position is saved
	// at once, the last one by Flush.
	Interval time.Duration
	// Epoch is that of the owner; a store refuses one below what it has.
	Epoch uint64
}

// NewCheckpointer returns a checkpointer of one queue over a store, for the
// receiver of an adapter whose queue keeps no position itself. The receiver
// returns it from Checkpointer and flushes it in Shutdown. Unlike the
// interface asks for, it is safe for concurrent use: a call waits for a save
// under way, or until its ctx ends.
func NewCheckpointer(s CheckpointStore, provider string, q QueueID, c CheckpointerConfig) (Checkpointer, error) {
	if s == nil {
		return nil, fmt.Errorf("stream: checkpointer: %w", &penstock.FieldError{Field: "store", Reason: "is missing"})
	}
	if c.Interval < 0 {
		return nil, fmt.Errorf("stream: checkpointer: %w", &penstock.FieldError{Field: "Interval", Reason: fmt.Sprintf("%v is negative", c.Interval)})
	}
	if c.Interval == 0 {
		c.Interval = time.Minute
	}
	return &checkpointer{store: s, provider: provider, queue: q, config: c, turn: make(chan struct{}, 1)}, nil
}

// checkpointer implements [Checkpointer] over a store. The fields below turn
// belong to whoever has put something in.
type checkpointer struct {
	store    CheckpointStore
	provider string
	queue    QueueID
	config   CheckpointerConfig

	turn    chan struct{} // of capacity 1
	stored  Checkpoint
	known   bool // stored is what the store had when it was asked last
	newest  penstock.Token
	any     bool // newest is set
	tried   time.Time
	hasTick bool // tried is set
}

// enter takes the turn; the caller gives it back.
func (c *checkpointer) enter(ctx context.Context) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}

func (c *checkpointer) leave() { <-c.turn }

func (c *checkpointer) Load(ctx context.Context) (penstock.Token, bool, error) {
	if err := c.enter(ctx); err != nil {
		return penstock.Token{}, false, err
	}
	defer c.leave()
	if err := c.load(ctx); err != nil {
		return penstock.Token{}, false, err
	}
	return c.stored.Position, c.stored.Stored, nil
}

func (c *checkpointer) load(ctx context.Context) error {
	now, err := c.store.LoadCheckpoint(ctx, c.provider, c.queue)
	if err != nil {
		return fmt.Errorf("load checkpoint of queue %s: %w", c.queue, err)
	}
	c.stored, c.known = now, true
	return nil
}

func (c *checkpointer) Update(ctx context.Context, pos penstock.Token, now time.Time) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	pos = containerToken(pos)
	if !c.any || pos.Compare(c.newest) > 0 {
		c.newest, c.any = pos, true
	}
	if c.hasTick && now.Sub(c.tried) < c.config.Interval {
		return nil
	}
	if c.saved() {
		return nil
	}
	c.tried, c.hasTick = now, true // also when it fails: a store that is down is not hammered
	return c.save(ctx)
}

func (c *checkpointer) Flush(ctx context.Context) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	err := c.save(ctx)
	if err != nil && !errors.Is(err, ErrNotOwner) && ctx.Err() == nil {
		err = c.save(ctx)
	}
	return err
}

// saved reports whether there is nothing to store.
func (c *checkpointer) saved() bool {
	return !c.any || c.known && c.stored.Stored && c.newest.Compare(c.stored.Position) <= 0
}

// save stores the newest position. When the store has something else than was
// thought it decides once more, on what the store has: a higher position is
// taken over, a higher epoch ends it.
func (c *checkpointer) save(ctx context.Context) error {
	for range 2 {
		if c.saved() {
			return nil
		}
		if !c.known {
			if err := c.load(ctx); err != nil {
				return err
			}
			if c.saved() {
				return nil
			}
		}
		if c.stored.Epoch > c.config.Epoch {
			return fmt.Errorf("checkpoint %s of queue %s: epoch %d, the store has %d: %w", c.newest, c.queue, c.config.Epoch, c.stored.Epoch, ErrNotOwner)
		}
		to := Checkpoint{Position: c.newest, Stored: true, Epoch: c.config.Epoch}
		now, swapped, err := c.store.SwapCheckpoint(ctx, c.provider, c.queue, c.stored, to)
		if err != nil {
			c.known = false // perhaps it is stored: ask before the next save
			return fmt.Errorf("store checkpoint %s of queue %s: %w", c.newest, c.queue, err)
		}
		c.stored = now
		if swapped {
			return nil
		}
	}
	if c.saved() {
		return nil
	}
	if c.stored.Epoch > c.config.Epoch {
		return fmt.Errorf("checkpoint %s of queue %s: epoch %d, the store has %d: %w", c.newest, c.queue, c.config.Epoch, c.stored.Epoch, ErrNotOwner)
	}
	return fmt.Errorf("checkpoint %s of queue %s: another writer changes it all the time: %w", c.newest, c.queue, ErrNotOwner)
}
