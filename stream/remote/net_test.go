package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

var quiet = slog.New(slog.DiscardHandler)

// network connects subscribers to one owner by pipes, which a test can delay
// and cut. It works in a bubble.
type network struct {
	t     *testing.T
	owner *remote.Owner

	mu    sync.Mutex
	conns int           // dialled
	down  bool          // dialling fails
	delay time.Duration // of each line, either way
	// cut says, for each line that the subscriber writes, whether the connection
	// breaks instead. conn counts from 1.
	cut   func(conn int, line string) bool
	live  map[*lossy]struct{}
	ended []error // of Serve
	wait  sync.WaitGroup
}

func newNetwork(t *testing.T, c remote.OwnerConfig) *network {
	t.Helper()
	if c.Logger == nil {
		c.Logger = quiet
	}
	o, err := remote.NewOwner(c)
	if err != nil {
		t.Fatal(err)
	}
	n := &network{t: t, owner: o, live: map[*lossy]struct{}{}}
	t.Cleanup(func() { n.breakAll(); n.wait.Wait() })
	return n
}

// dial is for SubscriberConfig.Dial.
func (n *network) dial(context.Context) (io.ReadWriteCloser, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.New("the network is down")
	}
	n.conns++
	near, far := net.Pipe()
	c := newLossy(n, n.conns, far)
	n.live[c] = struct{}{}
	n.wait.Go(func() { // ends with the pipe
		err := n.owner.Serve(context.Background(), newLossy(n, 0, near))
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.live, c)
		n.ended = append(n.ended, err)
	})
	return c, nil
}

func (n *network) set(f func(n *network)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n)
}

// breakAll breaks every connection.
func (n *network) breakAll() {
	n.mu.Lock()
	live := n.live
	n.live = map[*lossy]struct{}{}
	n.mu.Unlock()
	for c := range live {
		c.kill()
	}
}

func (n *network) dialled() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns
}

func (n *network) served() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]error(nil), n.ended...)
}

// lossy is one end of a pipe. Lines written to it arrive after the delay of the
// network, in order.
type lossy struct {
	net.Conn
	n    *network
	conn int // 0: the owner's end

	mu   sync.Mutex
	part []byte // of a line

	lines  chan delayed
	closed chan struct{} // by its user: what was written still arrives
	over   chan struct{} // broken, or carried to the end
	once   sync.Once
	close  sync.Once
}

type delayed struct {
	line []byte
	at   time.Time
}

func newLossy(n *network, conn int, c net.Conn) *lossy {
	l := &lossy{Conn: c, n: n, conn: conn, lines: make(chan delayed, 1<<12), closed: make(chan struct{}), over: make(chan struct{})}
	n.wait.Go(l.carry) // ends with Close
	return l
}

func (l *lossy) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, piece := range bytes.SplitAfter(p, []byte("\n")) {
		l.part = append(l.part, piece...)
		if !bytes.HasSuffix(l.part, []byte("\n")) {
			continue
		}
		line := l.part
		l.part = nil
		l.n.mu.Lock()
		cut, delay := l.n.cut, l.n.delay
		l.n.mu.Unlock()
		if l.conn > 0 && cut != nil && cut(l.conn, string(line)) {
			l.kill()
			return 0, errors.New("the connection broke")
		}
		select {
		case l.lines <- delayed{line, time.Now().Add(delay)}:
		case <-l.closed:
			return 0, net.ErrClosed
		case <-l.over:
			return 0, net.ErrClosed
		}
	}
	return len(p), nil
}

func (l *lossy) carry() {
	defer l.kill()
	closed := l.closed
	for {
		select {
		case d := <-l.lines:
			if !l.arrive(d) {
				return
			}
		case <-closed:
			closed = nil
			for len(l.lines) > 0 {
				if !l.arrive(<-l.lines) {
					return
				}
			}
			return
		case <-l.over:
			return
		}
	}
}

// arrive writes a line when it is due.
func (l *lossy) arrive(d delayed) bool {
	if wait := time.Until(d.at); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.over:
			return false
		}
	}
	_, err := l.Conn.Write(d.line)
	return err == nil
}

// Close ends a Read and a Write under way, as that of a socket; what was
// written arrives, if the other end reads it within a second.
func (l *lossy) Close() error {
	l.close.Do(func() {
		l.Conn.SetReadDeadline(time.Now())
		l.Conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
		close(l.closed)
	})
	return nil
}

// kill breaks the connection.
func (l *lossy) kill() {
	l.once.Do(func() { close(l.over) })
	l.Conn.Close()
}

// subscriber runs one over the network until the test ends, or stop is called.
func (n *network) subscriber(c remote.SubscriberConfig) (s *remote.Subscriber, stop func() error) {
	n.t.Helper()
	if c.Dial == nil {
		c.Dial = n.dial
	}
	if c.Logger == nil {
		c.Logger = quiet
	}
	s, err := remote.NewSubscriber(c)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }() // ended by stop
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	n.t.Cleanup(func() { stop() })
	return s, stop
}

// patient repeats a call as an agent does, until its outcome is known.
type patient struct{ stream.Consumer }

func (p patient) Handshake(ctx context.Context, h stream.Handshake) (at stream.Position, err error) {
	for {
		if at, err = p.Consumer.Handshake(ctx, h); !again(ctx, err) {
			return at, err
		}
	}
}

func (p patient) Deliver(ctx context.Context, d *stream.Delivery) (a stream.Answer, err error) {
	for {
		if a, err = p.Consumer.Deliver(ctx, d); !again(ctx, err) {
			return a, err
		}
	}
}

func again(ctx context.Context, err error) bool {
	return ctx.Err() == nil && (errors.Is(err, stream.ErrAway) || errors.Is(err, remote.ErrLost))
}
