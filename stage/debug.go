package stage

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// DebugHandler returns a handler that shows the graph: for each stage whether it
// moves and in words why not, what it holds, has dropped and how long its
// callback has been running; for each subscription what was asked for, what is
// in flight, and which one holds the graph up. It is the sister of
// queue.DebugHandler and answers like it: GET and HEAD, a page for people, JSON
// with ?format=json or by the Accept header, Prometheus metrics below a path
// that ends with /metrics, and drawings with ?format=dot and ?format=mermaid.
// ?refresh=N makes the page load itself again every N seconds. Fields and
// metrics are listed in docs/observability.md.
//
//	mux.Handle("/debug/pipeline/", g.DebugHandler())
//
// It changes nothing, runs nothing between two requests, and may be mounted
// before the graph starts and stay after its end. It has no authentication, and
// shows names of stages and the text of errors: serve it on loopback, or behind
// your own. Page and JSON take half a second when nobody has looked for a
// minute, because rates are told between two looks.
func (g *Graph) DebugHandler() http.Handler {
	return &debugpage.Handler{
		Title: "penstock graph", Texts: []string{"dot", "mermaid"},
		Look: func(ctx context.Context, q debugpage.Request) debugpage.View { return g.debugView(ctx, q) },
	}
}

// debugView is a picture that is shown.
type debugView struct{ Status }

func (g *Graph) debugView(ctx context.Context, q debugpage.Request) *debugView {
	v := &debugView{g.Status()}
	if q.Metrics || !v.stale() {
		return v
	}
	timer := time.NewTimer(debugpage.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		v.Status = g.Status()
	case <-ctx.Done():
	}
	return v
}

// stale reports whether rates are not known, or of long ago, and would say
// something.
func (v *debugView) stale() bool {
	if v.State != Moving && v.State != Draining {
		return false
	}
	for i := range v.Stages {
		if s := &v.Stages[i]; !s.Ended && (debugpage.Rates{Over: s.Over}).Stale() {
			return true
		}
	}
	return false
}

// Time implements debugpage.View.
func (v *debugView) Time() time.Time { return v.Status.Time }

// Verdict implements debugpage.View.
func (v *debugView) Verdict() (penstock.Severity, string) {
	worst, needed, say := v.State.Severity(), 0, ""
	for i := range v.Stages {
		s := &v.Stages[i]
		severity := s.State.Severity()
		if severity >= penstock.Warning {
			needed++
		}
		if severity > worst || severity == worst && say == "" && severity >= penstock.Warning {
			worst, say = severity, s.Kind.String()+" "+s.Name+": "+s.Why
		}
	}
	switch {
	case worst < penstock.Warning:
		return worst, debugpage.Count(uint64(len(v.Stages)), "stage", "stages") + ", " + debugpage.Spoken(v.State.String()) + ": nothing needs you."
	case needed == 0:
		return worst, "The graph has failed."
	case needed == 1:
		return worst, "1 thing needs you. " + debugpage.Upper(say) + "."
	}
	return worst, debugpage.Grouped(uint64(needed)) + " things need you. The worst: " + say + "."
}

// Text implements debugpage.View.
func (v *debugView) Text(format string) string {
	if format == "dot" {
		return v.DOT()
	}
	return v.Mermaid()
}

// Bounds of the page; the JSON has all.
const maxRowsOnPage = 1000

// Body implements debugpage.View.
func (v *debugView) Body(m debugpage.Markup) {
	m.Raw("<dl>")
	m.Pair("graph", debugpage.Spoken(v.State.String()))
	m.Pair("what holds it up", v.Constraint)
	m.Raw("</dl>\n")
	v.writeStages(m)
	v.writeEdges(m)
}

func (v *debugView) writeStages(m debugpage.Markup) {
	m.Table("Stages, in the direction in which they were connected", "state", "stage", "kind", "why",
		"#in/s", "#out/s", "#in", "#out", "#holds", "#dropped", "#failed", "#undelivered", "#in user code now", "#and before", "#goroutine")
	for i := range v.Stages {
		if i == maxRowsOnPage {
			m.Raw(`<tr><td colspan="15">`)
			m.Text(debugpage.Grouped(uint64(len(v.Stages)-i)) + " more stages; the JSON has them.")
			m.Raw("</td></tr>\n")
			break
		}
		s := &v.Stages[i]
		m.Row(s.State.Severity(), s.State.String())
		m.Element("td", "name", s.Name)
		m.Element("td", "", s.Kind.String())
		m.Element("td", "why", s.Why)
		now := "–"
		if !s.Since.IsZero() {
			now = debugpage.Span(max(0, v.Status.Time.Sub(s.Since)))
		}
		goroutine := "–"
		if s.Executor >= 0 && !s.Ended {
			goroutine = strconv.Itoa(s.Executor)
		}
		m.Numbers(s.rate(s.InPerSecond), s.rate(s.OutPerSecond), grouped(s.entered()), grouped(s.left()), grouped(s.Buffered), grouped(s.Discarded),
			grouped(s.Failed), grouped(s.Undelivered), now, debugpage.Span(s.InUserCode), goroutine)
		m.Raw("</tr>\n")
	}
	m.EndTable()
}

func (v *debugView) writeEdges(m debugpage.Markup) {
	m.Table("Subscriptions", "", "from", "to", "#max", "#min", "#asked", "#sent", "#processed", "#open", "#in flight")
	for i := range v.Edges {
		if i == maxRowsOnPage {
			m.Raw(`<tr><td colspan="10">`)
			m.Text(debugpage.Grouped(uint64(len(v.Edges)-i)) + " more subscriptions; the JSON has them.")
			m.Raw("</td></tr>\n")
			break
		}
		e := &v.Edges[i]
		state := ""
		switch {
		case e.Constraint:
			state = "holds the graph up"
		case e.Cancelled:
			state = "cancelled"
		}
		from := e.From
		if e.Partition >= 0 {
			from += "[" + strconv.Itoa(e.Partition) + "]"
		}
		m.Raw("<tr>")
		m.Element("td", "state", state)
		m.Element("td", "name", from)
		m.Element("td", "name", e.To)
		m.Numbers(grouped(int64(e.Max)), grouped(int64(e.Min)), grouped(e.Asked), grouped(e.Sent), grouped(e.Processed), grouped(e.Open), grouped(e.InFlight))
		m.Raw("</tr>\n")
	}
	m.EndTable()
}

// entered returns what came into a stage, and left what went out of it, or was
// processed by a sink.
func (s *StageStatus) entered() int64 {
	if s.Kind == KindSource {
		return s.Emitted + s.Pushed
	}
	return s.In
}

func (s *StageStatus) left() int64 {
	if s.Kind == KindSink {
		return s.In - s.Held
	}
	return s.Dispatched
}

func (s *StageStatus) rate(value float64) string {
	if s.Over == 0 {
		return "?"
	}
	return strings.TrimSuffix(debugpage.Rate(value), "/s")
}

func grouped(n int64) string { return debugpage.Grouped(uint64(max(0, n))) }
