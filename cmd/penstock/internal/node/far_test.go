package node

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// follow is the driver's end of the connection: what comes over it is handled
// for the group remote. leave ends it, and waits.
func (f *fakeDriver) follow(t *testing.T, at wire.Ready, secret string) (leave func()) {
	t.Helper()
	transport := &http.Transport{}
	header := http.Header{"Authorization": {"Bearer " + secret}}
	take := func(_ context.Context, b penstock.Batch[[]byte]) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i := range b.Len() {
			if n, ok := wire.ParseID("run", b.ID(i)); ok {
				f.handled[wire.Remote] = append(f.handled[wire.Remote], n)
			}
		}
		if f.reported != nil {
			f.reported <- wire.Remote
		}
		return nil
	}
	s, err := remote.NewSubscriber(remote.SubscriberConfig{
		Dial: remote.DialHTTP(&http.Client{Transport: transport}, at.Streams, header),
		Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
			return stream.NewConsumer(penstock.Raw(), take, stream.From(stream.Earliest))
		},
		Backoff: stream.Exponential{Min: time.Millisecond, Max: 10 * time.Millisecond, Step: time.Millisecond},
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }() // ends with leave
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("consumer: %v", err)
		}
		transport.CloseIdleConnections()
	}
}

func farConfig(t *testing.T, f *fakeDriver) wire.NodeConfig {
	return wire.NodeConfig{
		Run: "run", Incarnation: 1, Dir: t.TempDir(), Durability: "written", Partitions: 2, Capacity: 20_000,
		SlowRate: 1e6, DriverURL: f.url, Secret: "secret", Drain: 10 * time.Second,
	}
}

// waitFor waits until so many events were handled for the group.
func (f *fakeDriver) waitFor(t *testing.T, reported <-chan string, group string, n int) {
	t.Helper()
	for {
		f.mu.Lock()
		got := len(f.handled[group])
		f.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-reported:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d events of %s", got, n, group)
		}
	}
}

func produce(t *testing.T, url, body string) {
	t.Helper()
	resp, err := http.Post(url+wire.PathTopics+wire.Topic+"?id=id&key=key", "application/x-ndjson", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Fatal(resp.Status)
	}
}

func line(id uint32, data string) string {
	return `{"id":"` + wire.FormatID("run", id) + `","key":"k","data":` + data + "}\n"
}

// A node that ended keeps what the consumer across the connection has not
// taken; the next one gives it what follows, and nothing twice.
func TestConsumerElsewhereGoesOnWithTheNextNode(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	f.partner = func([]string) (int, []string) { return http.StatusOK, nil }
	reported := make(chan string, 1000)
	f.reported = reported
	c := farConfig(t, f)
	node, stop := start(t, c)
	leave := f.follow(t, node, c.Secret)
	produce(t, node.URL, line(0, "1")+line(1, "2"))
	f.waitFor(t, reported, wire.Remote, 2)
	leave()
	produce(t, node.URL, line(2, "3"))
	f.waitFor(t, reported, wire.Feed, 3)
	c.Drain = time.Second // nobody takes what is left
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	c.Incarnation++
	node, stop = start(t, c)
	leave = f.follow(t, node, c.Secret)
	produce(t, node.URL, line(3, "4"))
	f.waitFor(t, reported, wire.Remote, 4)
	if err := stop(); err != nil {
		t.Errorf("second stop: %v", err)
	}
	leave()
	http.DefaultClient.CloseIdleConnections()
	if got := f.handled[wire.Remote]; !slices.Equal(got, []uint32{0, 1, 2, 3}) {
		t.Errorf("across the connection came %v", got)
	}
}

// What was forwarded in one batch and is longer than a line of the connection
// goes in several deliveries.
func TestLargeEventsFitTheConnection(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	f.partner = func([]string) (int, []string) { return http.StatusOK, nil }
	reported := make(chan string, 1000)
	f.reported = reported
	c := farConfig(t, f)
	n := testNode(f)
	n.config, n.level = c, penstock.Written
	feed, err := openFeed(n)
	if err != nil {
		t.Fatal(err)
	}
	url, hangUp, err := feed.far.listen(n.logger, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- feed.run(ctx) }() // ends below
	leave := f.follow(t, wire.Ready{Streams: url}, c.Secret)
	large := strings.Repeat("x", 800<<10)
	d := &penstock.Delivery{Topic: wire.Topic}
	var values [][]byte
	var want []uint32
	for i := range uint32(9) {
		values = append(values, []byte(large))
		d.Metas = append(d.Metas, penstock.Meta{ID: wire.FormatID("run", i), Key: "k"})
		want = append(want, i)
	}
	if err := feed.forward(ctx, penstock.NewBatch(values, d)); err != nil {
		t.Fatal(err)
	}
	f.waitFor(t, reported, wire.Remote, len(want))
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	hangUp()
	leave()
	n.driver.close()
	if err := feed.close(); err != nil {
		t.Error(err)
	}
	if got := f.handled[wire.Remote]; !slices.Equal(got, want) {
		t.Errorf("across the connection came %v", got)
	}
	if got := feed.far.delivered.Load(); got != int64(len(want)) {
		t.Errorf("%d events were counted", got)
	}
}

// An answer that rewinds settles only what its consumer has: the rest comes again,
// and would be counted twice.
func TestRewindSettlesWhatItsConsumerHas(t *testing.T) {
	d := &stream.Delivery{}
	for i := range uint64(4) {
		d.Items = append(d.Items, stream.Item{Token: penstock.Token{Lo: i + 1}})
	}
	for _, c := range []struct {
		answer stream.Answer
		want   int
	}{
		{stream.Answer{}, 4},
		{stream.Answer{Failed: []stream.ItemFailure{{Index: 1}}}, 3},
		{stream.Answer{Rewind: stream.Position{Kind: stream.PositionAt, Token: penstock.Token{Lo: 2}}}, 0},
		{stream.Answer{Rewind: stream.Position{Kind: stream.PositionResume, Token: penstock.Token{Lo: 2}}}, 2},
		{stream.Answer{Rewind: stream.Position{Kind: stream.PositionResume, Token: penstock.Token{Lo: 9}}}, 4},
	} {
		if got := settled(d, &c.answer); got != c.want {
			t.Errorf("%+v settles %d items, want %d", c.answer, got, c.want)
		}
	}
}

// Events go to nobody who does not know the secret of the run.
func TestStreamsAreForTheDriverOnly(t *testing.T) {
	t.Parallel()
	f := newFakeDriver(t)
	node, stop := start(t, farConfig(t, f))
	client := &http.Client{Transport: &http.Transport{}}
	for name, header := range map[string]http.Header{"no secret": nil, "a wrong one": {"Authorization": {"Bearer secre"}}} {
		for _, way := range []string{"up", "down"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, node.Streams+"?connection=x&way="+way, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header = header.Clone()
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("%s, %s: %s", name, way, resp.Status)
			}
		}
	}
	client.CloseIdleConnections()
	if err := stop(); err != nil {
		t.Error(err)
	}
}
