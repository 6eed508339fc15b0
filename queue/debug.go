package queue

import (
	"context"
	"net/http"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
)

// DebugHandler returns a handler that shows every open topic of the process:
// for each group how far it is behind in events and in seconds, its rates, how
// long it needs for the rest, what is in hand, retried, parked and dead, and in
// words why it is not moving. Groups that need somebody come first.
//
// It answers GET and HEAD with a page for people; with JSON when ?format=json is
// given or the Accept header prefers it; and with metrics in the Prometheus text
// format below a path that ends with /metrics, or with ?format=prometheus.
// ?topic=NAME shows one topic, ?refresh=N makes the page load itself again every N
// seconds. Fields and metrics are listed in docs/observability.md.
//
// Mount it under any prefix:
//
//	mux.Handle("/debug/penstock/", queue.DebugHandler())
//
// It changes nothing, loads nothing from elsewhere and needs no registration:
// [Open] adds a topic and Close takes it out. It has no authentication, and shows
// names of topics and groups and the text of errors: serve it on loopback, or
// behind your own. It may be called by any number of goroutines. Page and JSON
// take half a second when nobody has looked for a minute, because rates are told
// between two looks.
func DebugHandler() http.Handler { return debugHandler(&openTopics) }

func debugHandler(topics *registry) http.Handler {
	return &debugpage.Handler{
		Title: "penstock queues", One: "topic", All: "all topics", None: "no open topic has that name",
		Look: func(ctx context.Context, q debugpage.Request) debugpage.View {
			v := &debugView{only: q.Only}
			v.look(ctx, topics, !q.Metrics)
			if v.only != "" && len(v.topics) == 0 {
				return nil
			}
			return v
		},
	}
}

// debugView is what is shown.
type debugView struct {
	now    time.Time
	topics []Stats
	copies []int  // by topic: 0, or n for the n-th open one of its name, from the second on
	only   string // the topic that was asked for; "" for all
}

// Time implements debugpage.View.
func (v *debugView) Time() time.Time { return v.now }

// Text implements debugpage.View; there are no further formats.
func (v *debugView) Text(string) string { return "" }

// look takes the pictures. With rates it takes them twice when the first says
// that nobody has looked for long.
func (v *debugView) look(ctx context.Context, topics *registry, rates bool) {
	v.take(topics)
	if !rates || !v.stale() {
		return
	}
	timer := time.NewTimer(debugpage.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		v.take(topics)
	case <-ctx.Done():
	}
}

func (v *debugView) take(topics *registry) {
	v.now, v.topics, v.copies = time.Now(), nil, nil
	last, n := "", 0
	for _, s := range topics.stats() {
		if v.only != "" && s.Name != v.only {
			continue
		}
		if n++; len(v.topics) == 0 || s.Name != last {
			last, n = s.Name, 1
		}
		v.topics = append(v.topics, s)
		if n > 1 {
			v.copies = append(v.copies, n)
		} else {
			v.copies = append(v.copies, 0)
		}
	}
}

// stale reports whether a rate is not known, or of long ago.
func (v *debugView) stale() bool {
	for i := range v.topics {
		s := &v.topics[i]
		if debugpage.Rates(s.Rates).Stale() {
			return true
		}
		for j := range s.Groups {
			if debugpage.Rates(s.Groups[j].Rates).Stale() {
				return true
			}
		}
	}
	return false
}

// Verdict says in one line whether somebody is needed, and how urgently.
func (v *debugView) Verdict() (Severity, string) {
	worst, groups, needed := Fine, 0, 0
	say := ""
	note := func(s Severity, text string) {
		if s >= Warning {
			needed++
		}
		if s > worst {
			worst, say = s, text
		}
	}
	for i := range v.topics {
		t := &v.topics[i]
		for _, g := range t.bySeverity() {
			groups++
			note(g.Severity(), "group "+g.Name+" of topic "+t.Name+": "+g.Why)
		}
		if t.State != Full { // a group says that
			note(t.State.Severity(), "topic "+t.Name+": "+t.Why)
		}
	}
	switch {
	case len(v.topics) == 0:
		return Fine, "No topic is open."
	case worst < Warning:
		return worst, debugpage.Count(uint64(len(v.topics)), "topic", "topics") + ", " + debugpage.Count(uint64(groups), "group", "groups") + ": nothing needs you."
	case needed == 1:
		return worst, "1 thing needs you. " + debugpage.Upper(say) + "."
	}
	return worst, debugpage.Grouped(uint64(needed)) + " things need you. The worst: " + say + "."
}
