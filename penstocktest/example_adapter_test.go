package penstocktest_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
)

// What the guide shows in docs/guide/adapters.md: an adapter for a broker that
// stores bytes, hands them out by number, and deletes what is acknowledged.

// broker stands for the client of a queue elsewhere. Its boxes hold messages.
type broker struct {
	mu    sync.Mutex
	last  uint64 // number of the message that was sent last; never used again
	boxes [][]brokerMessage
}

type brokerMessage struct {
	number uint64
	body   []byte
}

func (b *broker) send(box int, body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	b.boxes[box] = append(b.boxes[box], brokerMessage{b.last, body})
}

// fetch returns up to limit messages behind the one with the number.
func (b *broker) fetch(box int, behind uint64, limit int) (out []brokerMessage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.boxes[box] {
		if m.number > behind && len(out) < limit {
			out = append(out, m)
		}
	}
	return out
}

func (b *broker) remove(box int, number uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boxes[box] = slices.DeleteFunc(b.boxes[box], func(m brokerMessage) bool { return m.number == number })
}

type brokerFactory struct {
	stream.DefaultParts
	broker *broker
}

func (f *brokerFactory) NewAdapter(_ context.Context, e stream.Environment) (stream.Adapter, error) {
	return &brokerAdapter{broker: f.broker, mapper: e.Mapper}, nil
}

type brokerAdapter struct {
	broker *broker
	mapper stream.Mapper
}

func (*brokerAdapter) Rewindable() bool            { return false } // what was acknowledged is gone
func (*brokerAdapter) Direction() stream.Direction { return stream.ReadWrite }
func (*brokerAdapter) Close() error                { return nil }

func (a *brokerAdapter) Enqueue(ctx context.Context, c stream.Container) error {
	if err := penstock.ContextError(ctx); err != nil {
		return err
	}
	body, err := stream.ContainerCodec().Append(nil, c)
	if err != nil {
		return err
	}
	a.broker.send(a.mapper.QueueFor(c.Stream).Number, body)
	return nil
}

func (a *brokerAdapter) NewReceiver(q stream.QueueID) (stream.Receiver, error) {
	return &brokerReceiver{broker: a.broker, box: q.Number}, nil
}

type brokerReceiver struct {
	broker *broker
	box    int
	last   uint64 // number of the last message that this run has read
}

func (*brokerReceiver) Init(context.Context) error     { return nil } // connect here
func (*brokerReceiver) Shutdown(context.Context) error { return nil } // disconnect here

func (r *brokerReceiver) Read(ctx context.Context, limit int) ([]stream.Container, error) {
	if err := penstock.ContextError(ctx); err != nil {
		return nil, err
	}
	if limit < 0 {
		limit = 1000
	}
	var out []stream.Container
	for _, m := range r.broker.fetch(r.box, r.last, limit) {
		var c stream.Container
		if err := stream.ContainerCodec().Decode(m.body, &c); err != nil {
			return nil, err
		}
		c.Token = penstock.Token{Lo: m.number} // rises, Index 0
		c.Raw = m.number                       // the receipt
		out = append(out, c)
	}
	if len(out) > 0 {
		r.last = out[len(out)-1].Token.Lo // only when all of it goes out
	}
	return out, nil
}

func (r *brokerReceiver) Delivered(_ context.Context, done []stream.Container) error {
	for _, c := range done {
		r.broker.remove(r.box, c.Raw.(uint64))
	}
	return nil
}

func TestBrokerAdapter(t *testing.T) {
	penstocktest.Adapter(t, func(t *testing.T, queues int) stream.Factory {
		return &brokerFactory{broker: &broker{boxes: make([][]brokerMessage, queues)}}
	})
}
