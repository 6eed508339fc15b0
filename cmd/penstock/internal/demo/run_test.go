package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// lockedBuffer is a buffer that several goroutines may write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func good(fault string) Config {
	return Config{
		For: 700 * time.Millisecond, Rate: 2000, Durability: penstock.Written, Seed: 7,
		Drain: 20 * time.Second, Command: nodeWith(fault),
	}
}

func perform(t *testing.T, c Config) Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestGoodNodeIsFoundGood(t *testing.T) {
	t.Parallel()
	c := good("none")
	text, status := &lockedBuffer{}, &lockedBuffer{}
	c.Out = Output{Text: text, Status: status}
	r := perform(t, c)
	if r.Faults != nil || r.Left != "" || r.Interrupted {
		t.Fatalf("faults %q, left %q, interrupted %v", r.Faults, r.Left, r.Interrupted)
	}
	if r.Produced < 700 || r.Unknown != 0 || r.Crashes != 0 || r.EventsPerSec <= 0 || r.RSSMaxMiB <= 0 {
		t.Errorf("verdict is %+v", r.Verdict)
	}
	for _, name := range wire.Groups {
		g := r.Groups[name]
		if g.Distinct+g.Dead != r.Produced || g.Lost != 0 || g.OrderViolations != 0 {
			t.Errorf("%s: %+v of %d", name, g, r.Produced)
		}
		if (g.Dead > 0) != (name == wire.Webhook) {
			t.Errorf("%s has %d dead", name, g.Dead)
		}
	}
	if !strings.Contains(text.String(), "/v1/topics/orders") {
		t.Errorf("header is %q", text)
	}
}

func TestCrashesRepeatEventsAndLoseNone(t *testing.T) {
	t.Parallel()
	c := good("none")
	c.For, c.Crash = 1500*time.Millisecond, 3
	r := perform(t, c)
	if r.Faults != nil || r.Crashes != 3 || r.Unknown != 0 {
		t.Fatalf("faults %q, verdict %+v", r.Faults, r.Verdict)
	}
}

func TestFaultyNodeIsFoundOut(t *testing.T) {
	t.Parallel()
	for fault, tc := range map[string]struct {
		crashes int
		want    string // in one of the faults
	}{
		"skips an event":           {0, "group billing lost 1"},
		"acknowledges and drops":   {0, "lost"},
		"forgets its log":          {1, "lost"},
		"invents an event":         {0, "never sent"},
		"turns batches around":     {0, "group pipeline got"},
		"acknowledges less":        {0, "events were sent"},
		"refuses a request":        {0, "400"},
		"dies":                     {0, "exit status 6): a part failed"},
		"gives up good events":     {0, "dead letters that no partner refused"},
		"reports without a call":   {0, "group webhook reported"},
		"ends as if all were well": {0, "exit status 0"},
		"never answers":            {0, "never acknowledged"},
		"has no streams":           {0, "group remote lost"},
		"turns deliveries around":  {0, "group remote got"},

		"skips an event across the connection": {0, "group remote lost 1"},
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			c := good(fault)
			c.Crash = tc.crashes
			c.Drain = 1500 * time.Millisecond
			r := perform(t, c)
			if !strings.Contains(strings.Join(r.Faults, "\n"), tc.want) {
				t.Errorf("faults are %q, want %q among them", r.Faults, tc.want)
			}
		})
	}
}

func TestNodeThatEndsByItselfIsNamed(t *testing.T) {
	t.Parallel()
	c := good("dies")
	c.Drain = time.Second
	var node *NodeError
	if r := perform(t, c); !errors.As(r.Node, &node) || node.Code != 6 {
		t.Errorf("node is %v", r.Node)
	}
	if r := perform(t, good("none")); r.Node != nil {
		t.Errorf("a good node is %v", r.Node)
	}
}

func TestUnansweredRequestsAreRepeated(t *testing.T) {
	t.Parallel()
	for _, fault := range []string{"cuts answers", "full at times", "repeats an event"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			r := perform(t, good(fault))
			if r.Faults != nil {
				t.Fatalf("faults %q", r.Faults)
			}
			if repeats := r.Groups[wire.Billing].Duplicates; (repeats > 0) != (fault != "full at times") {
				t.Errorf("%d duplicates", repeats)
			}
		})
	}
}

func TestInputIsSentToItsEnd(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 3000 {
		lines.WriteString(`{"n":` + strconv.Itoa(i) + `,"who":"` + strconv.Itoa(i%17) + "\"}\n\n")
	}
	c := good("none")
	c.For, c.Rate, c.Input, c.Key, c.Crash = 0, 100_000, strings.NewReader(lines.String()), "who", 2
	c.Dir = t.TempDir()
	r := perform(t, c)
	if r.Faults != nil || r.Produced != 3000 || r.Crashes != 2 {
		t.Fatalf("faults %q, verdict %+v", r.Faults, r.Verdict)
	}
	journals, err := filepath.Glob(filepath.Join(c.Dir, "journal-*.ndjson"))
	if err != nil || len(journals) != 1 {
		t.Fatalf("journals %q, %v", journals, err)
	}
	journal, err := os.ReadFile(journals[0])
	if err != nil || strings.Count(string(journal), `"op":"kill"`) != 2 || !strings.Contains(string(journal), `"op":"invoke"`) {
		t.Errorf("journal of %d bytes, %v", len(journal), err)
	}
}

func TestBadInputLineEndsTheRun(t *testing.T) {
	t.Parallel()
	c := good("none")
	c.For, c.Input = 0, strings.NewReader("{}\n{}\nnot json\n{}\n")
	r := perform(t, c)
	if r.Produced != 2 || r.Left != "" || len(r.Faults) != 1 || r.Faults[0] != "input line 3: is not one JSON value" {
		t.Errorf("faults %q, verdict %+v", r.Faults, r.Verdict)
	}
}

func TestInterruptedRunIsJudged(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string]time.Duration{"endless": 0, "asked for an hour": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			c := good("none")
			c.For = asked
			header := &onFirstWrite{do: cancel} // the header says that the node is ready
			c.Out.Text = header
			r, err := Run(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			if r.Interrupted != (asked > 0) || r.Unknown != 0 {
				t.Errorf("interrupted %v, verdict %+v", r.Interrupted, r.Verdict)
			}
		})
	}
}

// onFirstWrite calls do when it is first written to.
type onFirstWrite struct {
	once sync.Once
	do   func()
}

func (o *onFirstWrite) Write(b []byte) (int, error) {
	o.once.Do(o.do)
	return len(b), nil
}

func TestWhatIsLeftIsSaid(t *testing.T) {
	t.Parallel()
	c := good("skips an event")
	c.Drain = time.Second
	c.Dir = t.TempDir()
	r := perform(t, c)
	if want := "left: billing 1; they are kept and will be replayed by the next run with --dir " + c.Dir; r.Left != want {
		t.Errorf("left is %q, want %q", r.Left, want)
	}
}

func TestNodeThatDoesNotStart(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), good("refuses to start"))
	var node *NodeError
	if !errors.As(err, &node) || node.Code != 7 || !strings.Contains(node.Said, "in use") {
		t.Errorf("error is %v", err)
	}
}

func TestInterruptWhileTheNodeStarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, good("silent")); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
}

func TestSecondWishEndsWithoutADrain(t *testing.T) {
	t.Parallel()
	c := good("never answers")
	c.For, c.Drain = time.Hour, time.Hour
	c.Dir = filepath.Join(t.TempDir(), "kept")
	ctx, stop := context.WithCancel(t.Context())
	now := make(chan struct{})
	c.Now = now
	status := &lockedBuffer{}
	c.Out = Output{Status: writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("Once more ends at once")) {
			close(now)
		}
		return status.Write(b)
	}), Text: writerFunc(func(b []byte) (int, error) { // the header: the node is ready
		time.AfterFunc(300*time.Millisecond, stop)
		return len(b), nil
	})}
	r, err := Run(ctx, c)
	if err != nil || !r.Interrupted || !strings.Contains(strings.Join(r.Faults, "\n"), "ended at once") {
		t.Errorf("interrupted %v, faults %q, %v", r.Interrupted, r.Faults, err)
	}
	if !strings.HasPrefix(status.String(), "demo: seed 7\n") {
		t.Errorf("status is %q", status)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestInterruptedRunSaysThatNothingIsLeft(t *testing.T) {
	t.Parallel()
	c := good("none")
	c.For = time.Hour
	ctx, stop := context.WithCancel(t.Context())
	c.Out.Text = writerFunc(func(b []byte) (int, error) {
		time.AfterFunc(300*time.Millisecond, stop)
		return len(b), nil
	})
	r, err := Run(ctx, c)
	if err != nil || !r.Interrupted || r.Left != "left: nothing; every acknowledged event was handled or dead-lettered" {
		t.Errorf("interrupted %v, left %q, %v", r.Interrupted, r.Left, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*Config){
		"--for":        func(c *Config) { c.For = -1 },
		"--rate":       func(c *Config) { c.Rate = 0.5 },
		"--crash":      func(c *Config) { c.Crash = -1 },
		"--drain":      func(c *Config) { c.Drain = -1 },
		"--durability": func(c *Config) { c.Durability = penstock.Memory },
		"--key":        func(c *Config) { c.Key = "x" },
		"Command":      func(c *Config) { c.Command = nil },
	} {
		c := good("none")
		change(&c)
		var bad *penstock.FieldError
		if _, err := Run(t.Context(), c); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: error is %v", field, err)
		}
	}
}

func TestDirectoryThatOthersCanWriteToIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := good("none")
	c.Dir = dir
	_, err = Run(t.Context(), c)
	if refused := errors.Is(err, ErrUnsafeDir); refused != writableByOthers(info) {
		t.Errorf("error is %v", err)
	}
}
