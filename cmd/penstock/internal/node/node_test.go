package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// fakeDriver takes reports and plays the partner.
type fakeDriver struct {
	url string

	mu       sync.Mutex
	handled  map[string][]uint32
	dead     map[string][]uint32
	foreign  int
	partner  func(ids []string) (status int, refused []string)
	reporter int           // status of the answer to reports, 0 = 204
	reported chan<- string // told the group of each report; may be nil
}

func newFakeDriver(t *testing.T) *fakeDriver {
	t.Helper()
	f := &fakeDriver{handled: map[string][]uint32{}, dead: map[string][]uint32{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fakeDriver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer secret" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == wire.PathWebhook {
		var ids []string
		for d := json.NewDecoder(r.Body); d.More(); {
			var e struct {
				ID    string
				Event json.RawMessage
			}
			if d.Decode(&e) != nil || len(e.Event) == 0 {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			ids = append(ids, e.ID)
		}
		status, refused := f.partner(ids)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(wire.WebhookAnswer{Refused: refused})
		return
	}
	var rep wire.Report
	err := json.NewDecoder(r.Body).Decode(&rep)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
		return
	case f.reporter != 0:
		w.WriteHeader(f.reporter)
		return
	case rep.Dead:
		f.dead[rep.Group] = append(f.dead[rep.Group], rep.IDs...)
	default:
		f.handled[rep.Group] = append(f.handled[rep.Group], rep.IDs...)
	}
	f.foreign += rep.Foreign
	if f.reported != nil {
		f.reported <- rep.Group
	}
	w.WriteHeader(http.StatusNoContent)
}

func testNode(f *fakeDriver) *node {
	c := wire.NodeConfig{Run: "run", Incarnation: 1, DriverURL: f.url, Secret: "secret"}
	return &node{config: c, driver: newDriver(c), slow: &pace{rate: 1e6}, logger: slog.New(slog.DiscardHandler)}
}

// batchOf makes a batch as a topic would; failures returns what was failed.
func batchOf(ids ...string) (b penstock.Batch[[]byte], failures func() []penstock.Failure) {
	d := &penstock.Delivery{Topic: wire.Topic}
	var values [][]byte
	for i, id := range ids {
		values = append(values, []byte(`{"id":"`+id+`","data":{"total_cents":`+strings.Repeat("1", i%3+1)+`}}`))
		d.Metas = append(d.Metas, penstock.Meta{ID: id, Key: "k"})
	}
	return penstock.NewBatch(values, d), d.Settle
}

func TestHandlersReportWhatTheyTook(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	n := testNode(f)
	defer n.driver.close()
	for name, h := range map[string]penstock.Handler[[]byte]{wire.Billing: n.billing, wire.Emails: n.emails, wire.Pipeline: n.pipeline} {
		b, failures := batchOf("run-4", "run-5", "other-9", "", "run-6")
		if err := h(t.Context(), b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := f.handled[name]; !slices.Equal(got, []uint32{4, 5, 6}) || len(failures()) > 0 {
			t.Errorf("%s reported %v", name, got)
		}
	}
	if f.foreign != 3*2 {
		t.Errorf("%d foreign events", f.foreign)
	}
	if n.turnover.Load() != 1+11+111+1+11 {
		t.Errorf("the pipeline added up %d", n.turnover.Load())
	}
}

func TestHandlersFailWhenTheReportIsNotTaken(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	f.partner = func([]string) (int, []string) { return http.StatusOK, nil }
	f.reporter = http.StatusInternalServerError
	n := testNode(f)
	defer n.driver.close()
	feed := &feed{driver: n.driver}
	for name, h := range map[string]penstock.Handler[[]byte]{
		"billing": n.billing, "emails": n.emails, "webhook": n.webhook, "pipeline": n.pipeline, "feed": feed.take, "dead letters": n.given,
	} {
		b, _ := batchOf("run-4")
		if err := h(t.Context(), b); err == nil || !strings.Contains(err.Error(), "500") {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if feed.delivered.Load() != 0 {
		t.Error("an event whose report was refused counts as delivered")
	}
}

func TestWebhookFailsWholeOrPerEvent(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	n := testNode(f)
	defer n.driver.close()
	f.partner = func([]string) (int, []string) { return http.StatusServiceUnavailable, nil }
	b, failures := batchOf("run-1", "run-2", "run-3")
	if err := n.webhook(t.Context(), b); err == nil || !strings.Contains(err.Error(), "503") || len(f.handled) > 0 {
		t.Fatalf("a call that failed: %v, reported %v", err, f.handled)
	}
	failures()
	f.partner = func(ids []string) (int, []string) {
		if !slices.Equal(ids, []string{"run-1", "run-2", "run-3"}) {
			t.Errorf("the partner got %q", ids)
		}
		return http.StatusOK, []string{"run-2"}
	}
	b, failures = batchOf("run-1", "run-2", "run-3")
	if err := n.webhook(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	failed := failures()
	if len(failed) != 1 || failed[0].Index != 1 || !errors.Is(failed[0].Err, errRefused) {
		t.Errorf("failed: %v", failed)
	}
	if got := f.handled[wire.Webhook]; !slices.Equal(got, []uint32{1, 3}) {
		t.Errorf("reported %v", got)
	}
}

func TestDeadLettersAreReportedForTheirGroup(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	n := testNode(f)
	defer n.driver.close()
	d := &penstock.Delivery{Topic: wire.DeadTopic, Metas: []penstock.Meta{
		{ID: "run-1", Origin: &penstock.Origin{Group: wire.Webhook}},
		{ID: "run-2", Origin: &penstock.Origin{Group: wire.Billing}},
		{ID: "run-3", Origin: &penstock.Origin{Group: wire.Webhook}},
	}}
	if err := n.given(t.Context(), penstock.NewBatch([][]byte{{}, {}, {}}, d)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.dead[wire.Webhook], []uint32{1, 3}) || !slices.Equal(f.dead[wire.Billing], []uint32{2}) || len(f.handled) > 0 {
		t.Errorf("dead %v, handled %v", f.dead, f.handled)
	}
}

func TestPaceIsOneForAllCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pace{rate: 1000}
		start := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					if err := p.wait(t.Context(), 100); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := time.Since(start); got != 2*time.Second {
			t.Errorf("2000 events at 1000/s took %v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.wait(ctx, 1_000_000); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
}

func TestHelloIsStrict(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                           "started by penstock demo",
		"no newline":                 "started by penstock demo",
		"not json\n":                 "configuration",
		`{"run":"a","odd":1}` + "\n": "unknown field",
	} {
		if _, err := hello(bufio.NewReader(strings.NewReader(text))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("hello(%q): %v, want %q in it", text, err, want)
		}
	}
	if c, err := hello(bufio.NewReader(strings.NewReader(`{"run":"a","dir":"d"}` + "\nstop\n"))); err != nil || c.Run != "a" || c.Dir != "d" {
		t.Errorf("hello = %+v, %v", c, err)
	}
}

func TestWishToStop(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{"": errDriverGone, "x\n": errDriverGone, "x\nstop\n": errAsked, " stop \nx": errAsked} {
		if got := untilStop(bufio.NewReader(strings.NewReader(text))); got != want {
			t.Errorf("untilStop(%q) = %v, want %v", text, got, want)
		}
	}
}

// life runs one incarnation in this process and returns its URL and a way to
// stop it.
func life(t *testing.T, c wire.NodeConfig) (url string, stop func() error) {
	t.Helper()
	r, stop := start(t, c)
	return r.URL, stop
}

// start is life with all addresses.
func start(t *testing.T, c wire.NodeConfig) (r wire.Ready, stop func() error) {
	t.Helper()
	input, toNode := io.Pipe()
	fromNode, output := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := Run(context.Background(), input, output, io.Discard)
		_ = output.CloseWithError(io.EOF)
		ended <- err
	}()
	if err := json.NewEncoder(toNode).Encode(c); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(fromNode).Decode(&r); err != nil {
		t.Fatalf("not ready: %v, %v", err, <-ended)
	}
	return r, func() error {
		_ = toNode.Close()
		return <-ended
	}
}

func TestNodeFromEdgeToEveryGroup(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	f.partner = func(ids []string) (int, []string) {
		if slices.Contains(ids, "run-3") {
			return http.StatusOK, []string{"run-3"}
		}
		return http.StatusOK, nil
	}
	reported := make(chan string, 1000)
	f.reported = reported
	c := wire.NodeConfig{
		Run: "run", Incarnation: 1, Dir: t.TempDir(), Durability: "written", Partitions: 4, Capacity: 20_000,
		SlowRate: 1000, DriverURL: f.url, Secret: "secret", Drain: 5 * time.Second,
	}
	node, stop := start(t, c)
	url := node.URL
	leave := f.follow(t, node, c.Secret)
	var body strings.Builder
	for i := range uint32(10) {
		body.WriteString(`{"id":"` + wire.FormatID("run", i) + `","key":"k` + string('a'+rune(i%3)) + `","data":{"total_cents":5}}` + "\n")
	}
	resp, err := http.Post(url+wire.PathTopics+wire.Topic+"?id=id&key=key", "application/x-ndjson", strings.NewReader(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted || strings.TrimSpace(string(answer)) != `{"accepted":10,"level":"written"}` {
		t.Fatalf("answer is %d %s", resp.StatusCode, answer)
	}
	all := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, g := range wire.Groups {
			if len(f.handled[g])+len(f.dead[g]) < 10 {
				return false
			}
		}
		return true
	}
	for !all() {
		select {
		case <-reported:
		case <-time.After(30 * time.Second):
			t.Fatalf("not everything was reported: %v, dead %v", f.handled, f.dead)
		}
	}
	if !slices.Equal(f.dead[wire.Webhook], []uint32{3}) || slices.Contains(f.handled[wire.Webhook], 3) {
		t.Errorf("webhook: handled %v, dead %v", f.handled[wire.Webhook], f.dead)
	}
	resp, err = http.Get(url + wire.PathStats)
	if err != nil {
		t.Fatal(err)
	}
	var s wire.Stats
	err = json.NewDecoder(resp.Body).Decode(&s)
	resp.Body.Close()
	if err != nil || len(s.Groups) != len(wire.Groups)+1 || s.Level != "written" || s.DiskBytes <= 0 || s.MemoryBytes == 0 {
		t.Errorf("stats are %+v, %v", s, err)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	leave() // after the node: its drain needs the connection
	// The next incarnation has nothing left to deliver, and stops at once.
	c.Incarnation++
	_, stop = life(t, c)
	if err := stop(); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if n := len(f.handled[wire.Billing]); n != 10 {
		t.Errorf("billing was reported %d events over both lives", n)
	}
}

func TestFullTopicAnswers429(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	f.partner = func([]string) (int, []string) { return http.StatusOK, nil }
	url, stop := life(t, wire.NodeConfig{
		Run: "run", Incarnation: 1, Dir: t.TempDir(), Durability: "written", Partitions: 2, Capacity: 10,
		SlowRate: 0.001, DriverURL: f.url, Secret: "secret", Drain: time.Second,
	})
	post := func(n int) *http.Response {
		resp, err := http.Post(url+wire.PathTopics+wire.Topic, "application/x-ndjson", strings.NewReader(strings.Repeat("{}\n", n)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp
	}
	if r := post(8); r.StatusCode != http.StatusAccepted {
		t.Fatalf("8 of 10: %s", r.Status)
	}
	if r := post(3); r.StatusCode != http.StatusTooManyRequests || r.Header.Get("Retry-After") != "1" {
		t.Errorf("11 of 10: %s, Retry-After %q", r.Status, r.Header.Get("Retry-After"))
	}
	if r := post(2); r.StatusCode != http.StatusAccepted {
		t.Errorf("10 of 10, after a refusal: %s", r.Status)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestSecondNodeOnOneDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	c := wire.NodeConfig{
		Run: "run", Incarnation: 1, Dir: t.TempDir(), Durability: "synced", Partitions: 1, Capacity: 20_000,
		SlowRate: 1000, DriverURL: f.url, Secret: "secret",
	}
	_, stop := life(t, c)
	line, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	err = Run(t.Context(), strings.NewReader(string(line)+"\n"), io.Discard, io.Discard)
	if !errors.Is(err, penstock.ErrLocked) {
		t.Errorf("error is %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
