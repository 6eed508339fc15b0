package queue

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
)

// debugPause is how long the page waits for a second reading when the last one
// is too old to tell a rate.
const debugPause = 500 * time.Millisecond

// Content types of the handler's answers.
const (
	typeHTML       = "text/html; charset=utf-8"
	typeJSON       = "application/json"
	typePrometheus = "text/plain; version=0.0.4; charset=utf-8"
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
func DebugHandler() http.Handler { return debugHandler{&openTopics} }

type debugHandler struct{ topics *registry }

// debugView is what is shown.
type debugView struct {
	now     time.Time
	topics  []Stats
	copies  []int  // by topic: 0, or n for the n-th open one of its name, from the second on
	only    string // the topic that was asked for; "" for all
	refresh int    // in seconds; 0 is never
}

func (h debugHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "the debug page is read-only: use GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	kind, ok := debugFormat(r)
	if !ok {
		http.Error(w, "unknown format: use html, json or prometheus", http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	v := debugView{only: query.Get("topic")}
	if s := query.Get("refresh"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 3600 {
			http.Error(w, "refresh is a number of seconds from 1 to 3600", http.StatusBadRequest)
			return
		}
		v.refresh = n
	}
	v.look(r.Context(), h.topics, kind != typePrometheus)
	if v.only != "" && len(v.topics) == 0 {
		http.Error(w, "no open topic has that name", http.StatusNotFound)
		return
	}
	var b bytes.Buffer
	switch kind {
	case typeJSON:
		v.writeJSON(&b)
	case typePrometheus:
		v.writeMetrics(&b)
	default:
		head.Set("Content-Security-Policy", debugPolicy)
		head.Set("Referrer-Policy", "no-referrer")
		v.writeHTML(&b)
	}
	head.Set("Vary", "Accept")
	head.Set("Content-Type", kind)
	head.Set("Content-Length", strconv.Itoa(b.Len()))
	_, _ = io.Copy(w, &b) // a client that is gone needs no answer
}

// look takes the pictures. With rates it takes them twice when the first says
// that nobody has looked for long.
func (v *debugView) look(ctx context.Context, topics *registry, rates bool) {
	v.take(topics)
	if !rates || !v.stale() {
		return
	}
	timer := time.NewTimer(debugPause)
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
		if s.Over == 0 || s.Over > rateStale {
			return true
		}
		for j := range s.Groups {
			if over := s.Groups[j].Over; over == 0 || over > rateStale {
				return true
			}
		}
	}
	return false
}

// debugFormat returns the content type of the answer.
func debugFormat(r *http.Request) (kind string, ok bool) {
	switch r.URL.Query().Get("format") {
	case "html":
		return typeHTML, true
	case "json":
		return typeJSON, true
	case "prometheus":
		return typePrometheus, true
	case "":
	default:
		return "", false
	}
	if !strings.HasSuffix(r.URL.Path, "/") && path.Base(r.URL.Path) == "metrics" {
		return typePrometheus, true
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if accepted(accept, "application", "json") > accepted(accept, "text", "html") {
		return typeJSON, true
	}
	return typeHTML, true
}

// accepted returns the weight that an Accept header gives a media type: that of
// the most specific range that holds it, 0 when none does.
func accepted(accept, major, minor string) float64 {
	best, weight := 0, 0.0
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		name = strings.ToLower(strings.TrimSpace(name))
		exact := 0
		switch name {
		case major + "/" + minor:
			exact = 3
		case major + "/*":
			exact = 2
		case "*/*":
			exact = 1
		}
		if exact <= best {
			continue
		}
		best, weight = exact, 1
		for p := range strings.SplitSeq(params, ";") {
			if key, value, _ := strings.Cut(strings.TrimSpace(p), "="); strings.EqualFold(key, "q") {
				if q, err := strconv.ParseFloat(value, 64); err == nil && q >= 0 && q <= 1 {
					weight = q
				}
			}
		}
	}
	return weight
}

// verdict says in one line whether somebody is needed, and how urgently.
func (v *debugView) verdict() (Severity, string) {
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
		return worst, count(uint64(len(v.topics)), "topic", "topics") + ", " + count(uint64(groups), "group", "groups") + ": nothing needs you."
	case needed == 1:
		return worst, "1 thing needs you. " + upper(say) + "."
	}
	return worst, grouped(uint64(needed)) + " things need you. The worst: " + say + "."
}

func upper(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
