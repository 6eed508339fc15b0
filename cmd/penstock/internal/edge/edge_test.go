package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
)

// keep is a topic that keeps what it is given, or fails.
type keep struct {
	mu     sync.Mutex
	events []penstock.Event[[]byte]
	calls  int
	err    error
}

func (k *keep) Append(_ context.Context, events []penstock.Event[[]byte]) (penstock.Durability, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	if k.err != nil {
		return 0, k.err
	}
	k.events = append(k.events, events...)
	return penstock.Synced, nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newEdge(t *testing.T, k *keep, change func(*Config)) *Edge {
	t.Helper()
	c := Config{Topics: map[string]Topic{"orders": k}, Logger: quiet()}
	if change != nil {
		change(&c)
	}
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

type request struct {
	method, target, kind, body string
	header                     map[string]string
}

func send(e *Edge, q request) *httptest.ResponseRecorder {
	if q.method == "" {
		q.method = "POST"
	}
	if q.target == "" {
		q.target = "/v1/topics/orders"
	}
	r := httptest.NewRequest(q.method, q.target, strings.NewReader(q.body))
	if q.kind != "" {
		r.Header.Set("Content-Type", q.kind)
	}
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// answerOf decodes the error part of an answer.
func answerOf(t *testing.T, w *httptest.ResponseRecorder) problem {
	t.Helper()
	var a struct{ Error problem }
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("answer %d %q: %v", w.Code, w.Body, err)
	}
	return a.Error
}

func TestSingleObjectIsStoredByteForByte(t *testing.T) {
	t.Parallel()
	k := &keep{}
	body := "  {\"order\" : 17, \"big\":12345678901234567890, \"customer\":\"c\\u00e9\"}\n"
	w := send(newEdge(t, k, nil), request{target: "/v1/topics/orders?id=order&key=customer", kind: "application/json; charset=UTF-8", body: body})
	if w.Code != http.StatusAccepted || strings.TrimSpace(w.Body.String()) != `{"accepted":1,"level":"synced"}` {
		t.Fatalf("answer is %d %s", w.Code, w.Body)
	}
	e := k.events[0]
	if e.ID != "17" || e.Key != "cé" || string(e.Value) != strings.TrimSpace(body) {
		t.Errorf("stored %q key %q value %q", e.ID, e.Key, e.Value)
	}
}

func TestIDAndKeyFromHeaders(t *testing.T) {
	t.Parallel()
	k := &keep{}
	w := send(newEdge(t, k, nil), request{kind: TypeJSON, body: `{}`, header: map[string]string{"Penstock-Id": "a", "Penstock-Key": "b"}})
	if w.Code != http.StatusAccepted || k.events[0].ID != "a" || k.events[0].Key != "b" {
		t.Errorf("answer %d, stored %+v", w.Code, k.events)
	}
}

func TestLinesKeepTheirOrder(t *testing.T) {
	t.Parallel()
	k := &keep{}
	w := send(newEdge(t, k, nil), request{target: "/v1/topics/orders?id=n", kind: TypeNDJSON, body: "{\"n\":1}\r\n\n{\"n\":\"2\"}\n {\"n\":3} "})
	if w.Code != http.StatusAccepted || k.calls != 1 || len(k.events) != 3 {
		t.Fatalf("answer %d, %d calls, %d events", w.Code, k.calls, len(k.events))
	}
	for i, e := range k.events {
		if e.ID != fmt.Sprint(i+1) || e.Key != "" {
			t.Errorf("event %d has id %q key %q", i, e.ID, e.Key)
		}
	}
}

func TestPathsAreNeverCleaned_FM82(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		status int
		code   string
	}{
		"//v1/topics/orders":          {404, "no_path"},
		"/v1//topics/orders":          {404, "no_path"},
		"/v1/topics/../topics/orders": {404, "no_path"},
		"/v1/topics/./orders":         {404, "no_path"},
		"/v1/topics/orders/":          {404, "no_path"},
		"/v1/topics/":                 {404, "no_path"},
		"/V1/topics/orders":           {404, "no_path"},
		"/":                           {404, "no_path"},
		"/v1/topics/%2e%2e":           {400, "bad_topic"},
		"/v1/topics/..%2forders":      {400, "bad_topic"},
		"/v1/topics/orders%00":        {400, "bad_topic"},
		"/v1/topics/orders%2f":        {400, "bad_topic"},
	} {
		k := &keep{}
		w := send(newEdge(t, k, nil), request{target: path, kind: TypeJSON, body: "{}"})
		if w.Code != want.status || answerOf(t, w).Code != want.code || k.calls > 0 {
			t.Errorf("%s: answer is %d %s, want %d %s", path, w.Code, w.Body, want.status, want.code)
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, MaxDepth) + "{}" + strings.Repeat("}", MaxDepth)
	manyLines := strings.Repeat("{}\n", 499) + "{\"broken\":\n" + strings.Repeat("{}\n", 500)
	for name, tc := range map[string]struct {
		q      request
		status int
		code   string
		line   int
	}{
		"line 500 of 1000 is malformed":    {request{kind: TypeNDJSON, body: manyLines}, 400, "bad_event", 500},
		"a line is an array":               {request{kind: TypeNDJSON, body: "{}\n[1]\n"}, 400, "bad_event", 2},
		"a line holds two objects":         {request{kind: TypeNDJSON, body: "{} {}\n"}, 400, "bad_event", 1},
		"a line is not UTF-8":              {request{kind: TypeNDJSON, body: "{\"a\":\"\xff\"}\n"}, 400, "bad_event", 1},
		"a line nests too deep":            {request{kind: TypeNDJSON, body: "{}\n" + deep}, 400, "bad_event", 2},
		"a line is too long":               {request{kind: TypeNDJSON, body: "{}\n{\"a\":\"" + strings.Repeat("x", 2000) + "\"}\n{}"}, 413, "too_large", 2},
		"too many lines":                   {request{kind: TypeNDJSON, body: strings.Repeat("{}\n", 1001)}, 413, "too_large", 1001},
		"only blank lines":                 {request{kind: TypeNDJSON, body: "\n\n \n"}, 400, "empty_body", 0},
		"no body":                          {request{kind: TypeJSON}, 400, "empty_body", 0},
		"body too long":                    {request{kind: TypeNDJSON, body: strings.Repeat(" ", 8001)}, 413, "too_large", 0},
		"a number":                         {request{kind: TypeJSON, body: "1"}, 400, "bad_event", 0},
		"object and garbage":               {request{kind: TypeJSON, body: "{}x"}, 400, "bad_event", 0},
		"id is missing":                    {request{target: "/v1/topics/orders?id=a", kind: TypeNDJSON, body: "{\"a\":1}\n{\"b\":{\"a\":1}}"}, 400, "bad_event", 2},
		"id is a fraction":                 {request{target: "/v1/topics/orders?id=a", kind: TypeJSON, body: `{"a":1.5}`}, 400, "bad_event", 0},
		"id has an exponent":               {request{target: "/v1/topics/orders?id=a", kind: TypeJSON, body: `{"a":1e3}`}, 400, "bad_event", 0},
		"id is null":                       {request{target: "/v1/topics/orders?id=a", kind: TypeJSON, body: `{"a":null}`}, 400, "bad_event", 0},
		"id is empty":                      {request{target: "/v1/topics/orders?id=a", kind: TypeJSON, body: `{"a":""}`}, 400, "bad_event", 0},
		"key is an object":                 {request{target: "/v1/topics/orders?key=a", kind: TypeJSON, body: `{"a":{}}`}, 400, "bad_event", 0},
		"key occurs twice":                 {request{target: "/v1/topics/orders?key=a", kind: TypeJSON, body: `{"a":"1","\u0061":"2"}`}, 400, "bad_event", 0},
		"unknown parameter":                {request{target: "/v1/topics/orders?keys=a", kind: TypeJSON, body: `{}`}, 400, "parameter", 0},
		"parameter given twice":            {request{target: "/v1/topics/orders?key=a&key=b", kind: TypeJSON, body: `{}`}, 400, "parameter", 0},
		"parameter with a bad escape":      {request{target: "/v1/topics/orders?key=%zz", kind: TypeJSON, body: `{}`}, 400, "parameter", 0},
		"id by header and by parameter":    {request{target: "/v1/topics/orders?id=a", kind: TypeJSON, body: `{"a":1}`, header: map[string]string{"Penstock-Id": "a"}}, 400, "header", 0},
		"header id with lines":             {request{kind: TypeNDJSON, body: `{}`, header: map[string]string{"Penstock-Id": "a"}}, 400, "header", 0},
		"header id too long":               {request{kind: TypeJSON, body: `{}`, header: map[string]string{"Penstock-Id": strings.Repeat("a", 2000)}}, 400, "header", 0},
		"form":                             {request{kind: "application/x-www-form-urlencoded", body: "{}"}, 415, "content_type", 0},
		"no content type":                  {request{body: "{}"}, 415, "content_type", 0},
		"another charset":                  {request{kind: "application/json; charset=latin1", body: "{}"}, 415, "content_type", 0},
		"gzip":                             {request{kind: TypeJSON, body: "{}", header: map[string]string{"Content-Encoding": "gzip"}}, 415, "content_encoding", 0},
		"unknown topic":                    {request{target: "/v1/topics/other", kind: TypeJSON, body: "{}"}, 404, "no_topic", 0},
		"topic with an escaped slash":      {request{target: "/v1/topics/a%2fb", kind: TypeJSON, body: "{}"}, 400, "bad_topic", 0},
		"topic that climbs":                {request{target: "/v1/topics/%2e%2e", kind: TypeJSON, body: "{}"}, 400, "bad_topic", 0},
		"topic with NUL":                   {request{target: "/v1/topics/a%00", kind: TypeJSON, body: "{}"}, 400, "bad_topic", 0},
		"topic that is too long":           {request{target: "/v1/topics/" + strings.Repeat("a", 121), kind: TypeJSON, body: "{}"}, 400, "bad_topic", 0},
		"topic with letters of other kind": {request{target: "/v1/topics/%C3%B6", kind: TypeJSON, body: "{}"}, 400, "bad_topic", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &keep{}
			e := newEdge(t, k, func(c *Config) { c.MaxBody, c.MaxLine, c.MaxEvents = 8000, 1500, 1000 })
			w := send(e, tc.q)
			a := answerOf(t, w)
			if w.Code != tc.status || a.Code != tc.code || a.Line != tc.line || a.Message == "" {
				t.Errorf("answer is %d %+v, want %d %s line %d", w.Code, a, tc.status, tc.code, tc.line)
			}
			if k.calls != 0 {
				t.Error("part of a refused request was appended")
			}
			if s := e.Stats(); s.Requests != 1 || s.Refused != 1 || s.Accepted != 0 {
				t.Errorf("stats are %+v", s)
			}
		})
	}
}

func TestOnlyPostIsServed(t *testing.T) {
	t.Parallel()
	e := newEdge(t, &keep{}, nil)
	for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS"} {
		if w := send(e, request{method: method, kind: TypeJSON, body: "{}"}); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" || answerOf(t, w).Code != "method" {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}

func TestErrorsOfTheTopic(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err        error
		status     int
		code       string
		retryAfter bool
	}{
		"full":            {fmt.Errorf("topic: %w", penstock.ErrFull), 429, "full", true},
		"closed":          {penstock.ErrClosed, 503, "stopping", true},
		"cancelled":       {context.Canceled, 503, "stopping", true},
		"too large":       {penstock.ErrTooLarge, 413, "too_large", false},
		"disk full":       {penstock.ErrDiskFull, 507, "disk_full", true},
		"unknown outcome": {penstock.ErrUnknownOutcome, 500, "unknown_outcome", false},
		"interrupted":     {&penstock.PartialError{Accepted: 3, Err: penstock.ErrFull}, 500, "unknown_outcome", false},
		"damaged":         {&penstock.CorruptError{Cause: errors.New("crc")}, 500, "damaged", false},
		"something else":  {errors.New("secret path"), 500, "failed", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := send(newEdge(t, &keep{err: tc.err}, nil), request{kind: TypeJSON, body: "{}"})
			if a := answerOf(t, w); w.Code != tc.status || a.Code != tc.code || strings.Contains(a.Message, "secret") {
				t.Errorf("answer is %d %+v", w.Code, a)
			}
			if got := w.Header().Get("Retry-After"); (got != "") != tc.retryAfter {
				t.Errorf("Retry-After is %q", got)
			}
		})
	}
}

func TestStoppedEdgeAnswers503(t *testing.T) {
	t.Parallel()
	k := &keep{}
	e := newEdge(t, k, nil)
	e.Stop()
	w := send(e, request{kind: TypeJSON, body: "{}"})
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || k.calls != 0 {
		t.Errorf("answer is %d, %d appends", w.Code, k.calls)
	}
}

// slowBody blocks its reader until it is released.
type slowBody struct {
	reading chan<- struct{}
	release <-chan struct{}
}

func (b *slowBody) Read([]byte) (int, error) {
	b.reading <- struct{}{}
	<-b.release
	return 0, io.EOF
}

func TestBodiesTogetherAreBounded(t *testing.T) {
	t.Parallel()
	k := &keep{}
	e := newEdge(t, k, func(c *Config) { c.MaxBody, c.MaxLine, c.MaxInFlight = 1000, 1000, 1500 })
	reading, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // one slow request without a length; it ends when release is closed
		r := httptest.NewRequest("POST", "/v1/topics/orders", &slowBody{reading, release})
		r.ContentLength = -1
		r.Header.Set("Content-Type", TypeJSON)
		e.ServeHTTP(httptest.NewRecorder(), r)
	})
	<-reading // it holds 1000 bytes, the most a request without a length can need
	large := request{kind: TypeJSON, body: `{"a":"` + strings.Repeat("x", 600) + `"}`}
	if w := send(e, large); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" || k.calls != 0 {
		t.Errorf("a request beyond the bound got %d", w.Code)
	}
	if w := send(e, request{kind: TypeJSON, body: "{}"}); w.Code != http.StatusAccepted {
		t.Errorf("a request inside the bound got %d", w.Code)
	}
	close(release)
	wg.Wait()
	if w := send(e, large); w.Code != http.StatusAccepted {
		t.Errorf("after the slow request ended: %d", w.Code)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	topics := map[string]Topic{"orders": &keep{}}
	for name, c := range map[string]Config{
		"Topics":      {},
		"MaxBody":     {Topics: topics, MaxBody: -1},
		"MaxLine":     {Topics: topics, MaxLine: -1},
		"MaxEvents":   {Topics: topics, MaxEvents: -1},
		"MaxInFlight": {Topics: topics, MaxInFlight: 1},
	} {
		var field *penstock.FieldError
		if _, err := New(c); !errors.As(err, &field) || field.Field != name {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	if _, err := New(Config{Topics: map[string]Topic{"../x": &keep{}}}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("bad name: error is %v", err)
	}
}

func FuzzScanObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"id":1}`, `{"a":{"id":1},"id":"x"}`, `{"id":"1","id":"2"}`, `{"a":[1,{"b":"}"}],"id":-7 }`, `{"\u0069d":"x"}`, `{"id":"\""}`, "{\"id\":1.0}", `[`, `{"a":`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		found, err := scanObject(b, [2]string{"id"})
		var m map[string]json.RawMessage
		std := json.Unmarshal(b, &m)
		if err == nil {
			if std != nil {
				t.Fatalf("accepted %q, which is not an object: %v", b, std)
			}
			if want := m["id"]; string(found[0]) != string(want) {
				t.Fatalf("%q: id is %q, want %q", b, found[0], want)
			}
			if len(found[0]) > 0 {
				_, _ = textOf(found[0], "id")
			}
		}
	})
}

func BenchmarkParseLines(b *testing.B) {
	var body strings.Builder
	for i := range 500 {
		fmt.Fprintf(&body, `{"id":"0f3a-%d","key":"customer-%d","data":{"customer":"customer-%d","total_cents":%d,"items":["tea","milk"]}}`+"\n", i, i%97, i%97, i*13)
	}
	c := Config{Topics: map[string]Topic{"orders": &keep{}}}
	if err := c.validate(); err != nil {
		b.Fatal(err)
	}
	w := want{lines: true, idField: "id", keyField: "key"}
	b.SetBytes(int64(body.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.parse([]byte(body.String()), &c); err != nil {
			b.Fatal(err)
		}
	}
}
