package debugpage

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// Pause is how long a view waits for a second reading when the last one is too
// old to tell a rate.
const Pause = 500 * time.Millisecond

// Content types of the answers.
const (
	typeHTML       = "text/html; charset=utf-8"
	typeJSON       = "application/json"
	typePrometheus = "text/plain; version=0.0.4; charset=utf-8"
	typeText       = "text/plain; charset=utf-8"
)

// A Request is what somebody asks for.
type Request struct {
	Only    string // the one thing to show; "" for all
	Refresh int    // in seconds; 0 is never
	Metrics bool   // counters are wanted, no rates
}

// A View is a picture to be shown. Its methods are called by one goroutine.
type View interface {
	// Verdict says in one line whether somebody is needed, and how urgently.
	Verdict() (penstock.Severity, string)
	// Time is when the picture was taken.
	Time() time.Time
	// Body writes the page below its verdict.
	Body(m Markup)
	// JSON returns what encoding/json can encode without an error.
	JSON() any
	// Metrics writes the Prometheus text format.
	Metrics(b *strings.Builder)
	// Text returns the picture in one of the handler's Texts.
	Text(format string) string
}

// A Handler answers GET and HEAD with a picture.
type Handler struct {
	Title string   // of the page
	One   string   // the query parameter that chooses one thing; "" for none
	All   string   // the link from one thing to all
	None  string   // the answer when there is no such thing
	Texts []string // further formats, plain text: names for ?format=
	// Look takes the picture. Nil: there is no such thing.
	Look func(ctx context.Context, q Request) View
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "the debug page is read-only: use GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	kind, ok := h.format(r)
	if !ok {
		http.Error(w, "unknown format: use html, json or prometheus"+strings.Join(append([]string{""}, h.Texts...), ", "), http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	q := Request{Metrics: kind != typeHTML && kind != typeJSON}
	if h.One != "" {
		q.Only = query.Get(h.One)
	}
	if s := query.Get("refresh"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 3600 {
			http.Error(w, "refresh is a number of seconds from 1 to 3600", http.StatusBadRequest)
			return
		}
		q.Refresh = n
	}
	v := h.Look(r.Context(), q)
	if v == nil {
		http.Error(w, h.None, http.StatusNotFound)
		return
	}
	var b bytes.Buffer
	switch kind {
	case typeJSON:
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		_ = e.Encode(v.JSON()) // to memory, of types that can be encoded: it cannot fail
	case typePrometheus:
		var s strings.Builder
		v.Metrics(&s)
		b.WriteString(s.String())
	case typeHTML:
		head.Set("Content-Security-Policy", policy)
		head.Set("Referrer-Policy", "no-referrer")
		h.page(Markup{&b}, v, q)
	default:
		b.WriteString(v.Text(kind))
		kind = typeText
	}
	head.Set("Vary", "Accept")
	head.Set("Content-Type", kind)
	head.Set("Content-Length", strconv.Itoa(b.Len()))
	_, _ = io.Copy(w, &b) // a client that is gone needs no answer
}

// format returns the content type of the answer, or the name of a text.
func (h *Handler) format(r *http.Request) (kind string, ok bool) {
	switch name := r.URL.Query().Get("format"); name {
	case "html":
		return typeHTML, true
	case "json":
		return typeJSON, true
	case "prometheus":
		return typePrometheus, true
	case "":
	default:
		return name, slices.Contains(h.Texts, name)
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

// page writes the page around its body.
func (h *Handler) page(m Markup, v View, q Request) {
	severity, verdict := v.Verdict()
	m.Raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n" +
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n")
	if q.Refresh > 0 {
		m.Raw(`<meta http-equiv="refresh" content="`, strconv.Itoa(q.Refresh), "\"/>\n")
	}
	m.Raw("<title>")
	m.Text(severity.String() + ": " + h.Title)
	m.Raw("</title>\n<style>", style, "</style></head>\n<body>\n<header>")
	m.Element("h1", "", h.Title)
	m.Element("p", "", "as of "+v.Time().UTC().Format("2006-01-02 15:04:05.0 MST"))
	h.links(m, q)
	m.Raw("</header>\n<main>\n")
	m.Raw(`<p class="verdict `, severity.String(), `" role="status"><strong>`)
	m.Text(Badge(severity))
	m.Raw("</strong> ")
	m.Element("span", "", verdict)
	m.Raw("</p>\n")
	v.Body(m)
	m.Raw("</main></body></html>\n")
}

// links offers the other forms of what is shown.
func (h *Handler) links(m Markup, q Request) {
	link := func(text string, with ...string) {
		values := url.Values{}
		if q.Only != "" {
			values.Set(h.One, q.Only)
		}
		for i := 0; i < len(with); i += 2 {
			values.Set(with[i], with[i+1])
		}
		m.Raw(`<a href="?`)
		m.Text(values.Encode())
		m.Raw(`">`)
		m.Text(text)
		m.Raw("</a> ")
	}
	m.Raw(`<nav aria-label="formats">`)
	link("JSON", "format", "json")
	link("metrics", "format", "prometheus")
	for _, name := range h.Texts {
		link(name, "format", name)
	}
	if q.Refresh > 0 {
		link("stop refreshing every " + strconv.Itoa(q.Refresh) + " s")
	} else {
		link("refresh every 5 s", "refresh", "5")
	}
	if q.Only != "" {
		m.Raw(`<a href="?">`)
		m.Text(h.All)
		m.Raw("</a> ")
	}
	m.Raw("</nav>")
}

// Finite replaces what JSON and people have no number for.
func Finite(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}
