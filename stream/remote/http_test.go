package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// overHTTP serves an owner, and returns a client for it. Both have ended when
// the test has.
func overHTTP(t *testing.T, owner func(r *http.Request) (*remote.Owner, error)) (address string, client *http.Client) {
	t.Helper()
	server := httptest.NewServer(remote.NewHandler(owner))
	client = &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() { client.CloseIdleConnections(); server.Close() })
	return server.URL, client
}

// The same cases hold over two HTTP requests.
func TestConsumerOverHTTP(t *testing.T) {
	penstocktest.StreamConsumer(t, func(t *testing.T, far stream.Consumer) stream.Consumer {
		owner, err := remote.NewOwner(remote.OwnerConfig{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		address, client := overHTTP(t, func(*http.Request) (*remote.Owner, error) { return owner, nil })
		sub, err := remote.NewSubscriber(remote.SubscriberConfig{
			Dial: remote.DialHTTP(client, address, nil), Logger: quiet,
			Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return far, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- sub.Run(ctx) }() // ended by the cleanup
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("subscriber: %v", err)
			}
		})
		return patient{owner}
	})
}

func TestRequestsThatAreRefused(t *testing.T) {
	owner, err := remote.NewOwner(remote.OwnerConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	address, client := overHTTP(t, func(r *http.Request) (*remote.Owner, error) {
		switch r.URL.Path {
		case "/none":
			return nil, fmt.Errorf("owner %q: %w", r.URL.Path, penstock.ErrNotFound)
		case "/closed":
			return nil, errors.New("not for you")
		}
		return owner, nil
	})
	for name, c := range map[string]struct {
		method, target string
		status         int
	}{
		"method":   {http.MethodGet, "/?way=up&connection=x", http.StatusMethodNotAllowed},
		"way":      {http.MethodPost, "/?way=side&connection=x", http.StatusBadRequest},
		"name":     {http.MethodPost, "/?way=up", http.StatusBadRequest},
		"long":     {http.MethodPost, "/?way=up&connection=" + strings.Repeat("x", 65), http.StatusBadRequest},
		"nobody":   {http.MethodPost, "/none?way=up&connection=x", http.StatusNotFound},
		"not mine": {http.MethodPost, "/closed?way=down&connection=x", http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, address+c.target, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: %s, want %d", name, resp.Status, c.status)
		}
	}
	for target, says := range map[string]string{"/none": "404", "/closed": "not for you"} {
		if _, err := remote.DialHTTP(client, address+target, nil)(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("dial %s: %v, want one that says %q", target, err, says)
		}
	}
}

// Requests that never become a connection are bounded in number, and end with
// their client.
func TestHalfMadeConnectionsAreBounded(t *testing.T) {
	owner, err := remote.NewOwner(remote.OwnerConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	address, client := overHTTP(t, func(*http.Request) (*remote.Owner, error) { return owner, nil })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	post := func(name string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/?way=down&connection="+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var open []io.Closer
	refused := 0
	for i := range 65 {
		resp := post(fmt.Sprint(i))
		if resp.StatusCode == http.StatusTooManyRequests {
			refused++
		}
		open = append(open, resp.Body)
	}
	if refused != 1 {
		t.Errorf("%d of 65 refused, want the last one", refused)
	}
	resp := post("0")
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the same request twice: %s", resp.Status)
	}
	open = append(open, resp.Body)
	cancel()
	for _, c := range open {
		c.Close()
	}
}
