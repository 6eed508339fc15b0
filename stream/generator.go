package stream

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock"
)

// GeneratorConfig describes a [Generator]. Zero fields have the defaults given;
// a negative one is refused with a *penstock.FieldError.
type GeneratorConfig struct {
	Namespace string // "generated"; of every stream
	Streams   int    // 8; their keys are the numbers from 0 on
	Events    int    // 100; of each stream, each in a container of its own
	// Event makes event n of a stream, from 0 on. It must be a pure function:
	// an event that comes again is made again. Nil means the number n in
	// decimal digits, which the JSON codec reads as an int.
	Event func(s penstock.StreamID, n int) penstock.Envelope
	// Checkpoints keeps how far each provider has come. Nil means a new
	// [MemoryCheckpoints]: a second run of a provider goes on, another
	// generator begins anew.
	Checkpoints CheckpointStore
}

// Generator makes up events instead of reading a queue: for tests, for
// measurements, and for trying out a provider. It is the [Factory] of
// providers that can only read. The streams of a queue take turns; the last
// event of each is marked, see [LastGenerated]. It can be rewound as far as the
// checkpoint: a token is a container's place in its queue.
//
// A Generator is safe for concurrent use.
type Generator struct {
	DefaultParts
	config GeneratorConfig
}

// NewGenerator returns a generator.
func NewGenerator(c GeneratorConfig) (*Generator, error) {
	if c.Namespace == "" {
		c.Namespace = "generated"
	}
	for _, f := range []struct {
		name  string
		value *int
		zero  int
	}{{"Streams", &c.Streams, 8}, {"Events", &c.Events, 100}} {
		if *f.value < 0 {
			return nil, fmt.Errorf("stream: generator: %w", &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", *f.value)})
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if c.Event == nil {
		c.Event = func(_ penstock.StreamID, n int) penstock.Envelope {
			return penstock.Envelope{Value: strconv.AppendInt(nil, int64(n), 10)}
		}
	}
	if c.Checkpoints == nil {
		c.Checkpoints = NewMemoryCheckpoints()
	}
	return &Generator{config: c}, nil
}

// generatedHeader marks the last event of a stream.
var generatedHeader = penstock.Field{Name: "generator", Value: "last"}

// LastGenerated reports whether an event with the header is the last one that
// a [Generator] makes for its stream.
func LastGenerated(h penstock.Header) bool {
	for _, f := range h {
		if f == generatedHeader {
			return true
		}
	}
	return false
}

// Streams returns the streams, by number.
func (g *Generator) Streams() []penstock.StreamID {
	all := make([]penstock.StreamID, g.config.Streams)
	for i := range all {
		all[i] = penstock.StreamID{Namespace: g.config.Namespace, Key: strconv.Itoa(i)}
	}
	return all
}

// NewAdapter returns an adapter that can only read.
func (g *Generator) NewAdapter(_ context.Context, e Environment) (Adapter, error) {
	a := &generatorAdapter{config: &g.config, provider: e.Provider, streams: make([][]penstock.StreamID, len(e.Mapper.Queues()))}
	for _, s := range g.Streams() {
		n := e.Mapper.QueueFor(s).Number
		a.streams[n] = append(a.streams[n], s)
	}
	return a, nil
}

type generatorAdapter struct {
	config   *GeneratorConfig
	provider string
	streams  [][]penstock.StreamID // by queue
}

func (*generatorAdapter) Rewindable() bool     { return true }
func (*generatorAdapter) Direction() Direction { return ReadOnly }
func (*generatorAdapter) Close() error         { return nil }

func (*generatorAdapter) Enqueue(context.Context, Container) error {
	return &unsupportedError{what: "a generator cannot be written to"}
}

// end returns how many containers a queue has.
func (a *generatorAdapter) end(q QueueID) uint64 {
	return uint64(len(a.streams[q.Number])) * uint64(a.config.Events)
}

// CheckToken implements [TokenChecker]: Lo is a place in the queue, Hi is 0.
func (a *generatorAdapter) CheckToken(q QueueID, t penstock.Token) error {
	if t.Hi != 0 {
		return &penstock.FieldError{Field: "Token", Reason: fmt.Sprintf("%s is not of a generator", t)}
	}
	if end := a.end(q); t.Lo >= end {
		return fmt.Errorf("token %s: queue %s ends before %d: %w", t, q, end, penstock.ErrOffsetOutOfRange)
	}
	return nil
}

func (a *generatorAdapter) NewReceiver(q QueueID) (Receiver, error) {
	if q.Number < 0 || q.Number >= len(a.streams) {
		return nil, &penstock.FieldError{Field: "q", Reason: fmt.Sprintf("queue %s is none of %d", q, len(a.streams))}
	}
	marks, err := NewCheckpointer(a.config.Checkpoints, a.provider, q, CheckpointerConfig{Interval: commitEvery})
	if err != nil {
		return nil, err
	}
	return &generatorReceiver{adapter: a, queue: q, marks: marks}, nil
}

type generatorReceiver struct {
	adapter *generatorAdapter
	queue   QueueID
	marks   Checkpointer
	next    uint64
	placed  bool // next is behind the checkpoint
}

func (r *generatorReceiver) Init(ctx context.Context) error {
	if r.placed {
		return nil
	}
	pos, ok, err := r.marks.Load(ctx)
	if err != nil {
		return err
	}
	if ok {
		r.next = pos.Lo + 1
	}
	r.placed = true
	return nil
}

func (r *generatorReceiver) Read(ctx context.Context, limit int) ([]Container, error) {
	if err := r.Init(ctx); err != nil {
		return nil, err
	}
	if limit < 0 {
		limit = readLimit
	}
	end := r.adapter.end(r.queue)
	if r.next >= end {
		return nil, nil
	}
	out := make([]Container, 0, min(uint64(limit), end-r.next))
	streams, now := r.adapter.streams[r.queue.Number], time.Now()
	next := r.next // taken back when Event panics: what is made up then is made again
	for ; len(out) < cap(out); next++ {
		s, n := streams[next%uint64(len(streams))], int(next/uint64(len(streams)))
		e := r.adapter.config.Event(s, n)
		if n == r.adapter.config.Events-1 {
			e.Header = append(e.Header[:len(e.Header):len(e.Header)], generatedHeader)
		}
		out = append(out, Container{Stream: s, Token: penstock.Token{Lo: next}, Time: now, Events: EventsOf(e)})
	}
	r.next = next
	return out, nil
}

// Wait implements [Waiter].
func (r *generatorReceiver) Wait(ctx context.Context) error {
	if r.next < r.adapter.end(r.queue) {
		return penstock.ContextError(ctx)
	}
	<-ctx.Done() // nothing comes any more
	return penstock.ContextError(ctx)
}

func (*generatorReceiver) Delivered(context.Context, []Container) error { return nil }
func (r *generatorReceiver) Checkpointer() Checkpointer                 { return r.marks }
func (r *generatorReceiver) Shutdown(ctx context.Context) error         { return r.marks.Flush(ctx) }
