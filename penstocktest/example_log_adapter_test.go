package penstocktest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
)

// What the guide shows in docs/guide/adapters.md: an adapter for a log that is
// read by position and drops its oldest records.

// journal stands for the client of a log elsewhere, with partitions.
type journal struct {
	mu    sync.Mutex
	parts []journalPart
}

type journalPart struct {
	oldest  uint64 // position of records[0]
	records [][]byte
}

func (j *journal) append(part int, record []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.parts[part].records = append(j.parts[part].records, record)
}

// trim drops the n oldest records.
func (j *journal) trim(part, n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &j.parts[part]
	p.oldest, p.records = p.oldest+uint64(n), p.records[n:]
}

// read returns records from the position on, or from the oldest when that is
// gone, and the position of the first.
func (j *journal) read(part int, from uint64, limit int) (first uint64, records [][]byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.parts[part]
	first = max(from, p.oldest)
	if end := p.oldest + uint64(len(p.records)); first < end {
		records = p.records[first-p.oldest : min(first-p.oldest+uint64(limit), uint64(len(p.records)))]
	}
	return first, records
}

func (j *journal) end(part int) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.parts[part].oldest + uint64(len(j.parts[part].records))
}

type journalFactory struct {
	stream.DefaultParts
	journal     *journal
	checkpoints stream.CheckpointStore
}

func (f *journalFactory) NewAdapter(_ context.Context, e stream.Environment) (stream.Adapter, error) {
	return &journalAdapter{journal: f.journal, checkpoints: f.checkpoints, provider: e.Provider, mapper: e.Mapper}, nil
}

type journalAdapter struct {
	journal     *journal
	checkpoints stream.CheckpointStore
	provider    string
	mapper      stream.Mapper
}

func (*journalAdapter) Rewindable() bool            { return true }
func (*journalAdapter) Direction() stream.Direction { return stream.ReadWrite }
func (*journalAdapter) Close() error                { return nil }

func (a *journalAdapter) Enqueue(ctx context.Context, c stream.Container) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	record, err := stream.ContainerCodec().Append(nil, c)
	if err != nil {
		return err
	}
	a.journal.append(a.mapper.QueueFor(c.Stream).Number, record)
	return nil
}

func (a *journalAdapter) CheckToken(q stream.QueueID, t penstock.Token) error {
	if t.Hi != 0 {
		return fmt.Errorf("%v is not of this log: %w", t, penstock.ErrInvalid)
	}
	if t.Lo >= a.journal.end(q.Number) {
		return fmt.Errorf("%v is beyond the end: %w", t, penstock.ErrOffsetOutOfRange)
	}
	return nil
}

func (a *journalAdapter) NewReceiver(q stream.QueueID) (stream.Receiver, error) {
	marks, err := stream.NewCheckpointer(a.checkpoints, a.provider, q, stream.CheckpointerConfig{})
	if err != nil {
		return nil, err
	}
	return &journalReceiver{journal: a.journal, part: q.Number, marks: marks}, nil
}

type journalReceiver struct {
	journal *journal
	part    int
	marks   stream.Checkpointer
	placed  bool
	next    uint64 // position to read next
}

func (r *journalReceiver) Checkpointer() stream.Checkpointer { return r.marks }

func (r *journalReceiver) Init(ctx context.Context) error {
	at, ok, err := r.marks.Load(ctx)
	if err != nil {
		return err
	}
	if ok {
		r.next = at.Lo + 1 // all up to at has been processed
	}
	r.placed = true
	return nil
}

func (r *journalReceiver) Read(ctx context.Context, limit int) ([]stream.Container, error) {
	if !r.placed { // Init has failed, and the agent goes on
		if err := r.Init(ctx); err != nil {
			return nil, err
		}
	}
	if err := penstock.ContextError(ctx); err != nil {
		return nil, err
	}
	if limit < 0 {
		limit = 1000
	}
	first, records := r.journal.read(r.part, r.next, limit)
	if first > r.next && len(records) > 0 {
		// Nobody will see [r.next, first) any more: alarm on it.
		fmt.Printf("partition %d: %d records were trimmed unread\n", r.part, first-r.next)
	}
	var out []stream.Container
	for i, record := range records {
		var c stream.Container
		if err := stream.ContainerCodec().Decode(record, &c); err != nil {
			return nil, fmt.Errorf("record %d: %w", first+uint64(i), err)
		}
		c.Token = penstock.Token{Lo: first + uint64(i)} // the same for ever
		out = append(out, c)
	}
	if len(out) > 0 {
		r.next = first + uint64(len(out))
	}
	return out, nil
}

// Delivered has nothing to do: the agent tells the checkpointer.
func (*journalReceiver) Delivered(context.Context, []stream.Container) error { return nil }

func (r *journalReceiver) Shutdown(ctx context.Context) error { return r.marks.Flush(ctx) }

func TestJournalAdapter(t *testing.T) {
	penstocktest.Adapter(t, func(t *testing.T, queues int) stream.Factory {
		return &journalFactory{journal: &journal{parts: make([]journalPart, queues)}, checkpoints: stream.NewMemoryCheckpoints()}
	})
}

func TestJournalReceiverGoesOnAtTheOldestRecord(t *testing.T) {
	j := &journal{parts: make([]journalPart, 1)}
	for i := range 5 {
		record, err := stream.ContainerCodec().Append(nil, stream.Container{Stream: penstock.StreamID{Namespace: "n", Key: fmt.Sprint(i)}, Events: stream.EventsOf(penstock.Envelope{})})
		if err != nil {
			t.Fatal(err)
		}
		j.append(0, record)
	}
	r := &journalReceiver{journal: j, placed: true, next: 1}
	j.trim(0, 3)
	got, err := r.Read(t.Context(), 10)
	if err != nil || len(got) != 2 || got[0].Token.Lo != 3 || r.next != 5 {
		t.Errorf("%d containers, the next at %d: %v", len(got), r.next, err)
	}
}
