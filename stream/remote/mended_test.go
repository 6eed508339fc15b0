package remote

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// A subscription that has nothing with a consumer makes room for a new one, the
// one used longest ago first; those at work do not.
func TestLaneUsedLongestAgoMakesRoom(t *testing.T) {
	r := newFarRig(t, 100, 100)
	r.far.lanesMax = 2
	r.connect(1, false, false)
	r.deliver(offer("a", 1, 1))
	r.deliver(offer("b", 1, 2))
	r.deliver(offer("a", 1, 3)) // b is the older one now
	r.deliver(offer("c", 1, 4))
	for _, f := range r.said {
		if f.Kind != kindAnswer {
			t.Errorf("said %+v", f)
		}
	}
	if r.far.tokens != 2 || len(r.far.lanes) != 2 {
		t.Errorf("%d tokens of %d lanes, want 2 of 2", r.far.tokens, len(r.far.lanes))
	}
	r.said = nil
	r.deliver(offer("a", 1, 3)) // known: a was not forgotten
	if n := len(r.got); n != 4 {
		t.Errorf("handled %q, want four deliveries", r.got)
	}
	r.slow = true
	r.deliver(offer("a", 1, 5))
	l, refused := r.far.asked(9, offer("c", 1, 6).Subscription)
	if refused != nil {
		t.Fatalf("question refused: %+v", refused)
	}
	r.said = nil
	r.deliver(offer("d", 1, 7))
	if len(r.said) != 1 || r.said[0].Kind != kindError || !strings.Contains(string(r.said[0].Error), "at work") {
		t.Errorf("said %+v, want a refusal: both are at work", r.said)
	}
	r.far.answered(l)
	r.said = nil
	r.deliver(offer("d", 1, 8))
	if len(r.said) != 0 || len(r.busy) != 2 {
		t.Errorf("said %+v, %d at work; want d to be at work", r.said, len(r.busy))
	}
}

// deaf is a connection that does nothing but remember that it was closed.
type deaf struct {
	io.ReadWriteCloser
	closed atomic.Bool
}

func (d *deaf) Close() error { d.closed.Store(true); return nil }

// A Dial that ignores its context is left behind: Run returns, and can be called
// again when Dial has returned, whose connection is closed.
func TestDialThatHangsIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, conn := make(chan struct{}), &deaf{}
		s, err := NewSubscriber(SubscriberConfig{
			Dial:     func(context.Context) (io.ReadWriteCloser, error) { <-gate; return conn, nil },
			Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return nil, io.EOF },
			Logger:   slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		var drain *penstock.DrainError
		if err := s.Run(ctx); !errors.As(err, &drain) || len(drain.Busy) != 1 || drain.Busy[0] != "dial" {
			t.Errorf("run: %v, want a dial that is left behind", err)
		}
		if d := time.Since(began); d != time.Minute+abandonAfter {
			t.Errorf("after %v, want %v", d, time.Minute+abandonAfter)
		}
		if err := s.Run(t.Context()); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("run beside the dial: %v, want ErrExists", err)
		}
		close(gate)
		synctest.Wait()
		if !conn.closed.Load() {
			t.Error("the connection was not closed")
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := s.Run(ended); err != nil {
			t.Errorf("run afterwards: %v", err)
		}
	})
}

// rude is a connection of which one method panics, or leaves the goroutine.
type rude struct {
	net.Conn
	method string
	leave  bool
}

func (r *rude) be(method string) {
	switch {
	case method != r.method:
	case r.leave:
		r.Conn.Close()
		runtime.Goexit()
	default:
		r.Conn.Close()
		panic("rude " + method)
	}
}

func (r *rude) Read(p []byte) (int, error)  { r.be("Read"); return r.Conn.Read(p) }
func (r *rude) Write(p []byte) (int, error) { r.be("Write"); return r.Conn.Write(p) }
func (r *rude) Close() error                { r.be("Close"); return r.Conn.Close() }

// A connection whose methods panic, or leave their goroutine, ends, and nothing
// else does, at either end.
func TestRudeConnectionEndsAlone(t *testing.T) {
	for _, method := range []string{"Read", "Write", "Close"} {
		for _, leave := range []bool{false, true} {
			for _, atOwner := range []bool{false, true} {
				t.Run(method+map[bool]string{true: "/leaves"}[leave]+map[bool]string{true: "/owner"}[atOwner], func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						quiet := slog.New(slog.DiscardHandler)
						o, err := NewOwner(OwnerConfig{Logger: quiet, Patience: time.Hour})
						if err != nil {
							t.Fatal(err)
						}
						dials := atomic.Int64{}
						served := make(chan error, 10)
						s, err := NewSubscriber(SubscriberConfig{
							Dial: func(context.Context) (io.ReadWriteCloser, error) {
								near, far := net.Pipe()
								if dials.Add(1) == 1 {
									bad := &rude{method: method, leave: leave}
									if atOwner {
										bad.Conn, near = near, bad
									} else {
										bad.Conn, far = far, bad
									}
								}
								go func() { served <- o.Serve(context.Background(), near) }() // ends with the connection
								if method == "Close" && dials.Load() == 1 {
									time.AfterFunc(time.Second, func() { // something has to close it
										if bad, ok := near.(*rude); ok {
											bad.Conn.Close()
										} else {
											far.(*rude).Conn.Close()
										}
									})
								}
								return far, nil
							},
							Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return earliest{}, nil },
							Logger:   quiet, Backoff: stream.Fixed(time.Millisecond),
						})
						if err != nil {
							t.Fatal(err)
						}
						ctx, cancel := context.WithCancel(t.Context())
						ended := make(chan error, 1)
						go func() { ended <- s.Run(ctx) }() // ended below
						time.Sleep(time.Minute)
						if at, err := o.Handshake(t.Context(), stream.Handshake{Subscription: offer("a", 1).Subscription}); err != nil || at.Kind != stream.PositionEarliest {
							t.Errorf("handshake over the next connection: %v, %v", at, err)
						}
						cancel()
						if err := <-ended; err != nil {
							t.Errorf("run: %v", err)
						}
						for range dials.Load() {
							<-served
						}
					})
				})
			}
		}
	}
}

type earliest struct{}

func (earliest) Handshake(context.Context, stream.Handshake) (stream.Position, error) {
	return stream.Position{Kind: stream.PositionEarliest}, nil
}
func (earliest) Deliver(context.Context, *stream.Delivery) (stream.Answer, error) {
	return stream.Answer{}, nil
}

// leaving is an error that ends the goroutine which asks for its text.
type leaving struct{}

func (leaving) Error() string { runtime.Goexit(); return "" }

// An error that leaves the goroutine when it is asked for its text is told as
// such; what is said with it is told as it is.
func TestErrorThatLeavesItsGoroutineIsTold(t *testing.T) {
	if err := plain("here", leaving{}); !strings.Contains(err.Error(), "cannot be asked") {
		t.Errorf("told as %v", err)
	}
	if err := plain("here", errors.Join(io.EOF, stream.ErrAway)); err.Error() != "EOF\n"+stream.ErrAway.Error() || !errors.Is(err, stream.ErrAway) {
		t.Errorf("told as %v", err)
	}
	a := plainFailures("here", []stream.ItemFailure{{Index: 1, Err: io.EOF}, {Index: 2, Err: leaving{}}, {Index: 3}, {Index: 4, Err: io.ErrNoProgress}})
	if len(a) != 4 || a[0].Err.Error() != "EOF" || !strings.Contains(a[1].Err.Error(), "cannot be asked") || a[2].Err != nil || a[3].Err.Error() != io.ErrNoProgress.Error() {
		t.Errorf("told as %v", a)
	}
	s, err := NewSubscriber(SubscriberConfig{
		Dial:     func(context.Context) (io.ReadWriteCloser, error) { return nil, io.EOF },
		Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return leavingConsumer{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, lo := range []uint64{1, 2} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		d := offer("a", 1, lo)
		j := &job{whole: d, rest: d, lane: &lane{maker: newMaker()}, maker: newMaker(), ctx: ctx, cancel: cancel}
		a, err := s.handle(j)
		if lo == 1 && (err == nil || !strings.Contains(err.Error(), "cannot be asked")) {
			t.Errorf("handled: %v", err)
		}
		if lo == 2 && (err != nil || len(a.Failed) != 1 || !strings.Contains(a.Failed[0].Err.Error(), "cannot be asked")) {
			t.Errorf("handled: %v, %v", a, err)
		}
	}
}

// leavingConsumer fails with such errors: of everything, then of an item.
type leavingConsumer struct{ earliest }

func (leavingConsumer) Deliver(_ context.Context, d *stream.Delivery) (stream.Answer, error) {
	if d.Items[0].Token.Lo == 1 {
		return stream.Answer{}, leaving{}
	}
	return stream.Answer{Failed: []stream.ItemFailure{{Err: leaving{}}}}, nil
}

// A time that has no form on the wire is refused where it is asked for, and the
// connection stays; any other is told in UTC.
func TestTimeThatCannotBeSentIsRefused(t *testing.T) {
	far := time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
	if _, err := fromPosition(stream.Position{Kind: stream.PositionAtTime, Time: far}); !errors.Is(err, penstock.ErrUnsupported) {
		t.Errorf("year 10000: %v, want ErrUnsupported", err)
	}
	if f := answerFrame(1, stream.Answer{Rewind: stream.Position{Kind: stream.PositionAtTime, Time: far}}, nil, minLine); f.Kind != kindError {
		t.Errorf("answer %+v, want an error", f)
	}
	odd := time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", 25*3600)) // RFC 3339 has no such zone
	p, err := fromPosition(stream.Position{Kind: stream.PositionAtTime, Time: odd})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Time.MarshalJSON(); err != nil || !p.Time.Equal(odd) {
		t.Errorf("%v, %v", p.Time, err)
	}
}
