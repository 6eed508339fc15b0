package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// deadLetters opens a topic and its dead-letter topic, which has n dead letters
// of it, "0", "1" and so on, and a group of each.
func deadLetters(t *testing.T, s storage, n int, target, letters queue.Config[string]) (orders, dead *queue.Topic[string], from *queue.Group[string]) {
	t.Helper()
	target.Name, letters.Name = "orders", "dead"
	orders, dead = open(t, s, target), open(t, s, letters)
	from = group(t, dead, "redrive", queue.GroupConfig{})
	g, err := orders.Group("billing", queue.GroupConfig{BatchMax: 1, Retry: settle.Policy{Attempts: 1}}, queue.DeadLetter(dead.ProduceEvents))
	if err != nil {
		t.Fatal(err)
	}
	run := startRun(t, g, func(context.Context, penstock.Batch[string]) error { return errHandler })
	for i := range n {
		e := penstock.Event[string]{Meta: penstock.Meta{ID: "id", Key: "k"}, Value: string(rune('0' + i))}
		if err := orders.ProduceEvents(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(10 * time.Second)
	run.mustStop(t)
	if st := g.Stats().Run; st.DeadLettered != uint64(n) {
		t.Fatalf("%d dead letters, want %d", st.DeadLettered, n)
	}
	return orders, dead, from
}

// drainAll pulls and commits all events that a group has left.
func drainAll(t *testing.T, g *queue.Group[string]) (out []penstock.Event[string]) {
	t.Helper()
	for {
		b, ok, err := g.Consumer(0).TryPull(100)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return out
		}
		for i := range b.Len() {
			out = append(out, b.Event(i))
		}
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func valuesOf(events []penstock.Event[string]) (out []string) {
	for _, e := range events {
		out = append(out, e.Value)
	}
	return out
}

func TestRedriveSendsBackWhatTheFilterTakes_PC16(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		refuse := false
		target := queue.Config[string]{Router: queue.RouterFunc("test", func(v string, n int) int {
			if refuse && v == "1" {
				return n // no such partition
			}
			return 0
		})}
		orders, dead, from := deadLetters(t, s, 5, target, queue.Config[string]{})
		refuse = true
		again := group(t, orders, "again", queue.GroupConfig{Start: queue.Latest})
		stays := group(t, dead, "stays", queue.GroupConfig{Start: queue.Latest})
		var progress []queue.RedriveReport
		c := queue.RedriveConfig[string]{
			To: []*queue.Topic[string]{orders}, DryRun: true,
			Filter:   func(e penstock.Event[string]) bool { return e.Value != "0" && e.Value != "3" },
			Progress: func(r queue.RedriveReport) { progress = append(progress, r) },
		}
		report, err := queue.Redrive(t.Context(), from, c)
		if err != nil || report != (queue.RedriveReport{Redriven: 3, Skipped: 2}) || from.Stats().Lag != 5 || dead.Stats().Produced != 5 {
			t.Errorf("dry run: %+v, %v, stats %+v", report, err, from.Stats())
		}
		c.DryRun = false
		report, err = queue.Redrive(t.Context(), from, c)
		want := queue.RedriveReport{Redriven: 2, Skipped: 2, Failed: 1}
		if err != nil || report != want || progress[len(progress)-1] != want {
			t.Errorf("report %+v, %v, want %+v", report, err, want)
		}
		if st := from.Stats(); st.Redriven != 2 || st.Lag != 3 {
			t.Errorf("stats %+v, want 2 redriven and 3 left", st)
		}
		if diff := cmp.Diff([]string{"0", "1", "3"}, valuesOf(drainAll(t, stays))); diff != "" {
			t.Errorf("still dead letters (-want +got):\n%s", diff)
		}
		back := drainAll(t, again)
		if diff := cmp.Diff([]string{"2", "4"}, valuesOf(back)); diff != "" {
			t.Errorf("back (-want +got):\n%s", diff)
		}
		for _, e := range back {
			if e.ID != "id" || e.Key != "k" || e.Attempt != 0 || e.Origin == nil || e.Origin.Group != "billing" || e.Header.Get(queue.RedrivenHeader) != "1" {
				t.Errorf("redriven event %+v, origin %+v", e, e.Origin)
			}
		}
	})
}

func TestRedriveKeepsMaxAndRate(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, _, from := deadLetters(t, s, 9, queue.Config[string]{}, queue.Config[string]{})
		begin := time.Now()
		report, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}, Max: 5, Rate: 2})
		if err != nil || report.Redriven != 5 {
			t.Errorf("report %+v, %v, want 5", report, err)
		}
		if took := time.Since(begin); took != 2*time.Second { // the fifth goes 4 halves of a second after the first
			t.Errorf("took %v, want 2s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		report, err = queue.Redrive(ctx, from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}, Rate: 2})
		wantErr(t, err, context.DeadlineExceeded)
		if report.Redriven != 2 || from.Stats().Lag != 2 {
			t.Errorf("report %+v, lag %d, want 2 sent and 2 left", report, from.Stats().Lag)
		}
	})
}

// A dead letter is committed only after its topic has accepted it.
func TestRedriveCommitsOnlyWhatWasAccepted(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, dead, from := deadLetters(t, s, 5, queue.Config[string]{Capacity: 3, WhenFull: queue.Wait}, queue.Config[string]{})
		hold := group(t, orders, "hold", queue.GroupConfig{Start: queue.Latest}) // commits nothing
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		report, err := queue.Redrive(ctx, from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}})
		wantErr(t, err, context.DeadlineExceeded)
		if report != (queue.RedriveReport{Redriven: 3}) || from.Stats().Lag != 2 {
			t.Errorf("report %+v, lag %d, want 3 sent and 2 left", report, from.Stats().Lag)
		}
		if err := hold.Close(); err != nil {
			t.Fatal(err)
		}
		_ = dead
	})
}

func TestRedriveRefusesWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders, dead, from := deadLetters(t, storages[0], 1, queue.Config[string]{}, queue.Config[string]{})
		to := []*queue.Topic[string]{orders}
		for field, c := range map[string]queue.RedriveConfig[string]{
			"To": {}, "Max": {To: to, Max: -1}, "Rate": {To: to, Rate: -1},
		} {
			_, err := queue.Redrive(t.Context(), from, c)
			if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		_, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{dead}})
		wantErr(t, err, penstock.ErrInvalid)
		_, err = queue.Redrive(t.Context(), nil, queue.RedriveConfig[string]{To: to}) // was a nil pointer
		if f, ok := errors.AsType[*penstock.FieldError](err); !ok || f.Field != "from" {
			t.Errorf("from nil: %v", err)
		}
		// Events that no dead letter is, or whose topic is not named, stay.
		produce(t, dead, "bare")
		other := open(t, storages[0], queue.Config[string]{Name: "other"})
		report, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{other}})
		if err != nil || report != (queue.RedriveReport{Failed: 2}) || from.Stats().Lag != 2 {
			t.Errorf("report %+v, %v, lag %d", report, err, from.Stats().Lag)
		}
	})
}

// A filter may count: it is asked once for each event.
func TestRedriveAsksTheFilterOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, _, from := deadLetters(t, s, 7, queue.Config[string]{}, queue.Config[string]{})
		asked := 0
		report, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{
			To:     []*queue.Topic[string]{orders},
			Filter: func(penstock.Event[string]) bool { asked++; return asked%3 > 0 },
		})
		if err != nil || asked != 7 || report != (queue.RedriveReport{Redriven: 5, Skipped: 2}) {
			t.Errorf("asked %d times, report %+v, %v, want 7, 5 sent and 2 skipped", asked, report, err)
		}
	})
}

// What was sent before a filter panics is committed, so it is not sent again.
func TestRedriveSurvivesAPanickingFilter(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, _, from := deadLetters(t, s, 4, queue.Config[string]{}, queue.Config[string]{})
		c := queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}}
		c.Filter = func(e penstock.Event[string]) bool {
			if e.Value == "2" {
				panic("odd event")
			}
			return true
		}
		report, err := queue.Redrive(t.Context(), from, c)
		if p, ok := errors.AsType[*penstock.PanicError](err); !ok || p.Value != "odd event" || report.Redriven != 2 || from.Stats().Lag != 2 {
			t.Errorf("report %+v, lag %d, %v", report, from.Stats().Lag, err)
		}
		c.Filter, c.Progress = nil, func(queue.RedriveReport) { panic("odd view") }
		report, err = queue.Redrive(t.Context(), from, c)
		if p, ok := errors.AsType[*penstock.PanicError](err); !ok || p.Value != "odd view" || report.Redriven != 2 || from.Stats().Lag != 0 {
			t.Errorf("report %+v, lag %d, %v", report, from.Stats().Lag, err)
		}
	})
}

// A redrive whose group is paused waits. It used to return at once, without an
// error, as if it had seen all.
func TestRedriveWaitsWhileItsGroupIsPaused(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, _, from := deadLetters(t, s, 3, queue.Config[string]{}, queue.Config[string]{})
		from.Pause()
		var report queue.RedriveReport
		call := start(t, func() (err error) {
			report, err = queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}})
			return err
		})
		call.blocked()
		from.Resume()
		if err := call.wait(); err != nil || report.Redriven != 3 {
			t.Error(report, err)
		}
	})
}

// What a rate would have allowed during a stall is not sent afterwards in one go.
func TestRedriveKeepsItsRateAfterAStall(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, _, from := deadLetters(t, s, 9, queue.Config[string]{}, queue.Config[string]{})
		var at []time.Time
		report, err := queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}, Rate: 2, Filter: func(e penstock.Event[string]) bool {
			if e.Value == "3" {
				time.Sleep(time.Minute)
			}
			at = append(at, time.Now())
			return true
		}})
		if err != nil || report.Redriven != 9 {
			t.Error(report, err)
		}
		for i := 5; i < 9; i++ {
			if d := at[i].Sub(at[i-1]); d < 500*time.Millisecond {
				t.Errorf("event %d came %v after the one before", i, d)
			}
		}
	})
}

// A rate that is far below one in a century is one: it used to be none.
func TestRedriveKeepsATinyRate(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		orders, _, from := deadLetters(t, s, 2, queue.Config[string]{}, queue.Config[string]{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		report, err := queue.Redrive(ctx, from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}, Rate: 1e-12})
		wantErr(t, err, context.DeadlineExceeded)
		if report.Redriven != 1 {
			t.Errorf("%d were sent within an hour", report.Redriven)
		}
	})
}
