package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/edge"
	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// item is one event on its way to the node.
type item struct {
	id   judge.ID
	key  uint32
	line []byte // as it is sent, with the newline
}

// request is one NDJSON request. It is repeated as it is until answered.
type request struct {
	lane, number, tries int
	items               []item
	body                []byte
}

const (
	requestTimeout = 30 * time.Second
	retryMin       = 10 * time.Millisecond
	retryMax       = 500 * time.Millisecond
)

// lane sends the events of its keys, one request at a time.
//
// Invariant: at most one request of a lane is unanswered, so at most one of
// any key.
type lane struct {
	number int
	queue  chan item // closed by the generator
	record *record
	client *http.Client
	url    func(context.Context) (string, error) // of a node that is ready; waits for one
	done   func(bytes int)                       // gives memory of acknowledged events back
	full   func(bool)                            // told whether the node said that it is full
	sent   int                                   // requests
}

// run sends until the queue is closed and everything is acknowledged, or until
// ctx ends. What is unanswered then stays unknown.
func (l *lane) run(ctx context.Context) error {
	for {
		q := l.collect(ctx)
		if q == nil {
			return ctx.Err()
		}
		if err := l.deliver(ctx, q); err != nil {
			return fmt.Errorf("lane %d: %w", l.number, err)
		}
		l.done(len(q.body))
	}
}

// collect waits for an event and takes what comes within a short while.
// It returns nil when there is nothing left, or ctx ended.
func (l *lane) collect(ctx context.Context) *request {
	q := &request{lane: l.number}
	var linger <-chan time.Time
	for len(q.items) < maxRequest && len(q.body) < maxBody {
		select {
		case it, ok := <-l.queue:
			if !ok {
				return l.numbered(q)
			}
			q.items = append(q.items, it)
			q.body = append(q.body, it.line...)
			if linger == nil {
				linger = time.After(lingerRequest)
			}
		case <-linger:
			return l.numbered(q)
		case <-ctx.Done():
			return nil
		}
	}
	return l.numbered(q)
}

func (l *lane) numbered(q *request) *request {
	if len(q.items) == 0 {
		return nil
	}
	l.sent++
	q.number = l.sent
	return q
}

// deliver repeats a request until it is acknowledged.
func (l *lane) deliver(ctx context.Context, q *request) error {
	pause := retryMin
	for {
		url, err := l.url(ctx)
		if err != nil {
			return err
		}
		q.tries++
		if err := l.record.invoke(q); err != nil {
			return err
		}
		a := l.try(ctx, url, q)
		if a.acked {
			l.full(false)
			return l.record.ok(q)
		}
		if err := l.record.fail(q, a.why); err != nil {
			return err
		}
		if a.fatal {
			return fmt.Errorf("request %d: %s", q.number, a.why)
		}
		wait := pause
		if a.after > 0 {
			l.full(a.full)
			wait = a.after
		} else {
			pause = min(2*pause, retryMax)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer is what became of one try.
type answer struct {
	acked bool
	fatal bool // a repeat cannot help
	full  bool
	after time.Duration // what the node asked to wait; 0 = it did not say
	why   string
}

func (l *lane) try(ctx context.Context, url string, q *request) answer {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	target := url + wire.PathTopics + wire.Topic + "?id=id&key=key"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(q.body))
	if err != nil {
		return answer{fatal: true, why: err.Error()}
	}
	r.Header.Set("Content-Type", edge.TypeNDJSON)
	resp, err := l.client.Do(r)
	if err != nil {
		return answer{why: err.Error()}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return answer{why: err.Error()}
	}
	return judgeAnswer(resp.StatusCode, resp.Header.Get("Retry-After"), body, len(q.items))
}

// judgeAnswer reads an answer of the edge to a request of n events.
func judgeAnswer(status int, retryAfter string, body []byte, n int) answer {
	a := answer{why: fmt.Sprintf("%d %.200s", status, bytes.TrimSpace(body))}
	switch {
	case status == http.StatusAccepted:
		var got struct{ Accepted int }
		if err := json.Unmarshal(body, &got); err != nil || got.Accepted != n {
			return answer{fatal: true, why: fmt.Sprintf("%s, but %d events were sent", a.why, n)}
		}
		return answer{acked: true}
	case status == http.StatusTooManyRequests, status >= 500:
		a.full = status == http.StatusTooManyRequests
		if secs, err := strconv.Atoi(retryAfter); err == nil && secs > 0 {
			a.after = min(time.Duration(secs)*time.Second, requestTimeout)
		}
	default:
		a.fatal = true
	}
	return a
}

// isGivenUp reports whether err only says that ctx ended.
func isGivenUp(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
