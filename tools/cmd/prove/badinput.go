package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

var badInput = attack{
	name:  "bad-input",
	claim: "bad input to the edge is refused by its line, nothing of it is stored, and the node goes on",
	fault: "malformed, oversized, deep, encoded, misaddressed and mistyped requests",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		n, err := l.startNode(ctx, nodeConfig{Dir: dir, Durability: "written", Partitions: 2, Capacity: 10_000, SlowRate: 10_000, Drain: time.Second})
		if err != nil {
			return "", err
		}
		defer n.stop()
		for _, c := range badCases() {
			a, err := n.do(ctx, c.method, c.path, c.header, bytes.NewReader(c.body))
			if err != nil {
				return "", fmt.Errorf("%s: %w", c.name, err)
			}
			if a.status != c.status || !strings.Contains(a.body, c.says) {
				return "", fmt.Errorf("%s: %d %s, want %d with %q", c.name, a.status, a.body, c.status, c.says)
			}
		}
		a, err := n.post(ctx, "application/x-ndjson", lines(0, 100))
		if err != nil || a.status != http.StatusAccepted {
			return "", fmt.Errorf("afterwards: %d %s %w", a.status, a.body, err)
		}
		for n.reported("billing") < 100 {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return "", fmt.Errorf("billing reported %d of 100 good events: %w", n.reported("billing"), ctx.Err())
			}
		}
		if got := n.reported("billing"); got != 100 {
			return "", fmt.Errorf("billing reported %d events, 100 were good", got)
		}
		return fmt.Sprintf("%d bad requests refused, 0 of their events stored, 100 good events handled afterwards", len(badCases())), nil
	},
}

// badCase is one request and the answer that it must get.
type badCase struct {
	name, method, path string
	header             http.Header
	body               []byte
	status             int
	says               string
}

func badCases() []badCase {
	const topic = "/v1/topics/orders?id=id&key=key"
	ndjson := http.Header{"Content-Type": {"application/x-ndjson"}}
	object := http.Header{"Content-Type": {"application/json"}}
	gzip := http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}
	deep := []byte(`{"id":"a","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`)
	third := append(lines(0, 2), "{\"id\":\n"...)
	return []badCase{
		{"malformed line", "POST", topic, ndjson, third, 400, `"line":3`},
		{"not an object", "POST", topic, object, []byte(`[1,2]`), 400, ""},
		{"empty body", "POST", topic, object, nil, 400, ""},
		{"too deep", "POST", topic, object, deep, 400, ""},
		{"invalid UTF-8", "POST", topic, object, []byte("{\"id\":\"\xff\"}"), 400, ""},
		{"body too large", "POST", topic, ndjson, bytes.Repeat([]byte("{\"id\":\"a\"}\n"), 1_000_000), 413, ""},
		{"line too large", "POST", topic, ndjson, append(append([]byte(`{"id":"`), bytes.Repeat([]byte("a"), 2<<20)...), `"}`...), 413, ""},
		{"compressed body", "POST", topic, gzip, []byte("\x1f\x8b\x08"), 415, ""},
		{"wrong type", "POST", topic, http.Header{"Content-Type": {"text/plain"}}, []byte("a"), 415, ""},
		{"no such topic", "POST", "/v1/topics/nothing", object, []byte(`{}`), 404, ""},
		{"path outside", "POST", "/v1/topics/..%2F..%2Fetc", object, []byte(`{}`), 400, ""},
		{"wrong method", "PUT", topic, object, []byte(`{}`), 405, ""},
		{"large header", "POST", topic, http.Header{"Content-Type": {"application/json"}, "X-Large": {strings.Repeat("a", 64<<10)}}, []byte(`{}`), 431, ""},
	}
}
