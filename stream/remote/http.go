package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// Bounds of connections over HTTP.
const (
	maxHalves   = 64 // requests that wait for the other one of their connection
	maxHalfName = 64 // bytes of a connection's name
	farewell    = time.Second
)

// Handler carries connections of subscribers over HTTP: two POST requests for
// each, with the same name in the query. The response to the one with
// "way=down" is what the owner writes, the body of the one with "way=up" what
// it reads, both as lines of JSON (application/x-ndjson), for as long as the
// connection lasts. The second one must come within 10 s of the first; at most
// 64 wait. Make one with [NewHandler]; [DialHTTP] is its other end.
//
// A Handler authenticates nobody: put what does in front of it. It takes away
// the deadlines that a server has for its requests.
type Handler struct {
	owner func(r *http.Request) (*Owner, error)

	mu     sync.Mutex
	halves map[string]*half // by name: bodies that wait for their other request
}

const halfMade = "this request of the connection has come before, or too many connections wait for their other one"

// half is one of the two requests of a connection, and later both.
type half struct {
	up, down bool          // which of them have come; guarded by Handler.mu
	body     io.Reader     // of up
	stop     func()        // ends a Read of body
	here     chan struct{} // closed when up has come: body and stop are set
	over     chan struct{} // closed when nothing reads body any more
}

// NewHandler returns a handler that asks owner, for each request, whom it is
// for. An error is answered with 404 when it matches penstock.ErrNotFound, and
// with 403 otherwise. It must give the same owner for both requests of a
// connection.
func NewHandler(owner func(r *http.Request) (*Owner, error)) *Handler {
	return &Handler{owner: owner, halves: map[string]*half{}}
}

// ServeHTTP takes one of the two requests, and returns when the connection has
// ended.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	way, name := query.Get("way"), query.Get("connection")
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "a connection is two POST requests", http.StatusMethodNotAllowed)
		return
	case way != "up" && way != "down":
		http.Error(w, `way is neither "up" nor "down"`, http.StatusBadRequest)
		return
	case name == "" || len(name) > maxHalfName:
		http.Error(w, fmt.Sprintf("connection is not a name of 1 to %d bytes", maxHalfName), http.StatusBadRequest)
		return
	}
	owner, err := h.owner(r)
	switch {
	case errors.Is(err, penstock.ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusForbidden)
	case way == "up":
		h.up(w, r, name)
	default:
		h.down(w, r, name, owner)
	}
}

// join returns the connection with that name, and whether its other request is
// still to come; nil when this one has come before, or too many wait. Body is
// nil for down.
func (h *Handler) join(name string, body io.Reader, stop func()) (f *half, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f = h.halves[name]
	switch {
	case f == nil && len(h.halves) >= maxHalves, f != nil && (body == nil && f.down || body != nil && f.up):
		return nil, false
	case f == nil:
		f, first = &half{here: make(chan struct{}), over: make(chan struct{})}, true
		h.halves[name] = f
	default:
		delete(h.halves, name)
	}
	if body == nil {
		f.down = true
		return f, first
	}
	f.up, f.body, f.stop = true, body, stop
	close(f.here)
	return f, first
}

// leave takes back a half that nobody has joined; false when somebody has.
func (h *Handler) leave(name string, f *half) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.halves[name] != f {
		return false
	}
	delete(h.halves, name)
	return true
}

func (h *Handler) up(w http.ResponseWriter, r *http.Request, name string) {
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Time{}) // a server that cannot has none
	f, first := h.join(name, r.Body, func() { control.SetReadDeadline(time.Now()) })
	if f == nil {
		http.Error(w, halfMade, http.StatusTooManyRequests)
		return
	}
	if first {
		wait := time.NewTimer(helloTimeout)
		defer wait.Stop()
		select {
		case <-f.over:
		case <-r.Context().Done():
			if h.leave(name, f) {
				return
			}
		case <-wait.C:
			if h.leave(name, f) {
				http.Error(w, "the other request of the connection has not come", http.StatusRequestTimeout)
				return
			}
		}
	}
	<-f.over
	w.WriteHeader(http.StatusNoContent)
}

func (h *Handler) down(w http.ResponseWriter, r *http.Request, name string, owner *Owner) {
	f, first := h.join(name, nil, nil)
	if f == nil {
		http.Error(w, halfMade, http.StatusTooManyRequests)
		return
	}
	control := http.NewResponseController(w)
	control.SetWriteDeadline(time.Time{}) // a server that cannot has none
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		h.leave(name, f)
		close(f.over)
		return
	}
	if first {
		wait := time.NewTimer(helloTimeout)
		defer wait.Stop()
		select {
		case <-f.here:
		case <-r.Context().Done():
		case <-wait.C:
		}
		if h.leave(name, f) {
			return
		}
		<-f.here
	}
	defer close(f.over)
	owner.Serve(r.Context(), &twoRequests{f: f, w: w, control: control})
}

// twoRequests is a connection of two requests, at the owner.
type twoRequests struct {
	f       *half
	w       io.Writer
	control *http.ResponseController
}

func (c *twoRequests) Read(p []byte) (int, error) { return c.f.body.Read(p) }

func (c *twoRequests) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err == nil {
		err = c.control.Flush()
	}
	return n, err
}

// Close ends a Read and a Write under way; the handlers end the requests.
func (c *twoRequests) Close() error {
	c.f.stop()
	return c.control.SetWriteDeadline(time.Now())
}

// DialHTTP returns a function for SubscriberConfig.Dial that connects to a
// [Handler] at address. Header, which may be nil, goes with both requests, for
// authentication. Client nil means http.DefaultClient; a Timeout of the client
// would end each connection.
func DialHTTP(client *http.Client, address string, header http.Header) func(ctx context.Context) (io.ReadWriteCloser, error) {
	if client == nil {
		client = http.DefaultClient
	}
	return func(ctx context.Context) (io.ReadWriteCloser, error) {
		base, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		life, cancel := context.WithCancel(context.WithoutCancel(ctx))
		c := &dialled{cancel: cancel, upEnded: make(chan struct{})}
		body, up := io.Pipe()
		c.up = up
		name := random()
		request := func(way string, body io.Reader) (*http.Response, error) {
			u := *base
			q := u.Query()
			q.Set("way", way)
			q.Set("connection", name)
			u.RawQuery = q.Encode()
			r, err := http.NewRequestWithContext(life, http.MethodPost, u.String(), body)
			if err != nil {
				return nil, err
			}
			for k, v := range header {
				r.Header[k] = v
			}
			r.Header.Set("Content-Type", "application/x-ndjson")
			resp, err := client.Do(r)
			if err == nil && resp.StatusCode >= 300 {
				text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
				resp.Body.Close()
				err = fmt.Errorf("%s: %s", resp.Status, text)
			}
			return resp, err
		}
		go func() { // the request that carries what is written: Close ends it and waits
			defer close(c.upEnded)
			resp, err := request("up", body)
			if err == nil {
				resp.Body.Close()
				err = io.ErrClosedPipe
			}
			body.CloseWithError(err)
		}()
		stop := context.AfterFunc(ctx, cancel)
		resp, err := request("down", nil)
		if !stop() && err == nil {
			resp.Body.Close()
			err = penstock.ContextError(ctx)
		}
		if err != nil {
			cancel()
			up.CloseWithError(err)
			<-c.upEnded
			return nil, err
		}
		c.down = resp.Body
		return c, nil
	}
}

// dialled is a connection of two requests, at the subscriber.
type dialled struct {
	down    io.ReadCloser
	up      *io.PipeWriter
	upEnded chan struct{}
	cancel  context.CancelFunc
}

func (c *dialled) Read(p []byte) (int, error)  { return c.down.Read(p) }
func (c *dialled) Write(p []byte) (int, error) { return c.up.Write(p) }

// Close ends both requests. It gives the owner a second to read what was
// written.
func (c *dialled) Close() error {
	c.up.Close()
	wait := time.NewTimer(farewell)
	defer wait.Stop()
	select {
	case <-c.upEnded:
	case <-wait.C:
	}
	c.cancel()
	<-c.upEnded
	return c.down.Close()
}
