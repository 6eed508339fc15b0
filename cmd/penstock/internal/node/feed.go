package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
)

const feedQueues = 4

// containerBytes is the size above which forward begins another container.
const containerBytes = 1 << 20

// feed is a stream provider over a topic of its own. A group forwards each
// batch into the stream of its partition, so events of one key stay in one
// stream, in order. Each stream has two subscriptions: the handler of one is
// here and reports, that of the other is across a connection.
type feed struct {
	driver   *driver
	topic    *stream.Topic
	provider *stream.Provider

	far *far

	forwarded, delivered atomic.Int64 // events, by this incarnation
}

func openFeed(n *node) (*feed, error) {
	f := &feed{driver: n.driver}
	var err error
	if f.far, err = newFar(n.config, n.logger); err != nil {
		return nil, err
	}
	f.topic, err = stream.OpenTopic(queue.Config[stream.Container]{
		Name: wire.Feed, Partitions: feedQueues, Dir: n.config.Dir, Durability: n.level, SegmentBytes: segmentBytes,
		Logger: n.logger,
	})
	if err != nil {
		return nil, err
	}
	f.provider, err = stream.Open(stream.Config{
		Name: wire.Feed, Factory: f.topic, Queues: feedQueues,
		GroupSize:       16,
		MaxDeliveryTime: stream.NoLimit,
		DeliveryBackoff: stream.Exponential{Min: 10 * time.Millisecond, Max: time.Second, Step: 10 * time.Millisecond},
		Drain:           n.drain(),
		Logger:          n.logger,
	})
	if err != nil {
		return nil, errors.Join(err, f.topic.Close())
	}
	for i := range n.config.Partitions {
		// The registry is in memory: each start subscribes again, before Run,
		// and goes on where the checkpoint is.
		if _, err := f.stream(i).Subscribe(context.Background(), "report", f.take, stream.From(stream.Earliest)); err != nil {
			return nil, errors.Join(err, f.close())
		}
		if _, err := f.provider.Attach(context.Background(), f.stream(i).ID(), wire.Remote, f.far); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

func (f *feed) stream(partition int) *stream.Stream[[]byte] {
	return stream.OfCodec(f.provider, wire.Topic, strconv.Itoa(partition), penstock.Raw())
}

// forward is the handler of the group between topic and stream. What it
// publishes together is delivered together, so a batch of large events goes in
// several containers: one of them must fit a line of the connection.
func (f *feed) forward(ctx context.Context, b penstock.Batch[[]byte]) error {
	to := f.stream(b.Partition())
	var events []penstock.Event[[]byte]
	size := 0
	publish := func() error {
		if err := to.PublishEvents(ctx, nil, events...); err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		f.forwarded.Add(int64(len(events)))
		events, size = events[:0], 0
		return nil
	}
	for i := range b.Len() {
		e := b.Event(i)
		if len(events) > 0 && size+len(e.Value) > containerBytes {
			if err := publish(); err != nil {
				return err
			}
		}
		events, size = append(events, e), size+len(e.Value)
	}
	return publish()
}

// take is the handler of every subscription.
func (f *feed) take(ctx context.Context, b penstock.Batch[[]byte]) error {
	if err := f.driver.report(ctx, wire.Feed, false, idsOf(b, nil)); err != nil {
		return err
	}
	f.delivered.Add(int64(b.Len()))
	return nil
}

// behind is how many events this incarnation forwarded and did not deliver yet
// to the subscription that counts them in delivered.
func (f *feed) behind(delivered *atomic.Int64) uint64 {
	return uint64(max(f.forwarded.Load()-delivered.Load(), 0))
}

func (f *feed) run(ctx context.Context) error { return f.provider.Run(ctx) }

func (f *feed) close() error {
	return errors.Join(f.provider.Close(), f.topic.Close())
}
