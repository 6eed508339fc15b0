package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/stream"
)

// torn is a connection that breaks behind a number of bytes.
type torn struct {
	io.ReadWriteCloser
	left int // bytes that may still be carried
	kill func()
	read bool // it counts what is read, not what is written
}

func (c *torn) Read(p []byte) (int, error) {
	if !c.read {
		return c.ReadWriteCloser.Read(p)
	}
	if c.left == 0 {
		c.kill()
		return 0, errors.New("torn")
	}
	n, err := c.ReadWriteCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func (c *torn) Write(p []byte) (int, error) {
	if c.read {
		return c.ReadWriteCloser.Write(p)
	}
	if len(p) <= c.left {
		c.left -= len(p)
		return c.ReadWriteCloser.Write(p)
	}
	n, _ := c.ReadWriteCloser.Write(p[:c.left])
	c.left = 0
	c.kill()
	return n, errors.New("torn")
}

// Connections that break behind each number of bytes, of either direction, one
// after the other: every event is handled once, in order.
func TestConnectionTornAtEveryByte(t *testing.T) {
	const most = 800 // bytes: a greeting, a question, deliveries, and their answers
	for _, read := range []bool{false, true} {
		t.Run(fmt.Sprintf("read=%t", read), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, func(c *stream.Config) { c.MaxDeliveryTime = stream.NoLimit })
				l := &ledger{}
				n := 0
				c := l.config()
				c.Backoff, c.Expiry = stream.Fixed(time.Millisecond), 30*time.Millisecond // there is always something to carry
				c.Dial = func(ctx context.Context) (io.ReadWriteCloser, error) {
					conn, err := s.dial(ctx)
					if n++; n > most || err != nil {
						return conn, err
					}
					return &torn{conn, n - 1, conn.(*lossy).kill, read}, nil
				}
				s.subscriber(c)
				for i := range 20 {
					s.publish(t, i, i)
					time.Sleep(200 * time.Millisecond)
				}
				for i := 0; s.dialled() <= most && i < 1000; i++ {
					time.Sleep(time.Second)
				}
				s.publish(t, 20, 20)
				time.Sleep(20 * time.Second)
				if s.dialled() <= most {
					t.Fatalf("%d connections, want more than %d", s.dialled(), most)
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				for i, v := range l.got {
					if i != v {
						t.Fatalf("handled %v, want each of 0 to 20 once, in order", l.got)
					}
				}
				if len(l.got) != 21 {
					t.Errorf("handled %v, want 0 to 20", l.got)
				}
			})
		})
	}
}
