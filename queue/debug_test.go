package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// debugPage is what the tests read of the JSON.
type debugPage struct {
	Schema   int
	Time     time.Time
	Severity string
	Verdict  string
	Topics   []debugTopic
}

type debugTopic struct {
	Name, State, Severity, Why, Storage string
	Copy                                int
	Produced, Refused, Retained         uint64
	Capacity                            int
	InPerSecond                         float64 `json:"in_per_second"`
	OutPerSecond                        float64 `json:"out_per_second"`
	RateSeconds                         float64 `json:"rate_seconds"`
	Partitions                          []struct{ Earliest, End, Retained uint64 }
	Groups                              []debugGroup
}

type debugGroup struct {
	Name, State, Severity, Why, Use string
	Open, Running                   bool
	Lag, Committed                  uint64
	LagSeconds                      float64  `json:"lag_seconds"`
	OutPerSecond                    float64  `json:"out_per_second"`
	DrainSeconds                    *float64 `json:"drain_seconds"`
	HoldsBack                       bool     `json:"holds_back"`
	InHand                          int      `json:"in_hand"`
	Failed                          uint64
	DeadLettered                    uint64 `json:"dead_lettered"`
	Batches                         map[string]uint64
	HandlerSeconds                  float64 `json:"handler_seconds"`
	Calls                           []struct {
		Partition, Offset, Events int
		Seconds                   float64
	}
	LastError *struct {
		Kind, Text string
		Offset     int
	} `json:"last_error"`
	Partitions []struct {
		Committed, End, Lag uint64
		LagSeconds          float64 `json:"lag_seconds"`
	}
}

// ask asks the handler as a client would, with the path below the mount.
func ask(t testing.TB, target string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	queue.DebugHandler().ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", r.Status, b, err)
	}
	return string(b)
}

// page reads the JSON of one topic: other tests have topics open too.
func page(t testing.TB, topic string) debugPage {
	t.Helper()
	var p debugPage
	text := body(t, ask(t, "/?format=json&topic="+topic))
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.ReplaceAll(strings.ReplaceAll(text, `"drain_seconds": null`, ""), `"last_error": null`, ""), "null") {
		t.Errorf("a list is null: %s", text)
	}
	return p
}

func TestDebugPageNamesTheSlowGroup(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const name = "slow-group-page"
		topic := open(t, s, queue.Config[int]{Name: name, Partitions: 4, Capacity: 4000})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		for i := range 8 {
			g := group(t, topic, fmt.Sprint("group-", i), queue.GroupConfig{Consumers: 2, BatchMax: 50})
			each := 200 * time.Microsecond
			if i == 5 {
				each *= 100
			}
			wg.Go(func() {
				if err := g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
					time.Sleep(time.Duration(b.Len()) * each)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() { // 1,000 a second, until the topic is full
			for range 1000 {
				if topic.Produce(ctx, seq(0, 10)...) != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		time.Sleep(3 * time.Second)
		p := page(t, name)
		if len(p.Topics) != 1 || len(p.Topics[0].Groups) != 8 {
			t.Fatalf("%+v", p)
		}
		first, second := p.Topics[0].Groups[0], p.Topics[0].Groups[1]
		if first.Name != "group-5" || first.State != "behind" || !strings.Contains(first.Why, "falls behind: takes ") ||
			!strings.Contains(first.Why, "its handler takes") || first.DrainSeconds != nil || first.LagSeconds < 2 {
			t.Errorf("the first group is %+v", first)
		}
		if second.Severity != "fine" || second.LagSeconds > 1 || !strings.Contains(second.Why, "keeps up") {
			t.Errorf("the second group is %+v", second)
		}
		if p.Severity != "warning" || !strings.Contains(p.Verdict, "1 thing needs you. Group group-5 of topic "+name) {
			t.Errorf("%s: %s", p.Severity, p.Verdict)
		}
		time.Sleep(5 * time.Second) // full
		p = page(t, name)
		if g := p.Topics[0].Groups[0]; g.Name != "group-5" || !g.HoldsBack || g.Severity != "alarm" || p.Severity != "alarm" ||
			!strings.Contains(g.Why, "the topic is full because of this group; 1 request of a producer waits") {
			t.Errorf("when the topic is full the first group is %+v", g)
		}
		html := body(t, ask(t, "/debug/?topic="+name))
		if verdict := html[:strings.Index(html, "<table")]; !strings.Contains(verdict, "group-5") {
			t.Errorf("the page begins with %s", verdict)
		}
	})
}

func TestDebugNumbersAreThoseOfTheTopic(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const name = "numbers-page"
		topic := open(t, s, queue.Config[int]{Name: name, Partitions: 2, Capacity: 20, WhenFull: queue.Fail})
		g := group(t, topic, "reader", queue.GroupConfig{})
		produce(t, topic, seq(0, 10)...)
		time.Sleep(10 * time.Second)
		produce(t, topic, seq(10, 20)...)
		if err := topic.Produce(t.Context(), 20, 21, 22); !errors.Is(err, penstock.ErrFull) {
			t.Fatal(err)
		}
		pull(t, g.Consumer(0), 5)
		commit(t, g.Consumer(0))
		p := page(t, name)
		top := p.Topics[0]
		if p.Schema != 1 || top.Produced != 20 || top.Refused != 3 || top.Retained != 15 || top.Capacity != 20 || len(top.Partitions) != 2 ||
			top.Partitions[0].End != 10 || top.InPerSecond != 2 || top.OutPerSecond != 0.5 || top.RateSeconds != 10 {
			t.Errorf("%+v", top)
		}
		r := top.Groups[0]
		if !r.Open || r.Use != "pull consumers" || r.Lag != 15 || r.Committed != 5 || r.LagSeconds != 10 || r.OutPerSecond != 0.5 ||
			r.Partitions[0].Lag != 5 || r.Partitions[0].LagSeconds != 0 || r.Partitions[1].LagSeconds != 10 {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Minute)
		if r = page(t, name).Topics[0].Groups[0]; r.State != "stalled" || !strings.Contains(r.Why, "by its pull consumers") || r.LagSeconds < 60 {
			t.Errorf("after a minute without a commit: %+v", r)
		}
		if err := topic.Close(); err != nil {
			t.Fatal(err)
		}
		if resp := ask(t, "/?topic="+name); resp.StatusCode != http.StatusNotFound {
			t.Errorf("a closed topic is shown: %s", resp.Status)
		}
		if st := topic.Stats(); !st.Closed || st.State != queue.Closed || st.Produced != 20 {
			t.Errorf("after Close: %+v", st)
		}
		if st := g.Stats(); st.State != queue.Closed || st.Lag != 15 {
			t.Errorf("a group after Close: %+v", st)
		}
	})
}

func TestDebugShowsWhereAHandlerHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const name = "hanging-page"
		topic := open(t, s, queue.Config[int]{Name: name, Partitions: 3})
		g := group(t, topic, "emails", queue.GroupConfig{BatchMax: 10})
		for range 30 {
			produce(t, topic, seq(0, 30)...)
		}
		release := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		partition, at := -1, penstock.Offset(0)
		calls := 0
		go func() {
			ran <- g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
				if calls++; calls == 17 { // others ran in the same millisecond
					partition, at = b.Partition(), b.Offset(0)
					<-release
				}
				return nil
			})
		}()
		time.Sleep(3*time.Minute + 1500*time.Millisecond) // the first look takes half a second more
		synctest.Wait()
		e := page(t, name).Topics[0].Groups[0]
		want := fmt.Sprintf("handler has been running for 3m2s on partition %d offset %d", partition, at)
		if e.State != "stuck" || !strings.Contains(e.Why, want) || e.InHand != 10 || len(e.Calls) != 1 || e.Calls[0].Seconds < 181 {
			t.Errorf("want %q, got %+v", want, e)
		}
		close(release)
		synctest.Wait()
		if e = page(t, name).Topics[0].Groups[0]; e.Lag != 0 && s.name == "memory" || e.HandlerSeconds < 181 || e.HandlerSeconds > 183 || len(e.Calls) != 0 {
			t.Errorf("afterwards: %+v", e)
		}
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

func TestDebugShowsFailuresAndWhatWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const name = "failing-page"
		topic := open(t, s, queue.Config[int]{Name: name})
		g, err := topic.Group("billing", queue.GroupConfig{Retry: settle.Policy{
			Attempts: 2, Backoff: settle.Backoff{Min: 500 * time.Millisecond, Max: 500 * time.Millisecond},
		}}, queue.DeadLetter(func(context.Context, ...penstock.Event[int]) error { return nil }))
		if err != nil {
			t.Fatal(err)
		}
		produce(t, topic, 0, 1, 2)
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() {
			ran <- g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
				for i, v := range b.Values() {
					if v == 1 {
						b.Fail(i, errors.New("no such <customer>"))
					}
				}
				return nil
			})
		}()
		synctest.Wait()
		e := g.Stats()
		if e.State != queue.Retrying || !strings.Contains(e.Why, "offset 1 waits for attempt 2 of 2: no such <customer>, due in ") {
			t.Errorf("%s: %s", e.State, e.Why)
		}
		if b := page(t, name).Topics[0].Groups[0]; b.LastError == nil || b.LastError.Kind != queue.KindHandler || b.LastError.Offset != 1 ||
			b.LastError.Text != "no such <customer>" {
			t.Errorf("%+v", b)
		}
		time.Sleep(10 * time.Second)
		b := page(t, name).Topics[0].Groups[0]
		if b.Failed != 2 || b.DeadLettered != 1 || b.Lag != 0 || b.Batches["retry"] != 1 || b.Batches["linger"] != 1 {
			t.Errorf("%+v", b)
		}
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		if e := g.Stats(); e.State != queue.Idle {
			t.Errorf("after Run: %s: %s", e.State, e.Why)
		}
		produce(t, topic, 3)
		if e := g.Stats(); e.State != queue.NoConsumer || !strings.Contains(e.Why, "no consumer is running; 1 event waits") {
			t.Errorf("after Run and another event: %s: %s", e.State, e.Why)
		}
	})
}

func TestStoredGroupThatIsNotOpenIsShown(t *testing.T) {
	const name = "stored-page"
	topic := open(t, storage{"file"}, queue.Config[int]{Name: name, Partitions: 2, Capacity: 4, WhenFull: queue.Fail})
	old := group(t, topic, "old", queue.GroupConfig{})
	group(t, topic, "new", queue.GroupConfig{})
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	produce(t, topic, 0, 1, 2, 3)
	p := page(t, name).Topics[0]
	if len(p.Groups) != 2 || p.State != "full" {
		t.Fatalf("%+v", p)
	}
	i := slices.IndexFunc(p.Groups, func(g debugGroup) bool { return g.Name == "old" })
	if g := p.Groups[i]; g.Open || g.Lag != 4 || g.State != "no_consumer" || !strings.Contains(g.Why, "the group is not open; its position is stored on disk; 4 events wait") {
		t.Errorf("%+v", g)
	}
	if st := topic.Stats(); len(st.Groups) != 1 || len(st.Stored) != 1 {
		t.Errorf("%d open and %d stored groups", len(st.Groups), len(st.Stored))
	}
}

// names that are not meant well: markup, quotes, a line break, a label's end,
// bytes that are not UTF-8.
var badNames = []string{
	`<script>alert(1)</script>`, `"onmouseover="alert(1)`, `a'b&amp;"c`, "line\nbreak", `x",topic="y"} 1`, `back\slash`, `\xff`, "\xff", "\xff\xfe", "</style></title><b>", "ünïcödé 事件", "\x00\x1b[31m\u0085\uFFFE",
}

func TestNamesAreEscaped(t *testing.T) {
	for _, name := range badNames {
		topic := open(t, storage{"memory"}, queue.Config[int]{Name: "page-" + name})
		group(t, topic, "group-"+name, queue.GroupConfig{})
		produce(t, topic, 1)
	}
	html := body(t, ask(t, "/"))
	for _, raw := range []string{"<script", `"onmouse`, "<b>", "\xff", "\x00", "\x1b", "page-line\nbreak\""} {
		if strings.Contains(html, raw) {
			t.Errorf("the page holds %q", raw)
		}
	}
	wellFormed(t, html)
	for _, name := range badNames[:3] {
		if !strings.Contains(html, htmlText("page-"+name)) {
			t.Errorf("the page does not name %q", name)
		}
	}
	labels := map[string]bool{}
	for _, s := range exposition(t, body(t, ask(t, "/metrics"))) {
		labels[s.labels["group"]] = true
	}
	for _, name := range badNames {
		if utf8.ValidString(name) && !strings.Contains(name, `\x`) && !labels["group-"+name] {
			t.Errorf("the metrics do not name %q", name)
		}
	}
	if !labels[`group-\x5cxff`] {
		t.Errorf("the metrics do not tell the text %q from the byte", `\xff`)
	}
	if !labels[`group-\xff\xfe`] {
		t.Error("the metrics do not name the group whose name is not UTF-8")
	}
	var p debugPage
	if err := json.Unmarshal([]byte(body(t, ask(t, "/?format=json"))), &p); err != nil {
		t.Error(err)
	}
}

func htmlText(s string) string {
	var b bytes.Buffer
	for _, r := range s {
		switch r {
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '&':
			b.WriteString("&amp;")
		case '"':
			b.WriteString("&#34;")
		case '\'':
			b.WriteString("&#39;")
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// wellFormed checks the nesting of tags and the quoting of attributes, as
// strictly as XML: the page is both.
func wellFormed(t testing.TB, html string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(strings.Replace(html, "<!DOCTYPE html>", "", 1)))
	d.Strict, d.Entity = true, map[string]string{}
	ids := map[string]bool{}
	var links []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			at := d.InputOffset()
			t.Errorf("the page is not well-formed: %v\n...%s", err, html[max(0, at-200):min(int64(len(html)), at+50)])
			return
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, a := range e.Attr {
			switch {
			case a.Name.Local == "id":
				if ids[a.Value] {
					t.Errorf("id %s is there twice", a.Value)
				}
				ids[a.Value] = true
			case a.Name.Local == "href" && strings.HasPrefix(a.Value, "#"):
				links = append(links, a.Value[1:])
			case strings.HasPrefix(a.Name.Local, "on"), a.Name.Local == "src", a.Name.Local == "style":
				t.Errorf("%s has attribute %s", e.Name.Local, a.Name.Local)
			case a.Name.Local == "href" && !strings.HasPrefix(a.Value, "?"):
				t.Errorf("link to %q", a.Value)
			}
		}
		if slices.Contains([]string{"script", "img", "link", "iframe", "form"}, e.Name.Local) {
			t.Errorf("the page has a %s", e.Name.Local)
		}
	}
	for _, l := range links {
		if !ids[l] {
			t.Errorf("a link leads to #%s, which is not there", l)
		}
	}
}

// sample is a line of the text format.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// exposition parses the Prometheus text format, version 0.0.4, and fails the
// test where it is not valid.
func exposition(t testing.TB, text string) []sample {
	t.Helper()
	if !strings.HasSuffix(text, "\n") {
		t.Error("the last line does not end")
	}
	var all []sample
	help, kind, ended := map[string]bool{}, map[string]string{}, map[string]bool{}
	series := map[string]bool{}
	family := ""
	begin := func(name string) {
		if name != family {
			ended[family] = true
			family = name
		}
		if ended[name] {
			t.Errorf("the lines of %s are not together", name)
		}
	}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if rest, ok := strings.CutPrefix(line, "# "); ok {
			what, rest, _ := strings.Cut(rest, " ")
			name, value, _ := strings.Cut(rest, " ")
			begin(name)
			switch {
			case what == "HELP" && !help[name] && value != "":
				help[name] = true
			case what == "TYPE" && kind[name] == "" && (value == "gauge" || value == "counter"):
				kind[name] = value
			default:
				t.Errorf("line %d: %s", i+1, line)
			}
			continue
		}
		s, err := parseSample(line)
		if err != nil {
			t.Errorf("line %d: %v: %s", i+1, err, line)
			continue
		}
		begin(s.name)
		if !help[s.name] || kind[s.name] == "" {
			t.Errorf("line %d: %s has no HELP or no TYPE before it", i+1, s.name)
		}
		if (kind[s.name] == "counter") != strings.HasSuffix(s.name, "_total") {
			t.Errorf("%s is a %s", s.name, kind[s.name])
		}
		if !strings.HasPrefix(s.name, "penstock_queue_") || math.IsNaN(s.value) || s.value < 0 {
			t.Errorf("line %d: %s", i+1, line)
		}
		key := fmt.Sprint(s.name, s.labels)
		if series[key] {
			t.Errorf("line %d: %s is there twice", i+1, key)
		}
		series[key] = true
		all = append(all, s)
	}
	return all
}

func parseSample(line string) (sample, error) {
	s := sample{labels: map[string]string{}}
	i := strings.IndexAny(line, "{ ")
	if i < 0 {
		return s, errors.New("no value")
	}
	s.name = line[:i]
	rest := line[i:]
	if !metricName.MatchString(s.name) {
		return s, errors.New("bad name")
	}
	if rest[0] == '{' {
		rest = rest[1:]
		for !strings.HasPrefix(rest, "}") {
			name, after, ok := strings.Cut(rest, `="`)
			if !ok || !labelName.MatchString(name) {
				return s, fmt.Errorf("bad label %q", name)
			}
			value, after, err := labelValue(after)
			if err != nil {
				return s, err
			}
			if _, twice := s.labels[name]; twice {
				return s, fmt.Errorf("label %s twice", name)
			}
			s.labels[name] = value
			rest = strings.TrimPrefix(after, ",")
		}
		rest = rest[1:]
	}
	var err error
	s.value, err = strconv.ParseFloat(strings.TrimPrefix(rest, " "), 64)
	return s, err
}

func labelValue(s string) (value, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			if !utf8.ValidString(b.String()) {
				return "", "", errors.New("not UTF-8")
			}
			return b.String(), s[i+1:], nil
		case '\\':
			i++
			if i == len(s) {
				return "", "", errors.New("ends in a backslash")
			}
			switch s[i] {
			case 'n':
				b.WriteByte('\n')
			case '\\', '"':
				b.WriteByte(s[i])
			default:
				return "", "", fmt.Errorf(`\%c is no escape`, s[i])
			}
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", errors.New("a label has no end")
}

func TestMetricsAreValidAndBounded(t *testing.T) {
	const name, partitions, groups = "metrics-page", 100, 5
	for _, storage := range storages {
		topic := open(t, storage, queue.Config[int]{Name: name, Partitions: partitions, Capacity: 1000})
		for i := range groups {
			group(t, topic, fmt.Sprint("g", i), queue.GroupConfig{})
		}
		produce(t, topic, seq(0, 200)...)
	}
	text := body(t, ask(t, "/debug/penstock/metrics?topic="+name))
	all := exposition(t, text)
	perTopic := map[string]int{}
	for _, s := range all {
		for label := range s.labels {
			if !slices.Contains([]string{"topic", "copy", "group", "reason", "state"}, label) {
				t.Errorf("label %s", label)
			}
		}
		if s.labels["topic"] != "" && s.labels["topic"] != name {
			t.Errorf("%+v", s)
		}
		perTopic[s.labels["copy"]]++
		if s.name == "penstock_queue_group_lag_events" && s.value != 200 || s.name == "penstock_queue_topic_produced_events_total" && s.value != 200 {
			t.Errorf("%+v", s)
		}
	}
	// Two topics of one name are told apart, and 100 partitions make no lines.
	if perTopic[""] < 100 || perTopic["2"] < 100 || len(all) > 2*(20+groups*40) {
		t.Errorf("%d lines: %v", len(all), perTopic)
	}
	if n := len(page(t, name).Topics); n != 2 {
		t.Errorf("%d topics of the name", n)
	}
}

func TestDebugHandlerSpeaksHTTP(t *testing.T) {
	open(t, storage{"memory"}, queue.Config[int]{Name: "http-page"})
	const html, js, prom = "text/html; charset=utf-8", "application/json", "text/plain; version=0.0.4; charset=utf-8"
	for _, c := range []struct {
		method, target, accept string
		status                 int
		kind                   string
	}{
		{"GET", "/", "", 200, html},
		{"GET", "/", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", 200, html},
		{"GET", "/", "*/*", 200, html},
		{"GET", "/", "application/json", 200, js},
		{"GET", "/", "application/json, text/html;q=0.9", 200, js},
		{"GET", "/", "application/json;q=0.1, text/*", 200, html},
		{"GET", "/", "application/*;q=bad", 200, js},
		{"GET", "/?format=json", "text/html", 200, js},
		{"GET", "/?format=html", "application/json", 200, html},
		{"GET", "/?format=prometheus", "", 200, prom},
		{"GET", "/metrics", "application/json", 200, prom},
		{"GET", "/debug/penstock/metrics", "", 200, prom},
		{"GET", "/metrics?format=json", "", 200, js},
		{"GET", "/debug/penstock", "", 200, html},
		{"HEAD", "/", "", 200, html},
		{"GET", "/?refresh=5", "", 200, html},
		{"GET", "/?refresh=0", "", 400, ""},
		{"GET", "/?refresh=x", "", 400, ""},
		{"GET", "/?format=yaml", "", 400, ""},
		{"GET", "/?topic=none-of-this-name", "", 404, ""},
		{"POST", "/", "", 405, ""},
		{"DELETE", "/metrics", "", 405, ""},
	} {
		r := httptest.NewRequest(c.method, c.target, nil)
		if c.accept != "" {
			r.Header.Set("Accept", c.accept)
		}
		w := httptest.NewRecorder()
		queue.DebugHandler().ServeHTTP(w, r)
		got := w.Result()
		if got.StatusCode != c.status || c.kind != "" && got.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s %s, Accept %q: %s, %s", c.method, c.target, c.accept, got.Status, got.Header.Get("Content-Type"))
		}
		if got.Header.Get("X-Content-Type-Options") != "nosniff" || got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: headers %v", c.method, c.target, got.Header)
		}
		if c.status == 405 && got.Header.Get("Allow") != "GET, HEAD" {
			t.Errorf("Allow: %s", got.Header.Get("Allow"))
		}
		if c.kind == html && !strings.HasPrefix(got.Header.Get("Content-Security-Policy"), "default-src 'none'; style-src 'sha256-") {
			t.Errorf("policy %q", got.Header.Get("Content-Security-Policy"))
		}
		refreshes := strings.Contains(w.Body.String(), `http-equiv="refresh"`)
		if want := c.target == "/?refresh=5"; refreshes != want {
			t.Errorf("%s refreshes: %t", c.target, refreshes)
		}
	}
}

// TestDebugHandlerWorksUnderAnyPrefix asks over a connection, with and without
// a prefix that is stripped, and with HEAD.
func TestDebugHandlerWorksUnderAnyPrefix(t *testing.T) {
	const name = "prefix-page"
	open(t, storage{"memory"}, queue.Config[int]{Name: name})
	mux := http.NewServeMux()
	mux.Handle("/debug/penstock/", queue.DebugHandler())
	mux.Handle("/stripped/", http.StripPrefix("/stripped", queue.DebugHandler()))
	mux.Handle("/bare", http.StripPrefix("/bare", queue.DebugHandler()))
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, mount := range []string{"/debug/penstock/", "/stripped/", "/bare"} {
		for _, form := range []string{"", "?format=json", "?format=prometheus"} {
			get, err := server.Client().Get(server.URL + mount + form)
			if err != nil {
				t.Fatal(err)
			}
			text := body(t, get)
			get.Body.Close()
			if !strings.Contains(text, name) {
				t.Errorf("%s%s does not name the topic", mount, form)
			}
			head, err := server.Client().Head(server.URL + mount + form)
			if err != nil {
				t.Fatal(err)
			}
			head.Body.Close()
			if head.StatusCode != 200 || head.Header.Get("Content-Type") != get.Header.Get("Content-Type") || head.ContentLength <= 0 {
				t.Errorf("HEAD %s%s: %s, %v", mount, form, head.Status, head.Header)
			}
		}
	}
	for _, path := range []string{"/debug/penstock/metrics", "/stripped/metrics"} {
		r, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if exposition(t, body(t, r)); !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
			t.Errorf("%s: %s", path, r.Header.Get("Content-Type"))
		}
		r.Body.Close()
	}
}

// TestPageOfManyPartitionsAndGroupsStaysReadable: what is folded and cut is
// said so, and the page does not grow with partitions times groups.
func TestPageOfManyPartitionsAndGroupsStaysReadable(t *testing.T) {
	for _, c := range []struct {
		partitions, groups, most int
		say                      []string
	}{
		{128, 50, 200 << 10, []string{"<details", "128 partitions", "Partitions with a lag, 128 of 128; the 8 largest", "group-49"}},
		{1100, 2, 400 << 10, []string{"1,100 partitions", "76 more partitions; the JSON has them."}},
	} {
		name := fmt.Sprintf("large-page-%d", c.partitions)
		topic := open(t, storage{"memory"}, queue.Config[int]{Name: name, Partitions: c.partitions})
		for i := range c.groups {
			group(t, topic, fmt.Sprintf("group-%02d", i), queue.GroupConfig{})
		}
		produce(t, topic, seq(0, 10*c.partitions)...)
		html := body(t, ask(t, "/?topic="+name))
		wellFormed(t, html)
		for _, want := range c.say {
			if !strings.Contains(html, want) {
				t.Errorf("the page does not say %q", want)
			}
		}
		if len(html) > c.most {
			t.Errorf("the page has %d bytes", len(html))
		}
		if p := page(t, name).Topics[0]; len(p.Groups) != c.groups || len(p.Groups[0].Partitions) != c.partitions {
			t.Error("the JSON does not have all")
		}
	}
}

// TestDroppedTopicIsNotKeptAlive: the list of topics keeps none.
func TestDroppedTopicIsNotKeptAlive(t *testing.T) {
	const name = "dropped-page"
	func() {
		topic, err := queue.Open(queue.Config[int]{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		if topic.Produce(t.Context(), 1) != nil || len(page(t, name).Topics) != 1 {
			t.Error("the topic is not shown")
		}
		runtime.KeepAlive(topic)
	}()
	for range 100 {
		runtime.GC()
		if ask(t, "/?topic="+name).StatusCode == http.StatusNotFound {
			return
		}
	}
	t.Error("a topic that nobody has any more is still shown")
}

// TestScrapesUnderLoad is for the race detector: all forms are asked for while
// topics are opened, produced into, consumed, failed, closed.
func TestScrapesUnderLoad(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		defer stop()
		const rounds = 2
		var work, looks sync.WaitGroup
		for _, target := range []string{"/?format=json", "/", "/metrics"} {
			looks.Go(func() {
				for ctx.Err() == nil {
					text := body(t, ask(t, target))
					switch {
					case target == "/metrics":
						exposition(t, text)
					case target == "/":
						wellFormed(t, text)
					case !json.Valid([]byte(text)):
						t.Error("the JSON is not valid")
					}
				}
			})
		}
		for i := range 2 {
			work.Go(func() {
				for round := range rounds {
					loadTopic(ctx, t, s, fmt.Sprintf("load-%d", i), round)
				}
			})
		}
		work.Wait()
		stop()
		looks.Wait()
	})
}

// loadTopic runs a topic for a moment and closes it while it is in use.
func loadTopic(ctx context.Context, t *testing.T, s storage, name string, round int) {
	c := queue.Config[int]{Name: name, Partitions: 2, Capacity: 200, Logger: slog.New(slog.DiscardHandler)}
	if s.name == "file" {
		c = onDisk(t, c)
	}
	topic, err := queue.Open(c)
	if err != nil {
		t.Error(err)
		return
	}
	var wg sync.WaitGroup
	for i := range 2 {
		g, err := topic.Group(fmt.Sprint("g", i), queue.GroupConfig{Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Millisecond, Max: time.Millisecond}}})
		if err != nil {
			t.Error(err)
			break
		}
		wg.Go(func() {
			n := 0
			_ = g.Run(ctx, func(_ context.Context, b penstock.Batch[int]) error {
				if n++; n%7 == 0 {
					return errors.New("sometimes")
				}
				return nil
			})
		})
	}
	wg.Go(func() {
		for n := 0; n < 200 && topic.Produce(ctx, seq(n, n+5)...) == nil; n += 5 {
			topic.Stats()
		}
		if err := topic.Close(); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
}
