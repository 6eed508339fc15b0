package stream

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func ask(target string, list ...*Provider) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	debugHandler(func() []*Provider { return list }).ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

// Every form says who holds a queue, how far it is behind, and nothing of a
// name is markup.
func TestDebugHandlerShowsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "n", "<b>\"&\n")
		gate := make(chan struct{})
		var r recorder
		subscribe(t, s, "fast", r.handle)
		subscribe(t, s, "slow", func(context.Context, penstock.Batch[string]) error { <-gate; return nil })
		publish(t, s, "0")
		stop := running(p)
		time.Sleep(time.Second)
		publish(t, s, "1", "2", "3")
		time.Sleep(40 * time.Second)
		html := ask("/?refresh=5", p).Body.String()
		d := xml.NewDecoder(strings.NewReader(html))
		d.Strict, d.Entity = true, xml.HTMLEntity
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, html)
			}
		}
		for _, want := range []string{
			"1 thing needs you. ", "n/&lt;b&gt;&#34;&amp;", "▲ stuck", "handler is busy with 1 event for 41", `http-equiv="refresh"`, "<h2>shop</h2>", "t1:0:3:0",
		} {
			if !strings.Contains(html, want) {
				t.Errorf("the page does not say %q:\n%s", want, html)
			}
		}
		var v jsonView
		if text := ask("/?format=json", p).Body.Bytes(); json.Unmarshal(text, &v) != nil || strings.Contains(string(text), "null") {
			t.Errorf("%s", text)
		}
		if len(v.Providers) != 1 || len(v.Providers[0].Queues) != 2 || len(v.Providers[0].Busy) != 1 {
			t.Fatalf("%+v", v)
		}
		q := v.Providers[0].Queues[p.mapper.QueueFor(s.id).Number]
		if q.State != "stuck" || q.Severity != "warning" || q.Lag != 4 || q.LagSeconds < 40 || q.Unread != 0 || q.Newest != "t1:0:3:0" || q.Committed != "" ||
			q.Read != 4 || q.Delivered != 4 || q.RateSeconds == 0 {
			t.Errorf("%+v", q)
		}
		b := v.Providers[0].Busy[0]
		if b.Subscription != "slow" || b.State != "stuck" || b.Lag != 4 || b.LagSeconds < 40 || b.Newest != "t1:0:3:0" || b.Delivered != "" || b.InFlight != 1 || b.Settled != 0 {
			t.Errorf("%+v", b)
		}
		metrics := ask("/debug/metrics", p).Body.String()
		for _, want := range []string{
			"penstock_stream_providers 1\n", `penstock_stream_queue_lag_events{provider="shop",queue="` + q.Name + `"} 4` + "\n",
			`penstock_stream_queue_state{provider="shop",queue="` + q.Name + `",state="stuck"} 1` + "\n",
		} {
			if !strings.Contains(metrics, want) {
				t.Errorf("%s\nmisses %s", metrics, want)
			}
		}
		close(gate)
		time.Sleep(time.Second)
		if html := ask("/", p).Body.String(); !strings.Contains(html, "1 provider, 2 queues: nothing needs you.") {
			t.Errorf("at rest: %s", html)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if html := ask("/?provider=shop", p, p).Body.String(); !strings.Contains(html, "○ stopped") || !strings.Contains(html, "<h2>shop (2)</h2>") {
			t.Errorf("stopped: %s", html)
		}
		want(t, "no such provider", ask("/?provider=other", p).Code, 404)
		if html := ask("/").Body.String(); !strings.Contains(html, "No provider is open.") {
			t.Errorf("nothing: %s", html)
		}
	})
}

// The handler knows the providers that are open.
func TestDebugHandlerKnowsOpenProviders(t *testing.T) {
	g, err := NewGenerator(GeneratorConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p := openProvider(t, g)
	var known providers
	known.show(p)
	if got := known.list(); len(got) != 1 || got[0] != p {
		t.Errorf("open: %v", got)
	}
	known.hide(p.number)
	want(t, "closed", len(known.list()), 0)
	p.number = 0
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	DebugHandler().ServeHTTP(w, httptest.NewRequest("POST", "/", nil))
	want(t, "answer to POST", w.Code, 405)
}

// Every metric, every condition and every field of the JSON stands in
// docs/observability.md, and no metric that does not exist.
func TestObservabilityIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	_, text, _ := strings.Cut(string(data), "\n## Streams\n")
	for _, m := range append([]metric{{Metric: providersMetric}}, metrics...) {
		known[m.Name] = true
		if !strings.Contains(text, "| `"+m.Name+"` | "+m.Kind+" | "+m.Help+" |") {
			t.Errorf("docs/observability.md does not list %s %s: %s", m.Kind, m.Name, m.Help)
		}
	}
	for word := range strings.FieldsFuncSeq(string(data), func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		if strings.HasPrefix(word, "penstock_stream_") && !known[word] {
			t.Errorf("docs/observability.md lists %s, which does not exist", word)
		}
	}
	for c := Condition(0); c < conditions; c++ {
		if !strings.Contains(text, "| `"+c.String()+"` | "+c.Severity().String()+" | ") {
			t.Errorf("docs/observability.md does not list state %s, %s", c, c.Severity())
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[jsonView](), reflect.TypeFor[jsonProvider](), reflect.TypeFor[jsonQueue](), reflect.TypeFor[jsonBusy]()} {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || !strings.Contains(text, "| `"+name+"` | ") {
				t.Errorf("docs/observability.md does not list field %q of %s", name, typ.Name())
			}
		}
	}
}
