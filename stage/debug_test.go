package stage

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
)

// drawn is a graph with a partition, a fused helper and a name that is not meant
// well, whose sinks have not come back.
func drawn(t *testing.T) (g *Graph, release func()) {
	t.Helper()
	src, emit := Push[int]("in \"<b>\\\n#`&|")
	shards := NewGate("shards", func(_ context.Context, in []int, out *Output[int]) error { out.Forward(in); return nil }).
		Dispatch(Partition(2, func(v int) int { return v }))
	gone := make(chan struct{})
	g = NewGraph(quietLog())
	Connect(g, src, shards)
	for i, name := range []string{"even", "odd"} {
		double := Map(func(v int) int { return 2 * v })
		sink := NewSink(name, func(ctx context.Context, _ []int) error {
			select {
			case <-gone:
			case <-ctx.Done():
			}
			return nil
		})
		Connect(g, shards.Out().Partition(i), double, Max(4))
		Connect(g, double, sink)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := emit.Push(0, 2, 4, 6, 8, 10, 1); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return g, func() { close(gone) }
}

const drawnDOT = `digraph penstock {
	rankdir=LR;
	node [shape=box, style=rounded];
	n0 [label="in \"<b>\\ #` + "`" + `&|\nsource, idle"];
	n1 [label="shards\ngate, no demand, holds 1"];
	subgraph cluster_2 {
		style=dotted; label="one goroutine";
		n2 [label="map#3\ngate, moving"];
		n3 [label="even\nsink, moving"];
	}
	subgraph cluster_3 {
		style=dotted; label="one goroutine";
		n4 [label="map#5\ngate, idle"];
		n5 [label="odd\nsink, moving"];
	}
	n0 -> n1 [label="open 993, in flight 0"];
	n1 -> n2 [label="[0] open 0, in flight 4", color="#a8161b", penwidth=2.5];
	n2 -> n3 [label="open 999, in flight 1"];
	n1 -> n4 [label="[1] open 4, in flight 0"];
	n4 -> n5 [label="open 999, in flight 1"];
}
`

func TestGraphIsDrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release := drawn(t)
		defer g.Abort(nil)
		defer release()
		s := g.Status()
		if got := s.DOT(); got != drawnDOT {
			t.Errorf("%s\nwant %s", got, drawnDOT)
		}
		const want = "flowchart LR\n" +
			"\tn0[\"in #quot;#lt;b#gt;\\ #35;#96;#amp;|<br/>source, idle\"]\n"
		got := s.Mermaid()
		for _, want := range []string{want, "\tn1 ==>|\"[0] open 0, in flight 4\"| n2\n", "\tlinkStyle 1 stroke:#a8161b\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s\ndoes not contain %s", got, want)
			}
		}
	})
}

func ask(g *Graph, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	g.DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

// TestDebugHandlerShowsTheGraph: every form says which subscription holds the
// graph up, and nothing of a name is markup.
func TestDebugHandlerShowsTheGraph(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, release := drawn(t)
		defer g.Abort(nil)
		defer release()
		time.Sleep(40 * time.Second)
		html := ask(g, "/?refresh=5").Body.String()
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
			"2 things need you. The worst: sink even: in its callback for 41s", "in &#34;&lt;b&gt;", "▲ stuck", "holds the graph up",
			"shards[0]", "waits for even in the same goroutine, in its callback for 41s", "asks for no more; even has been in its callback for 41s", "held up by even, in its callback for 41s", `href="?format=mermaid"`, `http-equiv="refresh"`,
		} {
			if !strings.Contains(html, want) {
				t.Errorf("the page does not say %q", want)
			}
		}
		var v jsonView
		if text := ask(g, "/?format=json").Body.Bytes(); json.Unmarshal(text, &v) != nil || strings.Contains(string(text), "null") {
			t.Errorf("%s", text)
		}
		if v.Schema != 1 || v.Severity != "warning" || v.State != "moving" || len(v.Stages) != 6 || len(v.Edges) != 5 ||
			v.Stages[3].State != "stuck" || v.Stages[3].CallbackSeconds < 40 || v.Stages[0].RateSeconds == 0 || !v.Edges[1].Constraint || v.Edges[1].InFlight != 4 || v.Edges[2].Mode != "permanent" {
			t.Errorf("%+v", v)
		}
		metrics := ask(g, "/debug/metrics").Body.String()
		for _, want := range []string{
			"penstock_stage_stages 6\n", `penstock_stage_callback_seconds{stage="odd"} 40.5` + "\n", `penstock_stage_buffered_events{stage="shards"} 1` + "\n",
			`penstock_stage_edge_in_flight_events{from="shards",to="map#3",partition="0"} 4` + "\n", `penstock_stage_state{stage="even",state="stuck"} 1` + "\n",
			`penstock_stage_edge_constraint{from="shards",to="map#3",partition="0"} 1` + "\n", `stage="in \"<b>\\\n#` + "`" + `&|"`,
		} {
			if !strings.Contains(metrics, want) {
				t.Errorf("%s\nmisses %s", metrics, want)
			}
		}
		for _, format := range []string{"dot", "mermaid"} {
			if w := ask(g, "/?format="+format); w.Code != 200 || !strings.Contains(w.Body.String(), "even") || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
				t.Errorf("%s: %d, %v", format, w.Code, w.Header())
			}
		}
		if w := ask(g, "/?format=svg"); w.Code != 400 {
			t.Errorf("svg: %d", w.Code)
		}
	})
}

func TestDebugHandlerBeforeTheStartAndAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := Pull("in", func(context.Context, int, *Output[int]) error { return Done })
		sink := NewSink("out", func(context.Context, []int) error { return nil })
		g := NewGraph(quietLog())
		Connect(g, src, sink)
		h := g.DebugHandler()
		page := func() string {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			return w.Body.String()
		}
		begin := time.Now()
		if html := page(); !strings.Contains(html, "2 stages, ready: nothing needs you.") {
			t.Error(html)
		}
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if html := page(); !strings.Contains(html, "2 stages, ended: nothing needs you.") {
			t.Error(html)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v, though there are no rates to tell", took)
		}
	})
}

// TestObservabilityIsDocumented: every metric, every state and every field of
// the JSON stands in docs/observability.md, and no metric that does not exist.
func TestObservabilityIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	known := map[string]bool{}
	for _, m := range append([]metric{{Metric: stagesMetric}}, metrics...) {
		known[m.Name] = true
		if !strings.Contains(text, "| `"+m.Name+"` | "+m.Kind+" | ") {
			t.Errorf("docs/observability.md does not list %s %s", m.Kind, m.Name)
		}
	}
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		if strings.HasPrefix(word, "penstock_stage_") && !known[word] {
			t.Errorf("docs/observability.md lists %s, which does not exist", word)
		}
	}
	for s := State(0); s < states; s++ {
		if !strings.Contains(text, "| `"+s.String()+"` | "+s.Severity().String()+" | ") {
			t.Errorf("docs/observability.md does not list state %s, %s", s, s.Severity())
		}
	}
	_, graphs, _ := strings.Cut(text, "## Graphs")
	for _, typ := range []reflect.Type{reflect.TypeFor[jsonView](), reflect.TypeFor[jsonStage](), reflect.TypeFor[jsonEdge]()} {
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || !strings.Contains(graphs, "| `"+name+"` | ") {
				t.Errorf("docs/observability.md does not list field %q of %s", name, typ.Name())
			}
		}
	}
}
