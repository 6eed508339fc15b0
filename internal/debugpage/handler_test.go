package debugpage

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// nasty is a name that is not meant well.
const nasty = "<script>\"'&\n\x01\xff"

type view struct{ only string }

func (v view) Verdict() (penstock.Severity, string) { return penstock.Warning, "see " + nasty }
func (v view) Time() time.Time                      { return time.Unix(1_000_000_000, 0) }
func (v view) JSON() any                            { return map[string]string{"only": v.only} }
func (v view) Text(format string) string            { return format + " of " + v.only }

func (v view) Body(m Markup) {
	m.Table("Things", "state", "name", "#n")
	m.Row(penstock.Alarm, "no_consumer")
	m.Element("td", "name", nasty)
	m.Numbers("1")
	m.Raw("</tr>")
	m.EndTable()
	m.Raw("<dl>")
	m.Pair("name", nasty)
	m.Raw("</dl>")
}

func (v view) Metrics(b *strings.Builder) {
	things := Metric{Name: "penstock_test_things", Kind: "gauge", Help: "Things."}
	begun := false
	things.Write(b, &begun, "", Truth(true))
	things.Write(b, &begun, Label("thing", nasty), append(Known(0), With("state", "idle", 0.5)))
}

func handler() *Handler {
	return &Handler{Title: "tests", One: "thing", All: "all things", None: "no such thing", Texts: []string{"dot"},
		Look: func(_ context.Context, q Request) View {
			if q.Only == "none" {
				return nil
			}
			return view{q.Only}
		}}
}

func TestHandlerChoosesTheFormat(t *testing.T) {
	for _, c := range []struct {
		method, target, accept string
		status                 int
		kind                   string
	}{
		{"GET", "/", "", 200, typeHTML},
		{"GET", "/", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", 200, typeHTML},
		{"GET", "/", "application/json, text/html;q=0.9", 200, typeJSON},
		{"GET", "/", "application/json;q=0.1, text/*", 200, typeHTML},
		{"GET", "/?format=json", "text/html", 200, typeJSON},
		{"GET", "/?format=html", "application/json", 200, typeHTML},
		{"GET", "/metrics", "application/json", 200, typePrometheus},
		{"GET", "/?format=prometheus", "", 200, typePrometheus},
		{"GET", "/?format=dot", "", 200, typeText},
		{"GET", "/?format=svg", "", 400, ""},
		{"HEAD", "/", "", 200, typeHTML},
		{"GET", "/?refresh=5", "", 200, typeHTML},
		{"GET", "/?refresh=0", "", 400, ""},
		{"GET", "/?refresh=x", "", 400, ""},
		{"GET", "/?thing=none", "", 404, ""},
		{"POST", "/", "", 405, ""},
	} {
		r := httptest.NewRequest(c.method, c.target, nil)
		if c.accept != "" {
			r.Header.Set("Accept", c.accept)
		}
		w := httptest.NewRecorder()
		handler().ServeHTTP(w, r)
		got := w.Result()
		if got.StatusCode != c.status || c.kind != "" && got.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s %s, Accept %q: %s, %s", c.method, c.target, c.accept, got.Status, got.Header.Get("Content-Type"))
		}
		if got.Header.Get("X-Content-Type-Options") != "nosniff" || got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: headers %v", c.method, c.target, got.Header)
		}
		if (c.kind == typeHTML) != strings.HasPrefix(got.Header.Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-") {
			t.Errorf("%s %s: policy %q", c.method, c.target, got.Header.Get("Content-Security-Policy"))
		}
		if refreshes := strings.Contains(w.Body.String(), `http-equiv="refresh"`); refreshes != (c.target == "/?refresh=5") {
			t.Errorf("%s refreshes: %t", c.target, refreshes)
		}
	}
}

func get(target string) string {
	w := httptest.NewRecorder()
	handler().ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w.Body.String()
}

func TestNothingFromOutsideIsMarkup(t *testing.T) {
	page := get("/?thing=" + "a%22%3Cb")
	for _, bad := range []string{"<script", "\x01", "\xff", `a"<b`} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, good := range []string{"&lt;script&gt;", "■ no consumer", "▲ warning", "2001-09-09 01:46:40.0 UTC", "all things", `href="?format=dot&amp;thing=a%22%3Cb"`} {
		if !strings.Contains(page, good) {
			t.Errorf("the page does not have %q", good)
		}
	}
	if got := get("/?format=dot&thing=x"); got != "dot of x" {
		t.Error(got)
	}
	var only map[string]string
	if err := json.Unmarshal([]byte(get("/?format=json&thing=x")), &only); err != nil || only["only"] != "x" {
		t.Errorf("%v, %v", only, err)
	}
}

func TestMetricsEscapeLabels(t *testing.T) {
	const want = "# HELP penstock_test_things Things.\n# TYPE penstock_test_things gauge\n" +
		"penstock_test_things 1\n" +
		`penstock_test_things{thing="<script>\"'&\n` + "\x01" + `\\xff",state="idle"} 0.5` + "\n"
	if got := get("/metrics"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
