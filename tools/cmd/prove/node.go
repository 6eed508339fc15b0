package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// nodeConfig is the line that a node takes on its standard input; see package
// wire of cmd/penstock.
type nodeConfig struct {
	Run         string        `json:"run"`
	Incarnation int           `json:"incarnation"`
	Dir         string        `json:"dir"`
	Durability  string        `json:"durability"`
	Partitions  int           `json:"partitions"`
	Capacity    int           `json:"capacity"`
	SlowRate    float64       `json:"slow_rate"`
	DriverURL   string        `json:"driver_url"`
	Secret      string        `json:"secret"`
	Drain       time.Duration `json:"drain"`
}

// node is a running node of the real binary and a driver for it that notes
// which events its handlers report.
type node struct {
	*child
	url    string
	driver *httptest.Server

	mu      sync.Mutex
	reports map[string]int // events, by group
}

// startNode starts a node over dir.
func (l *lab) startNode(ctx context.Context, c nodeConfig) (*node, error) {
	binary, err := l.binary()
	if err != nil {
		return nil, err
	}
	n := &node{reports: map[string]int{}}
	n.driver = httptest.NewServer(http.HandlerFunc(n.serveDriver))
	c.Run, c.Incarnation, c.Secret, c.DriverURL = "prove", 1, "secret", n.driver.URL
	if n.child, err = start(exec.CommandContext(ctx, binary, "node")); err != nil {
		n.driver.Close()
		return nil, err
	}
	line, err := json.Marshal(c)
	if err == nil {
		_, err = n.stdin.Write(append(line, '\n'))
	}
	var text string
	if err == nil {
		text, err = n.next(ctx)
	}
	var ready struct{ URL string }
	if err == nil {
		err = json.Unmarshal([]byte(text), &ready)
	}
	if err != nil {
		n.stop()
		return nil, fmt.Errorf("the node did not start: %w; %s", err, n.errors())
	}
	n.url = ready.URL
	return n, nil
}

// stop ends the node by force, and its driver.
func (n *node) stop() {
	n.kill()
	n.driver.Close()
}

// serveDriver takes the reports of the node's handlers and answers its webhook
// calls.
func (n *node) serveDriver(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/report") {
		var report struct {
			Group   string
			IDs     []uint32
			Foreign int
		}
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		n.mu.Lock()
		n.reports[report.Group] += len(report.IDs) + report.Foreign
		n.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // a webhook call: everything is taken
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, "{}")
}

// reported returns how many events a group has reported.
func (n *node) reported(group string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reports[group]
}

// answer is what the edge said to one request.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a body to the topic of the demo.
func (n *node) post(ctx context.Context, contentType string, body []byte) (answer, error) {
	return n.do(ctx, http.MethodPost, "/v1/topics/orders?id=id&key=key", http.Header{"Content-Type": {contentType}}, bytes.NewReader(body))
}

func (n *node) do(ctx context.Context, method, path string, header http.Header, body io.Reader) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, n.url+path, body)
	if err != nil {
		return answer{}, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, errors.Join(err, resp.Body.Close())
}

// lines makes n events as NDJSON, numbered from first.
func lines(first, n int) []byte {
	var b bytes.Buffer
	for i := first; i < first+n; i++ {
		fmt.Fprintf(&b, "{\"id\":\"prove-%d\",\"key\":\"k%d\",\"amount\":%d}\n", i, i%50, i)
	}
	return b.Bytes()
}
