package demo

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// far is the one consumer of the run that no kill reaches: its handler is here,
// and the node that owns the streams is across a connection. It notes what it
// takes in the ledger before it answers, and connects again to each next node.
type far struct {
	run        string
	record     *record
	foreign    *atomic.Uint64 // events of earlier runs or other producers
	subscriber *remote.Subscriber
	transport  *http.Transport
}

// newFar returns the consumer for the nodes that where finds. Errors that it
// survives go to log.
func newFar(run, secret string, rec *record, foreign *atomic.Uint64, log io.Writer, where func(context.Context) (wire.Ready, error)) (*far, error) {
	f := &far{run: run, record: rec, foreign: foreign, transport: &http.Transport{DisableCompression: true}}
	client := &http.Client{Transport: f.transport}
	header := http.Header{"Authorization": {"Bearer " + secret}}
	var err error
	f.subscriber, err = remote.NewSubscriber(remote.SubscriberConfig{
		Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
			node, err := where(ctx)
			if err != nil {
				return nil, err
			}
			return remote.DialHTTP(client, node.Streams, header)(ctx)
		},
		Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
			return stream.NewConsumer(penstock.Raw(), f.take, stream.From(stream.Earliest))
		},
		Backoff: stream.Exponential{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond, Step: 10 * time.Millisecond},
		Drain:   time.Second,
		// A lost connection is what the run is about: the status tells of the node.
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	return f, err
}

// take is the handler of every stream.
func (f *far) take(_ context.Context, b penstock.Batch[[]byte]) error {
	f.record.with(func(l *judge.Ledger) {
		for i := range b.Len() {
			if n, ok := wire.ParseID(f.run, b.ID(i)); ok {
				l.Handled(wire.Remote, judge.ID(n))
			} else {
				f.foreign.Add(1)
			}
		}
	})
	return nil
}

// consume connects and takes until ctx ends. The error says why it could not
// go on.
func (f *far) consume(ctx context.Context) error {
	defer f.transport.CloseIdleConnections()
	return f.subscriber.Run(ctx)
}
