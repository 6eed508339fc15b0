package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// roleEnv makes the test binary play a node instead of running tests. Its
// value names the fault that the node has, "none" for a good one.
const roleEnv = "PENSTOCK_TEST_NODE"

func TestMain(m *testing.M) {
	if fault := os.Getenv(roleEnv); fault != "" {
		if err := playNode(fault); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(7)
		}
		return
	}
	leak.Main(m)
}

// nodeWith returns a command that plays a node with a fault.
func nodeWith(fault string) func() *exec.Cmd {
	return func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleEnv+"="+fault)
		return cmd
	}
}

// fakeNode is a node of a page: one file of lines is the log, and each group's
// position in it is a file. It knows faults that no real node may have.
type fakeNode struct {
	config wire.NodeConfig
	fault  string
	owner  *remote.Owner // of the consumer that is with the driver

	mu    sync.Mutex
	log   *os.File
	lines []fakeLine
	more  chan struct{}
	posts int
}

type fakeLine struct{ ID string }

func playNode(fault string) error {
	in := bufio.NewReader(os.Stdin)
	n := &fakeNode{fault: fault, more: make(chan struct{})}
	if err := json.NewDecoder(in).Decode(&n.config); err != nil {
		return err
	}
	switch {
	case fault == "silent":
		_, err := io.Copy(io.Discard, in)
		return err
	case fault == "refuses to start":
		return fmt.Errorf("the data directory is in use")
	}
	if err := os.MkdirAll(n.config.Dir, 0o700); err != nil {
		return err
	}
	if err := n.open(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathTopics+wire.Topic, n.post)
	mux.HandleFunc("GET "+wire.PathStats, n.stats)
	if n.owner, err = remote.NewOwner(remote.OwnerConfig{History: n.config.Run}); err != nil {
		return err
	}
	mux.Handle("POST "+wire.PathStreams, remote.NewHandler(func(*http.Request) (*remote.Owner, error) { return n.owner, nil }))
	go http.Serve(listener, mux) //nolint:errcheck // ends with the process
	for _, g := range wire.Groups {
		go n.group(g)
	}
	streams := wire.PathStreams
	if fault == "has no streams" {
		streams = "/none"
	}
	fmt.Printf("{\"url\":\"http://%[1]s\",\"streams\":\"http://%[1]s%[2]s\"}\n", listener.Addr(), streams)
	for {
		line, err := in.ReadString('\n')
		if err != nil || strings.TrimSpace(line) == wire.Stop {
			return nil
		}
	}
}

func (n *fakeNode) open() error {
	path := filepath.Join(n.config.Dir, "log")
	if n.fault == "forgets its log" {
		_ = os.Remove(path)
	}
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	whole := old[:bytes.LastIndexByte(old, '\n')+1]
	n.take(whole)
	if n.log, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
		return err
	}
	_, err = n.log.Seek(int64(len(whole)), io.SeekStart)
	return err
}

func (n *fakeNode) take(body []byte) {
	for line := range bytes.Lines(body) {
		var l fakeLine
		if json.Unmarshal(line, &l) == nil {
			n.lines = append(n.lines, l)
		}
	}
	close(n.more)
	n.more = make(chan struct{})
}

func (n *fakeNode) post(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.posts++
	accepted := bytes.Count(body, []byte("\n"))
	switch {
	case n.fault == "full at times" && n.posts%3 == 0:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case n.fault == "refuses a request" && n.posts == 3:
		w.WriteHeader(http.StatusBadRequest)
		return
	case n.fault == "cuts answers" && n.posts%2 == 0:
		if _, err := n.log.Write(body); err == nil {
			n.take(body)
		}
		panic(http.ErrAbortHandler)
	case n.fault == "never answers":
		<-r.Context().Done()
		return
	case n.fault == "acknowledges less" && n.posts == 2:
		accepted--
	case n.fault == "dies" && n.posts == 5:
		fmt.Fprintln(os.Stderr, "error: a part failed")
		os.Exit(6)
	case n.fault == "acknowledges and drops" && n.posts == 2:
		fmt.Fprintf(writeStatus(w), `{"accepted":%d,"level":"written"}`, accepted)
		return
	}
	if _, err := n.log.Write(body); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	n.take(body)
	fmt.Fprintf(writeStatus(w), `{"accepted":%d,"level":"written"}`, accepted)
}

func writeStatus(w http.ResponseWriter) io.Writer {
	w.WriteHeader(http.StatusAccepted)
	return w
}

func (n *fakeNode) stats(w http.ResponseWriter, _ *http.Request) {
	s := wire.Stats{DiskBytes: 1 << 20}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, g := range wire.Groups {
		s.Groups = append(s.Groups, wire.GroupStats{Name: g, Lag: uint64(len(n.lines) - n.position(g)), Consumers: 1})
	}
	_ = json.NewEncoder(w).Encode(s)
}

func (n *fakeNode) position(group string) (at int) {
	b, _ := os.ReadFile(filepath.Join(n.config.Dir, group))
	_, _ = fmt.Sscan(string(b), &at)
	return at
}

// group reports what comes, in batches, and stores its position afterwards.
func (n *fakeNode) group(name string) {
	if n.fault == "forgets its log" && name == wire.Billing && n.config.Incarnation == 1 {
		return // so that something is still owed when the log goes
	}
	for at := n.position(name); ; {
		n.mu.Lock()
		at = min(at, len(n.lines))
		batch, more := n.lines[at:min(len(n.lines), at+200)], n.more
		n.mu.Unlock()
		if len(batch) == 0 {
			<-more
			continue
		}
		if n.fault == "ends as if all were well" && name == wire.Emails && at >= 400 {
			os.Exit(0) // as if all were well, with events in its hands
		}
		if name == wire.Remote {
			n.deliver(at, batch)
		} else {
			n.report(name, at, batch)
		}
		at += len(batch)
		n.store(name, at)
	}
}

func (n *fakeNode) store(name string, at int) {
	tmp := filepath.Join(n.config.Dir, name+".tmp")
	if os.WriteFile(tmp, fmt.Append(nil, at), 0o600) == nil {
		_ = os.Rename(tmp, filepath.Join(n.config.Dir, name))
	}
}

func (n *fakeNode) report(name string, at int, batch []fakeLine) {
	r := wire.Report{Group: name, Incarnation: n.config.Incarnation}
	dead := wire.Report{Group: name, Incarnation: n.config.Incarnation, Dead: true}
	var refused []string
	if name == wire.Webhook && n.fault != "reports without a call" {
		refused = n.callPartner(batch)
	}
	for i, l := range batch {
		id, ok := wire.ParseID(n.config.Run, l.ID)
		switch {
		case !ok:
			r.Foreign++
		case slices.Contains(refused, l.ID), n.fault == "gives up good events" && name == wire.Feed && at+i == 50:
			dead.IDs = append(dead.IDs, id)
		case n.fault == "skips an event" && name == wire.Billing && at+i == 50:
		case n.fault == "invents an event" && name == wire.Emails && at+i == 50:
			r.IDs = append(r.IDs, id, 4_000_000_000)
		case n.fault == "repeats an event" && at+i == 50:
			r.IDs = append(r.IDs, id, id)
		default:
			r.IDs = append(r.IDs, id)
		}
	}
	if n.fault == "turns batches around" && name == wire.Pipeline {
		slices.Reverse(r.IDs)
	}
	for _, r := range []wire.Report{r, dead} {
		if len(r.IDs)+r.Foreign == 0 {
			continue
		}
		body, _ := json.Marshal(r)
		resp, err := n.call(wire.PathReport, body)
		if err != nil || resp.StatusCode != http.StatusNoContent {
			fmt.Fprintln(os.Stderr, "error: the driver does not take a report:", err)
			os.Exit(1)
		}
		resp.Body.Close()
	}
}

// deliver hands lines to the driver's own consumer, until they are taken.
func (n *fakeNode) deliver(at int, batch []fakeLine) {
	d := stream.Delivery{Request: 1}
	d.Subscription.Stream = stream.QualifiedStreamID{Provider: "fake", StreamID: penstock.StreamID{Namespace: "orders", Key: "0"}}
	d.Subscription.Name = wire.Remote
	for i, l := range batch {
		if n.fault == "skips an event across the connection" && at+i == 50 {
			continue
		}
		c := &stream.Container{
			Stream: d.Subscription.Stream.StreamID, Token: penstock.Token{Lo: uint64(at + i)},
			Events: stream.EventsOf(penstock.Envelope{Meta: penstock.Meta{ID: l.ID}, Value: []byte("{}")}),
		}
		d.Items = append(d.Items, stream.Item{Token: c.Token, Attempt: 1, From: c})
	}
	if n.fault == "turns deliveries around" {
		slices.Reverse(d.Items)
	}
	for {
		if a, err := n.owner.Deliver(context.Background(), &d); err == nil && len(a.Failed) == 0 {
			return
		}
	}
}

func (n *fakeNode) call(path string, body []byte) (*http.Response, error) {
	q, _ := http.NewRequest("POST", n.config.DriverURL+path, bytes.NewReader(body))
	q.Header.Set("Authorization", "Bearer "+n.config.Secret)
	return http.DefaultClient.Do(q)
}

// callPartner calls until the partner has no bad moment.
func (n *fakeNode) callPartner(batch []fakeLine) (refused []string) {
	var body []byte
	for _, l := range batch {
		body = fmt.Appendf(body, "{\"id\":%q}\n", l.ID)
	}
	for {
		resp, err := n.call(wire.PathWebhook, body)
		if err != nil {
			fmt.Fprintln(os.Stderr, "error: the partner is gone:", err)
			os.Exit(1)
		}
		var a wire.WebhookAnswer
		err = json.NewDecoder(resp.Body).Decode(&a)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK && err == nil {
			return a.Refused
		}
	}
}
