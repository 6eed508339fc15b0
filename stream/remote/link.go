package remote

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// link is one connection: what is to be written, and why it has ended. The
// state machine of an end pushes frames under its own lock; one goroutine
// writes them.
type link struct {
	conn  io.ReadWriteCloser
	woken chan struct{} // of capacity 1: there is something to write
	over  chan struct{} // closed when it has ended

	mu    sync.Mutex
	out   []outgoing
	alive bool  // out holds one of kind alive
	last  bool  // it ends when out has been written
	ended bool  // over is closed, or about to be
	err   error // why; read it after over
}

func newLink(conn io.ReadWriteCloser) *link {
	return &link{conn: conn, woken: make(chan struct{}, 1), over: make(chan struct{})}
}

// push hands over frames to be written. It does not wait.
func (l *link) push(out ...outgoing) {
	if len(out) == 0 {
		return
	}
	l.mu.Lock()
	for _, o := range out {
		alive := o.frame.Kind == kindAlive
		if l.last || l.ended || alive && l.alive {
			continue // one says as much as several: who does not read them makes no list
		}
		l.alive = l.alive || alive
		l.out = append(l.out, o)
	}
	l.mu.Unlock()
	l.wake()
}

// finish ends the connection, with err, when a last frame has been written.
func (l *link) finish(f frame, err error) {
	l.mu.Lock()
	if !l.last && !l.ended {
		l.out = append(l.out, outgoing{frame: f})
		l.last, l.err = true, err
	}
	l.mu.Unlock()
	l.wake()
}

func (l *link) wake() {
	select {
	case l.woken <- struct{}{}:
	default: // awake already
	}
}

// end closes the connection, which ends a Read and a Write under way. The first
// reason is kept.
func (l *link) end(err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	if !l.last {
		l.err = err
	}
	l.ended = true
	l.mu.Unlock()
	_ = guard.Call("connection", l.conn.Close) // what it says changes nothing: it is not used any more
	close(l.over)
}

func (l *link) take() (out []outgoing, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out, l.out, l.alive = l.out, nil, false
	return out, l.last
}

// carry runs one direction of the connection, whose methods are user code: when
// one of them panics, or leaves the goroutine, the connection ends.
func (l *link) carry(direction func()) {
	finished := false
	defer func() {
		if !finished {
			l.end(fmt.Errorf("%w: %w", &penstock.PanicError{Where: "connection", Value: recover(), Stack: debug.Stack()}, ErrLost))
		}
	}()
	direction()
	finished = true
}

// write carries frames to the connection until it ends.
func (l *link) write() {
	w := bufio.NewWriter(l.conn)
	for {
		out, last := l.take()
		for _, o := range out {
			if err := o.write(w); err != nil {
				l.end(fmt.Errorf("write: %w: %w", err, ErrLost))
				return
			}
		}
		if err := w.Flush(); err != nil {
			l.end(fmt.Errorf("write: %w: %w", err, ErrLost))
			return
		}
		if last {
			l.end(nil)
			return
		}
		select {
		case <-l.woken:
		case <-l.over:
			return
		}
	}
}

// write appends the line of a frame. The containers of a delivery are in JSON
// already.
func (o *outgoing) write(w *bufio.Writer) error {
	b, err := json.Marshal(&o.frame)
	if err != nil {
		return err
	}
	if len(o.parts) > 0 {
		w.Write(b[:len(b)-1]) // errors stay in w
		w.WriteString(`,"containers":[`)
		for i, p := range o.parts {
			if i > 0 {
				w.WriteByte(',')
			}
			w.Write(p.line)
		}
		b = []byte("]}")
	}
	w.Write(b)
	return w.WriteByte('\n')
}

// read takes frames from the connection until it ends, or take fails.
func (l *link) read(d *decoder, take func(f *frame) error) {
	for {
		f, err := d.next()
		if err == nil {
			err = take(&f)
		} else if !isProtocol(err) {
			err = fmt.Errorf("read: %w: %w", err, ErrLost)
		}
		switch {
		case err == nil:
			continue
		case isProtocol(err): // the other end is told, if it listens
			l.finish(frame{Kind: kindBye, Error: text(cut(err.Error(), maxError))}, err)
		case errors.Is(err, errGoodbye):
			l.stop(nil)
		default:
			l.stop(err)
		}
		return
	}
}

// stop is end, unless a last frame is on its way: then the writer ends it.
func (l *link) stop(err error) {
	l.mu.Lock()
	last := l.last
	l.mu.Unlock()
	if !last {
		l.end(err)
	}
}
