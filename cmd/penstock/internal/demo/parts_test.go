package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

func TestMomentsAreSeededAndInside(t *testing.T) {
	t.Parallel()
	for _, span := range []time.Duration{0, 10 * time.Millisecond, 2 * time.Second, time.Hour} {
		at := moments(5, 40, span)
		if !slices.IsSorted(at) || len(at) != 40 || at[0] < 0 {
			t.Errorf("span %v: %v", span, at)
		}
		if span > 0 && at[39] >= span {
			t.Errorf("span %v: the last moment is %v", span, at[39])
		}
		if !slices.Equal(at, moments(5, 40, span)) || slices.Equal(at, moments(6, 40, span)) {
			t.Errorf("span %v: the moments do not follow the seed", span)
		}
	}
}

func TestCrasherKeepsItsMomentsThenHurries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		hurry := make(chan struct{})
		time.AfterFunc(10*time.Second, func() { close(hurry) })
		planned := []time.Duration{time.Second, time.Second, 4 * time.Second, time.Hour, 2 * time.Hour}
		err := crasher(t.Context(), 1, planned, hurry, func(context.Context) error {
			at = append(at, time.Since(start))
			return nil
		})
		if err != nil || len(at) != 5 {
			t.Fatalf("kills at %v, %v", at, err)
		}
		// In time when there is time; otherwise after a reprieve.
		from := []time.Duration{time.Second, time.Second, 4 * time.Second, 10 * time.Second, at[3]}
		for i, late := range []time.Duration{0, maxReprieve, 0, maxReprieve, maxReprieve} {
			if at[i] < from[i] || at[i] > from[i]+late {
				t.Errorf("kill %d at %v, want within %v of %v", i, at[i], late, from[i])
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := crasher(ctx, 1, []time.Duration{time.Hour}, make(chan struct{}), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		broken := errors.New("broken")
		if err := crasher(t.Context(), 1, []time.Duration{0, 0}, hurry, func(context.Context) error { return broken }); err != broken {
			t.Errorf("broken: %v", err)
		}
	})
}

func TestAckLogTellsTheAgeOfTheOldestOwedEvent(t *testing.T) {
	t.Parallel()
	var l ackLog
	if got := l.behind(time.Hour, 0); got != 0 {
		t.Errorf("empty: %v", got)
	}
	for i := range 100 { // 10 events each 100 ms
		l.add(time.Duration(i)*100*time.Millisecond, uint64(10*(i+1)))
	}
	l.add(9901*time.Millisecond, 5000) // too soon for a sample
	for settled, want := range map[uint64]time.Duration{0: 10 * time.Second, 9: 10 * time.Second, 10: 9900 * time.Millisecond, 995: 100 * time.Millisecond, 1000: 0, 7000: 0} {
		if got := l.behind(10*time.Second, settled); got != want {
			t.Errorf("settled %d: behind %v, want %v", settled, got, want)
		}
	}
	for i := range 2 * ackSamples {
		l.add(time.Duration(i+200)*ackEvery, uint64(i+2000))
	}
	if len(l.samples) != ackSamples {
		t.Errorf("%d samples are kept", len(l.samples))
	}
}

func TestGeneratorFollowsItsSeed(t *testing.T) {
	t.Parallel()
	var all [3]string
	for i, seed := range []uint64{1, 1, 2} {
		g := newGenerator(seed)
		for range 50 {
			key, data, err := g.next()
			if err != nil || !strings.Contains(string(data), key) {
				t.Fatalf("key %q data %q, %v", key, data, err)
			}
			all[i] += string(data)
		}
	}
	if all[0] != all[1] || all[0] == all[2] {
		t.Error("the events do not follow the seed")
	}
}

func TestInputLines(t *testing.T) {
	t.Parallel()
	type got struct{ Key, Data, Err string }
	long := `{"k":"` + strings.Repeat("x", maxLine) + `"}`
	for name, tc := range map[string]struct {
		text, key string
		want      []got
	}{
		"blank lines and no newline at the end": {"\n \n{\"a\":1}\r\n\n[2]", "", []got{{"", `{"a":1}`, ""}, {"", "[2]", ""}, {"", "", "EOF"}}},
		"a line across buffers":                 {`"` + strings.Repeat("y", 200_000) + `"` + "\n1\n", "", []got{{"", `"` + strings.Repeat("y", 200_000) + `"`, ""}, {"", "1", ""}, {"", "", "EOF"}}},
		"keys of every kind":                    {`{"k":"a\u00e9"}` + "\n" + `{"k":17}` + "\n" + `{"k":null}` + "\n" + `{}` + "\n" + `{"k":[1]}`, "k", []got{{"aé", `{"k":"a\u00e9"}`, ""}, {"17", `{"k":17}`, ""}, {"", `{"k":null}`, ""}, {"", `{}`, ""}, {"[1]", `{"k":[1]}`, ""}, {"", "", "EOF"}}},
		"a key that no line has":                {"{}\n{\"j\":1}\n", "k", []got{{"", "{}", ""}, {"", `{"j":1}`, ""}, {"", "", `input: no line has the field "k" that --key names, so no order was kept or judged`}}},
		"no object but a key is wanted":         {"[]", "k", []got{{"", "[]", `input line 1: is not a JSON object, so it has no field "k"`}}},
		"not JSON":                              {"1\n\nx\n", "", []got{{"", "1", ""}, {"", "", "input line 3: is not one JSON value"}}},
		"too long":                              {long, "", []got{{"", "", "input line 1: is longer than 1044480 bytes"}}},
		"key too long":                          {`{"k":"` + strings.Repeat("x", 1025) + `"}`, "k", []got{{"", `{"k":"` + strings.Repeat("x", 1025) + `"}`, `input line 1: field "k" is longer than 1024 bytes`}}},
		"not UTF-8":                             {"1\n\"\xff\"\n", "", []got{{"", "1", ""}, {"", "", "input line 2: is not valid UTF-8"}}},
		"UTF-16":                                {"\xff\xfe{\x00}\x00", "", []got{{"", "", "input line 1: begins like UTF-16; NDJSON is UTF-8"}}},
		"a byte order mark":                     {"\ufeff{}\n", "", []got{{"", "{}", ""}, {"", "", "EOF"}}},
		"as deep as the edge takes":             {strings.Repeat("[", 63) + strings.Repeat("]", 63), "", []got{{"", strings.Repeat("[", 63) + strings.Repeat("]", 63), ""}, {"", "", "EOF"}}},
		"deeper than the edge takes":            {strings.Repeat("[", 64) + strings.Repeat("]", 64), "", []got{{"", "", "input line 1: nests deeper than 63 levels"}}},
		"empty":                                 {"", "", []got{{"", "", "EOF"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInput(strings.NewReader(tc.text), tc.key)
			var all []got
			for {
				key, data, err := in.next()
				g := got{Key: key, Data: string(data)}
				if err != nil {
					g.Err = err.Error()
				}
				all = append(all, g)
				if err != nil {
					break
				}
			}
			if d := cmp.Diff(tc.want, all); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAnswersOfTheEdge(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status      int
		retry, body string
		want        answer
	}{
		"stored":              {202, "", `{"accepted":3,"level":"synced"}`, answer{acked: true}},
		"stored fewer":        {202, "", `{"accepted":2,"level":"synced"}`, answer{fatal: true}},
		"stored, no JSON":     {202, "", `ok`, answer{fatal: true}},
		"another success":     {200, "", `{"accepted":3}`, answer{fatal: true}},
		"full":                {429, "2", `{}`, answer{full: true, after: 2 * time.Second}},
		"full, endless":       {429, "99999999", `{}`, answer{full: true, after: requestTimeout}},
		"full, no time":       {429, "soon", `{}`, answer{full: true}},
		"stopping":            {503, "1", `{}`, answer{after: time.Second}},
		"outcome unknown":     {500, "", `{}`, answer{}},
		"malformed":           {400, "", `{}`, answer{fatal: true}},
		"too large":           {413, "", `{}`, answer{fatal: true}},
		"moved by some proxy": {302, "", ``, answer{fatal: true}},
	} {
		got := judgeAnswer(tc.status, tc.retry, []byte(tc.body), 3)
		if !got.acked && got.why == "" {
			t.Errorf("%s: no reason is given", name)
		}
		got.why = ""
		if got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestStatusLine(t *testing.T) {
	t.Parallel()
	s := snapshot{
		elapsed: 65 * time.Second, rateIn: 5012.4, nodeUp: true, diskBytes: 41 << 20, crashes: 2,
		groups: []groupView{
			{name: "billing", lag: 12, behind: 10 * time.Millisecond, rateOut: 5000, dead: 1},
			{name: "emails", lag: 21_060, behind: 4200 * time.Millisecond, rateOut: 5357.6, dead: 2, stats: wire.GroupStats{Busy: 4, Consumers: 4}},
		},
	}
	all, groups := s.rows()
	if want := "01:05  in 5,012/s  dead 3  disk 41 MiB  crashes 2  [emails: all 4 handlers are at work, each call is slow]"; all != want {
		t.Errorf("first row is\n%s\nwant\n%s", all, want)
	}
	if want := "lag  billing 12  emails 21,060 4.2s (drains in 61s)"; groups != want {
		t.Errorf("second row is\n%s\nwant\n%s", groups, want)
	}
	emails := &s.groups[1]
	for want, change := range map[string]func(){
		"21,060 4.2s (grows)":        func() { emails.rateOut = 5012.4 },
		"21,060 4.2s (stands still)": func() { emails.rateOut = 0 },
	} {
		change()
		if got := emails.lagText(s.rateIn); got != want {
			t.Errorf("lag is %q, want %q", got, want)
		}
	}
	for want, change := range map[string]func(){
		"the node was killed and recovers its log": func() { s.nodeUp, s.starting = false, true },
		"the node does not answer":                 func() { s.nodeUp, s.starting = false, false },
	} {
		change()
		if got := s.why(); got != want {
			t.Errorf("why is %q, want %q", got, want)
		}
	}
}

func TestWhyAGroupIsBehind(t *testing.T) {
	t.Parallel()
	for want, g := range map[string]wire.GroupStats{
		"retries, because 503 a bad moment":             {Failing: "503 a bad moment", Busy: 1, Consumers: 1},
		"all 2 handlers are at work, each call is slow": {Busy: 2, Consumers: 2},
		"few partitions hold what is left":              {Busy: 1, Consumers: 2},
		"its handlers wait for events to be read":       {Consumers: 2},
	} {
		if got := (&groupView{stats: g}).why(); got != want {
			t.Errorf("why is %q, want %q", got, want)
		}
	}
	if why := (&snapshot{phase: phaseStopping}).why(); why != "stopping the node" {
		t.Errorf("a node that ends because it was asked to: why is %q", why)
	}
	full := snapshot{nodeUp: true, full: true, phase: "draining"}
	if got := full.why(); got != "draining; the topic is full, so producers wait" {
		t.Errorf("why is %q", got)
	}
}

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{-3: "0", 0: "0", 999: "999", 1000: "1,000", 1234567.4: "1,234,567"} {
		if got := count(v); got != want {
			t.Errorf("count(%v) = %q, want %q", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{900 * time.Millisecond: "0.9s", 61 * time.Second: "61s", 5 * time.Minute: "5m", 9 * time.Hour: "hours"} {
		if got := short(d); got != want {
			t.Errorf("short(%v) = %q, want %q", d, got, want)
		}
	}
	if a, b := size(41<<20), size(3<<30); a != "41 MiB" || b != "3.0 GiB" {
		t.Errorf("sizes are %q, %q", a, b)
	}
}

func TestScreenKeepsLinesAndStatusApart(t *testing.T) {
	t.Parallel()
	var terminal, plain bytes.Buffer
	for _, o := range []Output{{Status: &terminal, Terminal: true, Width: func() int { return 21 }}, {Status: &plain}} {
		s := newScreen(o)
		s.status("one", "1")
		_, _ = io.WriteString(s, "half a")
		_, _ = io.WriteString(s, " line\nand")
		s.status("two", "twelve and a half dozen")
		s.end()
		_, _ = io.WriteString(s, " more\n")
	}
	const up = "\x1b[A\r\x1b[J"
	if want := "one\n1" + up + "half a line\none\n1" + up + "two\ntwelve and a half d…" + up + "and more\n"; terminal.String() != want {
		t.Errorf("terminal got %q, want %q", terminal.String(), want)
	}
	if want := "one  1\nhalf a line\ntwo  twelve and a half dozen\nand more\n"; plain.String() != want {
		t.Errorf("a pipe got %q, want %q", plain.String(), want)
	}
}

func TestWhatANodeSaid(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2*maxSaid)
	for name, tc := range map[string]struct{ text, reason, passed string }{
		"nothing":                  {"", "", ""},
		"the last line":            {"first\nsecond\n", "second", "first\nsecond\n"},
		"an empty line":            {"first\n\nlast\n", "last", "first\n\nlast\n"},
		"a line without an end":    {"first\nsec", "sec", "first\n"},
		"an error with its advice": {"log\nerror: in use\n  why  two writers\n       would\n  fix  stop it\n", "in use", "log\n"},
		"a line after the error":   {"error: in use\n  fix  stop it\nbye\n  bye\n", "in use", "bye\n  bye\n"},
		"a panic":                  {"panic: boom\n\ngoroutine 1 [running]:\n  main.go\n", "panic: boom", "panic: boom\n\ngoroutine 1 [running]:\n  main.go\n"},
		"a long line":              {long + "\n", long[:maxSaid], long[:maxSaid] + "\n"},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			var all bytes.Buffer
			s := said{next: &all}
			for rest := []byte(tc.text); len(rest) > 0; {
				n := min(size, len(rest))
				_, _ = s.Write(rest[:n])
				rest = rest[n:]
			}
			if s.String() != tc.reason || all.String() != tc.passed {
				t.Errorf("%s, %d bytes at a time: reason %.100q, passed on %.200q", name, size, s.String(), all.String())
			}
		}
	}
}

// newTestHub starts a hub over a journal of its own; it ends with the test.
func newTestHub(t *testing.T, seed uint64) *hub {
	t.Helper()
	rec, err := newRecord(t.TempDir()+"/journal", wire.Groups)
	if err != nil {
		t.Fatal(err)
	}
	h, err := startHub("run", "secret", seed, rec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.close()
		if err := rec.close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func call(h *hub, path, secret, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Authorization", secret)
	w := httptest.NewRecorder()
	h.routes().ServeHTTP(w, r)
	return w
}

func TestHubTakesReportsOfItsOwnNodeOnly(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, 1)
	h.record.with(func(l *judge.Ledger) {
		for i := range judge.ID(3) {
			l.Sent(i, judge.NoKey)
			l.Acked(i)
		}
	})
	const report = `{"group":"billing","incarnation":1,"ids":[0,2],"foreign":4}`
	for name, tc := range map[string]struct {
		path, secret, body string
		want               int
	}{
		"no secret":      {wire.PathReport, "", report, http.StatusUnauthorized},
		"wrong secret":   {wire.PathReport, "Bearer secres", report, http.StatusUnauthorized},
		"unknown path":   {"/v1/other", "Bearer secret", report, http.StatusNotFound},
		"malformed":      {wire.PathReport, "Bearer secret", `{"ids":[-1]}`, http.StatusBadRequest},
		"unknown field":  {wire.PathReport, "Bearer secret", `{"idz":[1]}`, http.StatusBadRequest},
		"webhook no key": {wire.PathWebhook, "", `{"id":"run-1"}`, http.StatusUnauthorized},
	} {
		if w := call(h, tc.path, tc.secret, tc.body); w.Code != tc.want {
			t.Errorf("%s: %d, want %d", name, w.Code, tc.want)
		}
	}
	if w := call(h, wire.PathReport, "Bearer secret", report); w.Code != http.StatusNoContent {
		t.Fatalf("report: %d", w.Code)
	}
	if w := call(h, wire.PathReport, "Bearer secret", `{"group":"billing","incarnation":1,"dead":true,"ids":[1]}`); w.Code != http.StatusNoContent {
		t.Fatalf("dead report: %d", w.Code)
	}
	h.record.with(func(l *judge.Ledger) {
		if handled, dead := l.Settled("billing"); handled != 2 || dead != 1 || l.Open("billing") != 0 {
			t.Errorf("billing has %d handled, %d dead", handled, dead)
		}
	})
	if h.foreign.Load() != 4 {
		t.Errorf("foreign is %d", h.foreign.Load())
	}
}

func TestPartnerFailsAtItsRate(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, 10_042)
	failed := 0
	const calls = 5000
	for range calls {
		if call(h, wire.PathWebhook, "Bearer secret", `{"id":"run-1"}`).Code != http.StatusOK {
			failed++
		}
	}
	if failed < calls/failOneIn/2 || failed > calls/failOneIn*2 {
		t.Errorf("%d of %d calls failed, want about 1 in %d", failed, calls, failOneIn)
	}
	body := ""
	for _, id := range []string{"run-41", "run-42", "run-5042", "other-42", ""} {
		body += `{"id":"` + id + `","event":{}}` + "\n"
	}
	for { // until it has no bad moment
		w := call(h, wire.PathWebhook, "Bearer secret", body)
		if w.Code != http.StatusOK {
			continue
		}
		if got := strings.TrimSpace(w.Body.String()); got != `{"refused":["run-42","run-5042"]}` {
			t.Errorf("answer is %s", got)
		}
		return
	}
}

func TestSummaryTable(t *testing.T) {
	t.Parallel()
	l := judge.NewLedger(wire.Groups...)
	for i := range judge.ID(1234) {
		l.Sent(i, judge.NoKey)
		l.Acked(i)
		l.Handled(wire.Billing, i)
	}
	var b strings.Builder
	if err := WriteSummary(&b, Result{Verdict: l.Verdict(), Foreign: 4321}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"billing", "1,234", "produced 1,234 events", "took 4,321 events of earlier runs"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
}
