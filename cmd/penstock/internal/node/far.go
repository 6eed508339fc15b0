package node

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/edge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// far is the consumer whose handler is in the driver: the owner's end of the
// connection, watched, and the server that the driver connects to.
type far struct {
	*remote.Owner
	calls
	secret string

	delivered atomic.Int64 // events, by this incarnation
}

func newFar(c wire.NodeConfig, logger *slog.Logger) (*far, error) {
	// A driver lives as long as its run, and for so long the queues keep what
	// they had: its consumer may go on where it was with the next incarnation.
	owner, err := remote.NewOwner(remote.OwnerConfig{History: c.Run, Logger: logger})
	if err != nil {
		return nil, err
	}
	return &far{Owner: owner, secret: c.Secret}, nil
}

// Deliver hands a delivery over, and counts what was settled of it.
func (f *far) Deliver(ctx context.Context, d *stream.Delivery) (a stream.Answer, err error) {
	_ = f.watch(func() error { // its error is for the status line
		if a, err = f.Owner.Deliver(ctx, d); err != nil {
			return err
		}
		f.delivered.Add(int64(settled(d, &a)))
		if len(a.Failed) > 0 {
			return a.Failed[0].Err
		}
		return nil
	})
	return a, err
}

// settled returns how many items an answer has settled: with one that rewinds,
// those that its consumer says that it has.
func settled(d *stream.Delivery, a *stream.Answer) (n int) {
	switch a.Rewind.Kind {
	case stream.PositionNone:
		return len(d.Items) - len(a.Failed)
	case stream.PositionResume:
		for n < len(d.Items) && d.Items[n].Token.Compare(a.Rewind.Token) <= 0 {
			n++
		}
	}
	return n
}

// hangUpTimeout is how long the requests of a connection have to end.
const hangUpTimeout = time.Second

var errForeign = errors.New("not the driver of this run")

// listen serves connections of the driver on loopback. hangUp ends them, and
// waits. The server ends with hangUp, or tells fail why it ended before.
func (f *far) listen(logger *slog.Logger, fail context.CancelCauseFunc) (url string, hangUp func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	connections, cut := context.WithCancel(context.Background())
	mux := http.NewServeMux()
	mux.Handle(wire.PathStreams, remote.NewHandler(func(r *http.Request) (*remote.Owner, error) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+f.secret)) != 1 {
			return nil, errForeign
		}
		return f.Owner, nil
	}))
	server := edge.NewServer(mux, logger)
	server.BaseContext = func(net.Listener) context.Context { return connections }
	ended := make(chan struct{})
	go func() { // serves until hangUp, which waits for it
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("connections of streams: %w", err))
		}
	}()
	hangUp = func() {
		cut()
		limit, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // whoever is at the other end sees a lost connection, as after a crash
		}
		<-ended
	}
	return "http://" + listener.Addr().String() + wire.PathStreams, hangUp, nil
}
