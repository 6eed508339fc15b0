package penstocktest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// EngineOpKind is a kind of operation on an [Engine].
type EngineOpKind string

// Operations on an engine.
const (
	EngineEnqueue    EngineOpKind = "enqueue"
	EngineInit       EngineOpKind = "init"
	EngineRead       EngineOpKind = "read"
	EngineAck        EngineOpKind = "ack"
	EngineCheckpoint EngineOpKind = "checkpoint"
	EngineShutdown   EngineOpKind = "shutdown"
)

// EngineOp is an operation that is about to happen.
type EngineOp struct {
	N     int // 1 for the first operation after SetScript
	Kind  EngineOpKind
	Queue int
}

// EngineFault is what is to happen to an operation. The zero EngineFault lets
// it pass.
type EngineFault struct {
	Err       error           // it fails and has no effect
	LoseReply bool            // it has its effect, and the caller gets penstock.ErrUnknownOutcome
	Stall     <-chan struct{} // first it waits until this is closed or the caller's context ends, which fails it
	Duplicate bool            // an enqueue stores twice; a read of a queue with receipts leaves what it hands out visible
	Reorder   bool            // a read of a queue with receipts hands out the newest first
}

// Engine is a queue engine in memory that misbehaves by script, and the
// [stream.Factory] of providers over it. There are two families: an offset log
// ([NewLogEngine]), which is read by position, and a queue with receipts
// ([NewReceiptEngine]), in which a container is hidden while somebody has it.
// Time is that of package time, so it runs in synctest bubbles. It is safe for
// concurrent use.
type Engine struct {
	stream.DefaultParts
	visibility time.Duration // 0: a log
	marks      *engineMarks

	mu     sync.Mutex
	script func(EngineOp) EngineFault
	ops    int
	mapper stream.Mapper
	queues []*engineQueue
}

type engineQueue struct {
	first   uint64 // offset of messages[0]; what lies below was trimmed or acknowledged
	next    uint64 // offset of the message enqueued next
	tokens  uint64 // of the container handed out last, with receipts
	receipt uint64 // number of the last one
	entries []*engineEntry
	news    chan struct{} // closed, and replaced, when something comes
}

type engineEntry struct {
	c        stream.Container
	offset   uint64
	receipt  uint64 // 0: visible
	until    time.Time
	received int
}

// NewLogEngine returns an empty offset log. A token is an offset; the
// checkpoint is saved at each update.
func NewLogEngine() *Engine { return newEngine(0) }

// NewReceiptEngine returns an empty queue with receipts that are valid for so
// long, and are not renewed.
func NewReceiptEngine(visibility time.Duration) *Engine { return newEngine(visibility) }

func newEngine(visibility time.Duration) *Engine {
	e := &Engine{visibility: visibility}
	e.marks = &engineMarks{MemoryCheckpoints: stream.NewMemoryCheckpoints(), engine: e}
	return e
}

// SetScript makes script decide about each operation from now on; nil ends
// that. It runs on the goroutine of the operation, without a lock.
func (e *Engine) SetScript(script func(EngineOp) EngineFault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script, e.ops = script, 0
}

// Trim drops the oldest n containers of a queue, as retention does, whether
// they were read or not.
func (e *Engine) Trim(queue, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[queue]
	n = min(n, len(q.entries))
	for _, m := range q.entries[:n] {
		q.first = m.offset + 1
	}
	q.entries = slices.Delete(q.entries, 0, n)
}

// ExpireReceipts makes everything that was handed out and not acknowledged
// visible again at once.
func (e *Engine) ExpireReceipts(queue int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.queues[queue].entries {
		m.receipt = 0
	}
	e.queues[queue].wake()
}

// Left returns how many containers all queues hold.
func (e *Engine) Left() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		n += len(q.entries)
	}
	return n
}

func (q *engineQueue) wake() {
	close(q.news)
	q.news = make(chan struct{})
}

// NewAdapter returns the adapter. The first one decides the mapper.
func (e *Engine) NewAdapter(_ context.Context, env stream.Environment) (stream.Adapter, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mapper == nil {
		e.mapper = env.Mapper
		for range env.Mapper.Queues() {
			e.queues = append(e.queues, &engineQueue{news: make(chan struct{})})
		}
	}
	a := &engineAdapter{engine: e, provider: env.Provider}
	if e.visibility == 0 {
		return &logEngineAdapter{a}, nil
	}
	return a, nil
}

// do asks the script and carries out effect, with the lock held, as it says.
func (e *Engine) do(ctx context.Context, kind EngineOpKind, queue int, effect func(q *engineQueue, f EngineFault) error) error {
	e.mu.Lock()
	e.ops++
	op, script := EngineOp{N: e.ops, Kind: kind, Queue: queue}, e.script
	e.mu.Unlock()
	var f EngineFault
	if script != nil {
		f = script(op)
	}
	if f.Stall != nil {
		select {
		case <-f.Stall:
		case <-ctx.Done():
			return penstock.ContextError(ctx)
		}
	}
	if f.Err != nil {
		return f.Err
	}
	e.mu.Lock()
	err := effect(e.queues[queue], f)
	e.mu.Unlock()
	if err == nil && f.LoseReply {
		err = fmt.Errorf("%s: reply lost: %w", kind, penstock.ErrUnknownOutcome)
	}
	return err
}

type engineAdapter struct {
	engine   *Engine
	provider string
}

func (a *engineAdapter) Rewindable() bool          { return a.engine.visibility == 0 }
func (*engineAdapter) Direction() stream.Direction { return stream.ReadWrite }
func (*engineAdapter) Close() error                { return nil }

func (a *engineAdapter) Enqueue(ctx context.Context, c stream.Container) error {
	return a.engine.do(ctx, EngineEnqueue, a.engine.mapper.QueueFor(c.Stream).Number, func(q *engineQueue, f EngineFault) error {
		copies := 1
		if f.Duplicate {
			copies = 2
		}
		for range copies {
			q.entries = append(q.entries, &engineEntry{c: c, offset: q.next})
			q.next++
		}
		q.wake()
		return nil
	})
}

func (a *engineAdapter) NewReceiver(q stream.QueueID) (stream.Receiver, error) {
	r := engineReceiver{engine: a.engine, queue: q.Number}
	if a.engine.visibility > 0 {
		return &receiptReceiver{r}, nil
	}
	marks, err := stream.NewCheckpointer(a.engine.marks, a.provider, q, stream.CheckpointerConfig{Interval: 1})
	return &logReceiver{engineReceiver: r, marks: marks}, err
}

// logEngineAdapter can tell its own tokens.
type logEngineAdapter struct{ *engineAdapter }

func (a *logEngineAdapter) CheckToken(id stream.QueueID, t penstock.Token) error {
	a.engine.mu.Lock()
	defer a.engine.mu.Unlock()
	if t.Hi != 0 {
		return &penstock.FieldError{Field: "Token", Reason: fmt.Sprintf("%s is not of this engine", t)}
	}
	if end := a.engine.queues[id.Number].next; t.Lo >= end {
		return fmt.Errorf("token %s, the log ends before %d: %w", t, end, penstock.ErrOffsetOutOfRange)
	}
	return nil
}

// engineMarks are the engine's checkpoints.
type engineMarks struct {
	*stream.MemoryCheckpoints
	engine *Engine
}

func (m *engineMarks) SwapCheckpoint(ctx context.Context, provider string, id stream.QueueID, from, to stream.Checkpoint) (now stream.Checkpoint, swapped bool, err error) {
	err = m.engine.do(ctx, EngineCheckpoint, id.Number, func(*engineQueue, EngineFault) (err error) {
		now, swapped, err = m.MemoryCheckpoints.SwapCheckpoint(ctx, provider, id, from, to)
		return err
	})
	if err != nil {
		return stream.Checkpoint{}, false, err
	}
	return now, swapped, nil
}
