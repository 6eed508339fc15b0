package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

// Defaults of a [Config].
const (
	DefaultMaxBody     = 4 * penstock.MiB
	DefaultMaxLine     = 1 * penstock.MiB
	DefaultMaxEvents   = 10_000
	DefaultMaxInFlight = 64 * penstock.MiB
	// MaxDepth is the largest nesting of objects and arrays in one event.
	MaxDepth = 64
	// MaxName is the largest length of a topic's name, and of an id or a key.
	MaxName = 120
	maxText = 1024
)

// Topic is where the edge puts events.
type Topic interface {
	// Append stores the events in order and returns the level that all of
	// them have reached. When the topic is full it stores nothing and returns
	// an error that matches [penstock.ErrFull]; it does not wait for room.
	// The events and their values belong to the topic from the call on.
	Append(ctx context.Context, events []penstock.Event[[]byte]) (penstock.Durability, error)
}

// Config says what an [Edge] serves. Zero numbers mean the defaults above.
type Config struct {
	Topics      map[string]Topic // by name; required
	MaxBody     penstock.Bytes   // of one request
	MaxLine     penstock.Bytes   // of one event
	MaxEvents   int              // in one request
	MaxInFlight penstock.Bytes   // of all requests together; at least MaxBody
	Logger      *slog.Logger     // nil = slog.Default()
}

func (c *Config) validate() error {
	fill := func(field string, v *penstock.Bytes, def penstock.Bytes) error {
		if *v < 0 {
			return &penstock.FieldError{Field: field, Reason: fmt.Sprintf("%d is negative", int64(*v))}
		}
		if *v == 0 {
			*v = def
		}
		return nil
	}
	err := errors.Join(
		fill("MaxBody", &c.MaxBody, DefaultMaxBody),
		fill("MaxLine", &c.MaxLine, min(DefaultMaxLine, max(c.MaxBody, 1))),
		fill("MaxInFlight", &c.MaxInFlight, max(DefaultMaxInFlight, c.MaxBody)))
	if err != nil {
		return err
	}
	switch {
	case len(c.Topics) == 0:
		return &penstock.FieldError{Field: "Topics", Reason: "is empty"}
	case c.MaxEvents < 0:
		return &penstock.FieldError{Field: "MaxEvents", Reason: fmt.Sprintf("%d is negative", c.MaxEvents)}
	case c.MaxInFlight < c.MaxBody:
		return &penstock.FieldError{Field: "MaxInFlight", Reason: fmt.Sprintf("%v is below MaxBody, %v", c.MaxInFlight, c.MaxBody)}
	}
	for name, t := range c.Topics {
		if !ValidName(name) || t == nil {
			return &penstock.FieldError{Field: "Topics", Reason: fmt.Sprintf("%q is not a valid name, or its topic is nil", name)}
		}
	}
	if c.MaxEvents == 0 {
		c.MaxEvents = DefaultMaxEvents
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// ValidName reports whether name may name a topic: 1 to [MaxName] of the
// characters A-Z, a-z, 0-9, '.', '_' and '-', the first not a dot.
func ValidName(name string) bool {
	if name == "" || len(name) > MaxName || name[0] == '.' {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// Edge is the HTTP handler. It is safe for concurrent use.
type Edge struct {
	config   Config
	bodies   *demand.Budget
	stopping atomic.Bool

	requests, accepted, refused, full atomic.Uint64
}

// New returns an edge. The error matches [penstock.ErrInvalid].
func New(c Config) (*Edge, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	bodies, err := demand.NewBudget(demand.BudgetConfig{Bytes: c.MaxInFlight})
	if err != nil {
		return nil, err
	}
	return &Edge{config: c, bodies: bodies}, nil
}

// Stop makes the edge answer 503 to every request that begins from now on.
// Requests that have begun are served to their end.
func (e *Edge) Stop() { e.stopping.Store(true) }

// Stats is what an edge has done since it was made.
type Stats struct {
	Requests uint64 // that were answered
	Accepted uint64 // events
	Refused  uint64 // requests answered with 400 or above
	Full     uint64 // requests answered with 429
}

// Stats returns the counters of the edge.
func (e *Edge) Stats() Stats {
	return Stats{Requests: e.requests.Load(), Accepted: e.accepted.Load(), Refused: e.refused.Load(), Full: e.full.Load()}
}

// ServeHTTP serves one request. There is no mux: a path that is not exactly
// right is refused, never cleaned and redirected, and every answer is JSON.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var level penstock.Durability
	var n int
	name, err := topicOf(r)
	if err == nil {
		level, n, err = e.take(w, r, name)
	}
	e.requests.Add(1)
	if err != nil {
		e.refused.Add(1)
		p := problemOf(err)
		if p.status == http.StatusTooManyRequests {
			e.full.Add(1)
		}
		if p.status == http.StatusInternalServerError {
			e.config.Logger.Error("request failed", "topic", name, "error", err)
		}
		p.write(w)
		return
	}
	e.accepted.Add(uint64(n))
	writeJSON(w, http.StatusAccepted, accepted{Accepted: n, Level: level.String()})
}

// Path is what comes before the name of a topic.
const Path = "/v1/topics/"

// topicOf takes the name of the topic from the path of a POST.
func topicOf(r *http.Request) (string, error) {
	escaped, ok := strings.CutPrefix(r.URL.EscapedPath(), Path)
	if !ok || escaped == "" || strings.Contains(escaped, "/") {
		return "", refuse(http.StatusNotFound, "no_path", "there is nothing here; events go to POST "+Path+"TOPIC")
	}
	if r.Method != http.MethodPost {
		return "", refuse(http.StatusMethodNotAllowed, "method", "only POST is taken here")
	}
	name, err := url.PathUnescape(escaped)
	if err != nil || !ValidName(name) {
		return "", refuse(http.StatusBadRequest, "bad_topic",
			"a topic's name is 1 to "+strconv.Itoa(MaxName)+" of A-Z a-z 0-9 . _ - and does not begin with a dot")
	}
	return name, nil
}

// take serves one request up to the answer.
func (e *Edge) take(w http.ResponseWriter, r *http.Request, name string) (level penstock.Durability, n int, err error) {
	if e.stopping.Load() {
		return 0, 0, penstock.ErrClosed
	}
	topic := e.config.Topics[name]
	if topic == nil {
		return 0, 0, refuse(http.StatusNotFound, "no_topic", "there is no topic "+strconv.Quote(name))
	}
	want, err := wantOf(r)
	if err != nil {
		return 0, 0, err
	}
	body, release, err := e.readBody(w, r)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	events, err := want.parse(body, &e.config)
	if err != nil {
		return 0, 0, err
	}
	level, err = topic.Append(r.Context(), events)
	return level, len(events), err
}
