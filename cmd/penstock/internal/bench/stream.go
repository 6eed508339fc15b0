package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
)

// tallied counts what handlers were given, and tells when it is all there is.
type tallied struct {
	got   atomic.Int64
	owed  atomic.Int64
	whole chan struct{} // of capacity 1
}

func newTallied() *tallied { return &tallied{whole: make(chan struct{}, 1)} }

func (t *tallied) handle(_ context.Context, b penstock.Batch[[]byte]) error {
	if t.got.Add(int64(b.Len())) == t.owed.Load() {
		t.whole <- struct{}{}
	}
	return nil
}

// expect sets how many more events have to come; it is called when all earlier
// ones have come.
func (t *tallied) expect(n int) { t.owed.Add(int64(n)) }

func (t *tallied) wait(ctx context.Context) error {
	select {
	case <-t.whole:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d events arrived: %w", t.got.Load(), t.owed.Load(), penstock.ContextError(ctx))
	}
}

// done says whether more came than was owed.
func (t *tallied) done() error {
	if got, owed := t.got.Load(), t.owed.Load(); got != owed {
		return fmt.Errorf("%d events arrived, %d were published", got, owed)
	}
	return nil
}

// streamRig is an open provider whose streams are published to in turn.
type streamRig struct {
	topic    *stream.Topic
	provider *stream.Provider
	streams  []*stream.Stream[[]byte]
	tally    *tallied
	subs     int
	next     int
	stop     context.CancelFunc
	ended    chan error
}

// openStreams subscribes, runs the provider and has each stream deliver once.
func openStreams(e env, streams, subs int, handle penstock.Handler[[]byte], tally *tallied) (*streamRig, error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "bench", Partitions: streamQueues, Capacity: 8 * queueEvents, Logger: quiet})
	if err != nil {
		return nil, err
	}
	p, err := stream.Open(stream.Config{Name: "bench", Factory: topic, Queues: streamQueues, GroupSize: 1, Logger: quiet})
	if err != nil {
		return nil, errors.Join(err, topic.Close())
	}
	g := &streamRig{topic: topic, provider: p, tally: tally, subs: subs, ended: make(chan error, 1)}
	for i := range streams {
		s := stream.OfCodec(p, "bench", strconv.Itoa(i), penstock.Raw())
		g.streams = append(g.streams, s)
		for j := range subs {
			if _, err := s.Subscribe(e.ctx, strconv.Itoa(j), handle); err != nil {
				return nil, errors.Join(err, p.Close(), topic.Close())
			}
		}
	}
	ctx, stop := context.WithCancel(e.ctx)
	g.stop = stop
	// The provider's run: ends with ctx; close waits for it.
	go func() { g.ended <- p.Run(ctx) }()
	if tally != nil {
		if err := g.publish(e.ctx, &measure.Clock{}, payloads(1), streams); err != nil {
			return nil, errors.Join(err, g.close())
		}
	}
	return g, nil
}

// publish puts so many containers of the events into the next streams, and
// waits until all are delivered.
func (g *streamRig) publish(ctx context.Context, c *measure.Clock, events [][]byte, containers int) error {
	n := containers * len(events) * g.subs
	g.tally.expect(n)
	c.Start()
	for range containers {
		if err := g.streams[g.next].Publish(ctx, events...); err != nil {
			return err
		}
		if g.next++; g.next == len(g.streams) {
			g.next = 0
		}
	}
	err := g.tally.wait(ctx)
	c.Stop(n)
	return err
}

func (g *streamRig) close() error {
	g.stop()
	err := <-g.ended
	if err == nil && g.tally != nil {
		err = g.tally.done()
	}
	return errors.Join(err, g.provider.Close(), g.topic.Close())
}

// payloads are n events of 8 bytes.
func payloads(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = binary.LittleEndian.AppendUint64(nil, uint64(i))
	}
	return out
}

// containersOf is how many containers of so many events an iteration has.
func containersOf(e env, batch int) int { return max(e.events/batch, 1) }

func deliverRow(batch, subs int) func(env) (pair, error) {
	return func(e env) (pair, error) {
		g, err := openCounted(e, 16, subs)
		if err != nil {
			return pair{}, err
		}
		q, err := openGroups(e, batch, subs)
		if err != nil {
			return pair{}, errors.Join(err, g.close())
		}
		events := payloads(batch)
		return pair{
			ours:  func(c *measure.Clock) error { return g.publish(e.ctx, c, events, containersOf(e, batch)) },
			base:  func(c *measure.Clock) error { return q.produce(e.ctx, c, events, containersOf(e, batch)) },
			close: func() error { return errors.Join(g.close(), q.close()) },
		}, nil
	}
}

// openCounted opens streams whose handlers count.
func openCounted(e env, streams, subs int) (*streamRig, error) {
	tally := newTallied()
	return openStreams(e, streams, subs, tally.handle, tally)
}

func manyStreamsRow(batch int) func(env) (pair, error) {
	return func(e env) (pair, error) {
		many, err := openCounted(e, min(manyStreams, 20*e.events), 1) // fewer in short tests
		if err != nil {
			return pair{}, err
		}
		few, err := openCounted(e, fewStreams, 1)
		if err != nil {
			return pair{}, errors.Join(err, many.close())
		}
		events := payloads(batch)
		return pair{
			ours:  func(c *measure.Clock) error { return many.publish(e.ctx, c, events, containersOf(e, batch)) },
			base:  func(c *measure.Clock) error { return few.publish(e.ctx, c, events, containersOf(e, batch)) },
			close: func() error { return errors.Join(many.close(), few.close()) },
		}, nil
	}
}

// groupsRig is a topic whose groups are run.
type groupsRig struct {
	topic *queue.Topic[[]byte]
	tally *tallied
	subs  int
	stop  context.CancelFunc
	ended []chan error
}

func openGroups(e env, batch, groups int) (*groupsRig, error) {
	t, err := queue.Open(queue.Config[[]byte]{Name: "bench", Partitions: streamQueues, Capacity: 8 * queueEvents * batch})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(e.ctx)
	q := &groupsRig{topic: t, tally: newTallied(), subs: groups, stop: stop}
	for i := range groups {
		g, err := t.Group(strconv.Itoa(i), queue.GroupConfig{BatchMax: batch})
		if err != nil {
			return nil, errors.Join(err, q.close())
		}
		ended := make(chan error, 1)
		q.ended = append(q.ended, ended)
		// A group's run: ends with ctx; close waits for it.
		go func() { ended <- g.Run(ctx, q.tally.handle) }()
	}
	return q, nil
}

func (q *groupsRig) produce(ctx context.Context, c *measure.Clock, events [][]byte, requests int) error {
	n := requests * len(events) * q.subs
	q.tally.expect(n)
	c.Start()
	for range requests {
		if err := q.topic.Produce(ctx, events...); err != nil {
			return err
		}
	}
	err := q.tally.wait(ctx)
	c.Stop(n)
	return err
}

func (q *groupsRig) close() error {
	q.stop()
	var err error
	for _, ended := range q.ended {
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, q.tally.done(), q.topic.Close())
}

// latencyStream compares a handler of a stream with a goroutine that a channel
// wakes. An event is its own time of birth.
func latencyStream(e env) (pair, error) {
	epoch := time.Now()
	arrived := make(chan time.Duration, 1)
	g, err := openStreams(e, 1, 1, func(_ context.Context, b penstock.Batch[[]byte]) error {
		now := time.Since(epoch)
		for _, v := range b.Values() {
			arrived <- now - time.Duration(binary.LittleEndian.Uint64(v))
		}
		return nil
	}, nil)
	if err != nil {
		return pair{}, err
	}
	parked := make(chan time.Duration)
	// The baseline's handler: ends when the channel closes; close waits for it.
	go func() {
		for born := range parked {
			arrived <- time.Since(epoch) - born
		}
		close(arrived)
	}()
	ours := func(c *measure.Clock) error {
		return beat(e, c, arrived, func() error {
			return g.streams[0].Publish(e.ctx, binary.LittleEndian.AppendUint64(nil, uint64(time.Since(epoch))))
		})
	}
	base := func(c *measure.Clock) error {
		return beat(e, c, arrived, func() error { parked <- time.Since(epoch); return nil })
	}
	return pair{ours: ours, base: base, close: func() error {
		err := g.close()
		close(parked)
		for range arrived {
			err = errors.Join(err, errors.New("an event came that was not waited for"))
		}
		return err
	}}, nil
}
