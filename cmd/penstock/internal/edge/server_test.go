package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory, so that a server runs
// inside a bubble of virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes {
	return &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serve runs f against a server of the edge in a bubble.
func serve(t *testing.T, k *keep, f func(t *testing.T, p *pipes)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		server := NewServer(newEdge(t, k, nil), quiet())
		ended := make(chan error)
		go func() { ended <- server.Serve(p) }()
		f(t, p)
		<-time.After(time.Second) // a refused connection is closed a little later
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != http.ErrServerClosed {
			t.Errorf("server ended with %v", err)
		}
	})
}

// answerTo writes a request, step by step, and returns the answer's status
// ("" when the connection was closed without one) and when it came.
func answerTo(t *testing.T, c net.Conn, pause time.Duration, steps ...string) (status string, after time.Duration) {
	t.Helper()
	start := time.Now()
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(c).ReadString('\n')
		answer <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, c)
	}()
	for _, step := range steps {
		if _, err := io.WriteString(c, step); err != nil {
			break // the server has closed; its answer may stand
		}
		select {
		case status := <-answer:
			return status, time.Since(start)
		case <-time.After(pause):
		}
	}
	return <-answer, time.Since(start)
}

func slowly(s string) []string { return strings.Split(s, "") }

const head = "POST /v1/topics/orders HTTP/1.1\r\nHost: penstock\r\nContent-Type: application/json\r\n"

func TestServerTakesAnEventOverAPipe(t *testing.T) {
	t.Parallel()
	k := &keep{}
	serve(t, k, func(t *testing.T, p *pipes) {
		c := p.dial()
		defer c.Close()
		status, _ := answerTo(t, c, 0, head+"Content-Length: 2\r\n\r\n{}")
		if status != "HTTP/1.1 202 Accepted" || k.calls != 1 {
			t.Errorf("status %q, %d appends", status, k.calls)
		}
	})
}

func TestSlowHeadersAreCut(t *testing.T) {
	t.Parallel()
	k := &keep{}
	serve(t, k, func(t *testing.T, p *pipes) {
		c := p.dial()
		defer c.Close()
		_, after := answerTo(t, c, 5*time.Second, slowly(head)...)
		if after < headerTimeout || after > 2*headerTimeout {
			t.Errorf("cut after %v, want about %v", after, headerTimeout)
		}
	})
	if k.calls != 0 {
		t.Error("half a request was appended")
	}
}

func TestSlowBodyIsCut(t *testing.T) {
	t.Parallel()
	k := &keep{}
	serve(t, k, func(t *testing.T, p *pipes) {
		c := p.dial()
		defer c.Close()
		steps := append([]string{head + "Content-Length: 1000\r\n\r\n"}, slowly(`{"a":"`+strings.Repeat("x", 100))...)
		status, after := answerTo(t, c, time.Second, steps...)
		if status != "HTTP/1.1 400 Bad Request" || after < readTimeout || after > readTimeout+5*time.Second {
			t.Errorf("answer %q after %v, want 400 after about %v", status, after, readTimeout)
		}
	})
	if k.calls != 0 {
		t.Error("half a request was appended")
	}
}

func TestStalledClientsOccupyNothingForEver(t *testing.T) {
	t.Parallel()
	serve(t, &keep{}, func(t *testing.T, p *pipes) {
		for range 40 { // more than the bodies that are held together
			c := p.dial()
			defer c.Close()
			go func() { _, _ = fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n{", head, DefaultMaxBody) }()
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
		synctest.Wait()
		refused := p.dial()
		defer refused.Close()
		if status, _ := answerTo(t, refused, 0, fmt.Sprintf("%sContent-Length: %d\r\n\r\n{", head, DefaultMaxBody)); status != "HTTP/1.1 429 Too Many Requests" {
			t.Errorf("while bodies stall: %q", status)
		}
		<-time.After(readTimeout + time.Second)
		c := p.dial()
		defer c.Close()
		if status, _ := answerTo(t, c, 0, head+"Content-Length: 2\r\n\r\n{}"); status != "HTTP/1.1 202 Accepted" {
			t.Errorf("after the stalled ones were cut: %q", status)
		}
	})
}

func TestBodyWithoutEndIsCutAtTheLimit(t *testing.T) {
	t.Parallel()
	k := &keep{}
	serve(t, k, func(t *testing.T, p *pipes) {
		c := p.dial()
		defer c.Close()
		chunk := "10000\r\n" + strings.Repeat(" ", 1<<16) + "\r\n"
		steps := []string{head + "Transfer-Encoding: chunked\r\n\r\n"}
		for range int(DefaultMaxBody>>16) + 8 {
			steps = append(steps, chunk)
		}
		status, _ := answerTo(t, c, 0, steps...)
		if status != "HTTP/1.1 413 Request Entity Too Large" {
			t.Errorf("answer is %q", status)
		}
	})
	if k.calls != 0 {
		t.Error("it was appended")
	}
}

func TestBodyShorterThanToldIsRefused(t *testing.T) {
	t.Parallel()
	k := &keep{}
	serve(t, k, func(t *testing.T, p *pipes) {
		c := p.dial()
		_, _ = io.WriteString(c, head+"Content-Length: 100\r\n\r\n{}")
		c.Close() // the client is cut after two bytes of a hundred
		synctest.Wait()
	})
	if k.calls != 0 {
		t.Error("a request that was cut was appended")
	}
}

func TestLargeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"headers": head + "X-Large: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"URL":     "POST /v1/topics/" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\nHost: penstock\r\n\r\n",
		"query":   "POST /v1/topics/orders?" + strings.Repeat("a=b&", 100_000) + " HTTP/1.1\r\nHost: penstock\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &keep{}
			serve(t, k, func(t *testing.T, p *pipes) {
				c := p.dial()
				defer c.Close()
				status, _ := answerTo(t, c, 0, request)
				if status != "HTTP/1.1 431 Request Header Fields Too Large" {
					t.Errorf("answer is %q", status)
				}
			})
			if k.calls != 0 {
				t.Error("it was appended")
			}
		})
	}
}
