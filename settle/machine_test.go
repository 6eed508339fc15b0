package settle_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

var (
	start    = time.Date(2026, 11, 29, 8, 0, 0, 0, time.UTC)
	errFirst = errors.New("timeout")
	errOther = errors.New("refused")
	plain    = settle.Policy{Attempts: 3, Backoff: settle.Backoff{Min: time.Second, Max: 10 * time.Second, Factor: 2, Jitter: -1}}
)

func newMachine(t testing.TB, c settle.Config) *settle.Machine {
	t.Helper()
	m, err := settle.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func next(t testing.TB, m *settle.Machine, at time.Duration, end penstock.Offset, max int) settle.Span {
	t.Helper()
	s, ok := m.Next(start.Add(at), end, max)
	if !ok {
		t.Fatalf("nothing to deliver at %v: %v", at, m.Blocked())
	}
	return s
}

func nothing(t testing.TB, m *settle.Machine, at time.Duration, end penstock.Offset) {
	t.Helper()
	if s, ok := m.Next(start.Add(at), end, 100); ok {
		t.Fatalf("delivered %+v at %v, want nothing", s, at)
	}
}

func mustSettle(t testing.TB, m *settle.Machine, at time.Duration, s settle.Span, outcomes ...settle.Outcome) {
	t.Helper()
	if err := m.Settle(start.Add(at), s, outcomes...); err != nil {
		t.Fatal(err)
	}
}

func wantSpan(t testing.TB, got, want settle.Span) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(settle.Span{}), cmpopts.EquateErrors()); diff != "" {
		t.Fatalf("span (-want +got):\n%s", diff)
	}
}

func wantCommit(t testing.TB, m *settle.Machine, want penstock.Offset) {
	t.Helper()
	if got := m.Committed(); got != want {
		t.Fatalf("committed %d, want %d", got, want)
	}
}

func TestBatchesInOrderMoveTheCommit(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Committed: 10})
	for at := penstock.Offset(10); at < 22; at += 4 {
		s := next(t, m, 0, 22, 4)
		wantSpan(t, s, settle.Span{From: at, To: at + 4, Attempt: 1})
		wantCommit(t, m, at)
		mustSettle(t, m, 0, s)
		wantCommit(t, m, at+4)
	}
	nothing(t, m, 0, 22)
	if b := m.Blocked(); b.Reason != settle.NotBlocked || b.String() != "" {
		t.Fatalf("blocked %v at the end of a healthy run", b)
	}
}

// The story of one bad event in a batch: its neighbours are settled, it comes
// again after 1 s and 2 s, then is handed over, and then the partition goes on.
func TestFailingEventIsRetriedThenHandedOver_FM55(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	s := next(t, m, 0, 100, 10)
	mustSettle(t, m, 0, s, settle.Outcome{From: 4, To: 5, Verdict: settle.Retry, Cause: errFirst})
	wantCommit(t, m, 4)
	if m.Unsettled() != 1 || m.InHand() != 0 || m.Delivered() != 10 {
		t.Fatalf("unsettled %d, in hand %d, delivered %d", m.Unsettled(), m.InHand(), m.Delivered())
	}
	nothing(t, m, 999*time.Millisecond, 100)
	if due, ok := m.Due(); !ok || !due.Equal(start.Add(time.Second)) {
		t.Fatalf("due %v, %v, want after 1 s", due, ok)
	}
	if got, want := m.Blocked().String(), "offset 4 waits for attempt 2 of 3: timeout"; got != want {
		t.Fatalf("blocked: %q, want %q", got, want)
	}
	s = next(t, m, time.Second, 100, 10)
	wantSpan(t, s, settle.Span{From: 4, To: 5, Attempt: 2})
	mustSettle(t, m, time.Second, s, settle.Outcome{From: 4, To: 5, Verdict: settle.Retry, Cause: errFirst})
	nothing(t, m, 2999*time.Millisecond, 100)
	s = next(t, m, 3*time.Second, 100, 10)
	wantSpan(t, s, settle.Span{From: 4, To: 5, Attempt: 3})
	mustSettle(t, m, 3*time.Second, s, settle.Outcome{From: 4, To: 5, Verdict: settle.Retry, Cause: errOther})

	s = next(t, m, 3*time.Second, 100, 10)
	wantSpan(t, s, settle.Span{From: 4, To: 5, Attempt: 3, DeadLetter: true, Cause: errOther})
	mustSettle(t, m, 3*time.Second, s, settle.Outcome{From: 4, To: 5, Verdict: settle.Retry, Cause: errFirst})
	wantCommit(t, m, 4)
	want := "offset 4 is given up after 3 attempts and waits to be handed over as a dead letter: timeout"
	if got := m.Blocked().String(); got != want {
		t.Fatalf("blocked: %q, want %q", got, want)
	}
	nothing(t, m, 3999*time.Millisecond, 100)
	s = next(t, m, 4*time.Second, 100, 10)
	wantSpan(t, s, settle.Span{From: 4, To: 5, Attempt: 3, DeadLetter: true, Cause: errOther})
	mustSettle(t, m, 4*time.Second, s)
	wantCommit(t, m, 10)
	wantSpan(t, next(t, m, 4*time.Second, 100, 10), settle.Span{From: 10, To: 20, Attempt: 1})
}

func TestEventsThatFailTogetherComeAgainTogether(t *testing.T) {
	c := settle.Config{Policy: plain, Rand: func() float64 { return 0.5 }}
	c.Policy.Backoff.Jitter = 0.5
	m := newMachine(t, c)
	s := next(t, m, 0, 100, 10)
	mustSettle(t, m, 0, s,
		settle.Outcome{From: 2, To: 3, Verdict: settle.Retry, Cause: errFirst},
		settle.Outcome{From: 3, To: 5, Verdict: settle.Retry, Cause: errOther},
		settle.Outcome{From: 7, To: 8, Verdict: settle.Retry})
	nothing(t, m, 749*time.Millisecond, 100)
	first := next(t, m, 750*time.Millisecond, 100, 10)
	wantSpan(t, first, settle.Span{From: 2, To: 5, Attempt: 2})
	second := next(t, m, 750*time.Millisecond, 100, 10)
	wantSpan(t, second, settle.Span{From: 7, To: 8, Attempt: 2})
	mustSettle(t, m, 0, second)
	wantCommit(t, m, 2)
	mustSettle(t, m, 0, first)
	wantCommit(t, m, 10)
}

func TestDeadLettersKeepTheirOwnCauses(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: settle.Policy{Attempts: 1}})
	mustSettle(t, m, 0, next(t, m, 0, 3, 3),
		settle.Outcome{From: 0, To: 1, Verdict: settle.Retry, Cause: errFirst},
		settle.Outcome{From: 1, To: 2, Verdict: settle.DeadLetter, Cause: errOther},
		settle.Outcome{From: 2, To: 3, Verdict: settle.Retry})
	for i, cause := range []error{errFirst, errOther} {
		s := next(t, m, 0, 3, 3)
		o := penstock.Offset(i)
		wantSpan(t, s, settle.Span{From: o, To: o + 1, Attempt: 1, DeadLetter: true, Cause: cause})
		mustSettle(t, m, 0, s)
	}
	if s := next(t, m, 0, 3, 3); s.Cause == nil {
		t.Error("a dead letter has no cause at all")
	}
}

func TestNeighboursOfAnotherAttemptOrLaterDueComeApart(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	retry := func(from penstock.Offset, after time.Duration) settle.Outcome {
		return settle.Outcome{From: from, To: from + 1, Verdict: settle.Retry, After: after, Cause: errFirst}
	}
	s := next(t, m, 0, 3, 3)
	mustSettle(t, m, 0, s, retry(0, time.Second), retry(1, time.Second), retry(2, 3*time.Second))
	s = next(t, m, time.Second, 3, 3)
	wantSpan(t, s, settle.Span{From: 0, To: 2, Attempt: 2}) // 2 is not due
	mustSettle(t, m, time.Second, s.Part(0, 1), retry(0, time.Second))
	mustSettle(t, m, time.Second, s.Part(1, 2), retry(1, time.Second))
	s = next(t, m, time.Minute, 3, 3)
	wantSpan(t, s, settle.Span{From: 0, To: 2, Attempt: 3}) // 2 waits for its second
	wantSpan(t, next(t, m, time.Minute, 3, 3), settle.Span{From: 2, To: 3, Attempt: 2})
}

func TestLongRetryIsCutToTheLargestBatch(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	mustSettle(t, m, 0, next(t, m, 0, 10, 10), settle.Outcome{From: 0, To: 10, Verdict: settle.Retry, After: time.Minute})
	for from := penstock.Offset(0); from < 10; from += 4 {
		s := next(t, m, time.Minute, 10, 4)
		wantSpan(t, s, settle.Span{From: from, To: min(from+4, 10), Attempt: 2})
	}
	if m.InHand() != 10 {
		t.Fatalf("%d in hand, want 10", m.InHand())
	}
}

func TestRetriesWithoutALimit(t *testing.T) {
	p := plain
	p.Attempts = -1
	m := newMachine(t, settle.Config{Policy: p})
	at := time.Duration(0)
	for attempt := 1; attempt <= 200; attempt++ {
		s := next(t, m, at, 1, 1)
		if s.Attempt != attempt || s.DeadLetter {
			t.Fatalf("span %+v, want attempt %d", s, attempt)
		}
		mustSettle(t, m, at, s, settle.Outcome{From: 0, To: 1, Verdict: settle.Retry, Cause: errFirst})
		at += 10 * time.Second
	}
	if got, want := m.Blocked().String(), "offset 0 waits for attempt 201: timeout"; got != want {
		t.Fatalf("blocked: %q, want %q", got, want)
	}
}

func TestLateAndDoubledSettlementsChangeNothing_FM58(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	first := next(t, m, 0, 100, 10)
	fail := settle.Outcome{From: 0, To: 10, Verdict: settle.Retry, Cause: errFirst}
	mustSettle(t, m, 0, first, fail)
	late := func(s settle.Span, outcomes ...settle.Outcome) {
		t.Helper()
		committed, unsettled, inHand := m.Committed(), m.Unsettled(), m.InHand()
		if err := m.Settle(start, s, outcomes...); !errors.Is(err, settle.ErrLate) {
			t.Fatalf("%v, want ErrLate", err)
		}
		if m.Committed() != committed || m.Unsettled() != unsettled || m.InHand() != inHand {
			t.Fatal("a late settlement changed something")
		}
	}
	late(first)
	second := next(t, m, time.Second, 100, 10)
	late(first) // attempt 1 ends well while attempt 2 is in hand
	late(first.Part(3, 5), settle.Outcome{From: 3, To: 5, Verdict: settle.DeadLetter})
	mustSettle(t, m, time.Second, second)
	late(second, settle.Outcome{From: 0, To: 10, Verdict: settle.Fault})
	wantCommit(t, m, 10)
	if m.Fault() != nil {
		t.Fatal("a late fault stopped the machine")
	}
	late(settle.Span{From: 10, To: 11})
}

func TestPartsOfASpanSettleInAnyOrder_FM73(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	s := next(t, m, 0, 10, 10)
	mustSettle(t, m, 0, s.Part(3, 5))
	mustSettle(t, m, 0, s.Part(8, 10))
	wantCommit(t, m, 0)
	mustSettle(t, m, 0, s.Part(0, 4)) // 3 was settled before
	wantCommit(t, m, 5)
	mustSettle(t, m, 0, s.Part(6, 7), settle.Outcome{From: 6, To: 7, Verdict: settle.Retry})
	mustSettle(t, m, 0, s)
	wantCommit(t, m, 6)
	mustSettle(t, m, 0, next(t, m, time.Second, 10, 10))
	wantCommit(t, m, 10)
}

func TestStuckEventCannotGrowTheWindow_FM73(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Committed: 7})
	stuck := next(t, m, 0, 1<<40, 1)
	for {
		s, ok := m.Next(start, 7+settle.WindowMax+1, 100)
		if !ok {
			break
		}
		mustSettle(t, m, 0, s)
	}
	if m.Delivered() != 7+settle.WindowMax {
		t.Fatalf("delivered up to %d, want %d", m.Delivered(), 7+settle.WindowMax)
	}
	if b := m.Blocked(); b.Reason != settle.WindowFull || b.Offset != 7 || !strings.Contains(b.String(), "offset 7 is not settled") {
		t.Fatalf("blocked: %+v %v", b, b)
	}
	if n := len(m.AppendCompleted(nil)); n != settle.CompletedMax {
		t.Fatalf("completed takes %d bytes, want %d", n, settle.CompletedMax)
	}
	mustSettle(t, m, 0, stuck)
	wantCommit(t, m, 7+settle.WindowMax)
	if m.Blocked().Reason != settle.NotBlocked || m.AppendCompleted(nil) != nil {
		t.Fatalf("still blocked: %v", m.Blocked())
	}
}

func TestFaultStopsDelivery(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	s := next(t, m, 0, 10, 5)
	other := next(t, m, 0, 10, 5)
	mustSettle(t, m, 0, s, settle.Outcome{From: 2, To: 3, Verdict: settle.Fault, Cause: errOther})
	nothing(t, m, time.Hour, 100)
	if _, ok := m.Due(); ok {
		t.Error("something is due after a fault")
	}
	mustSettle(t, m, 0, other)
	wantCommit(t, m, 2)
	if !errors.Is(m.Fault(), errOther) || m.Blocked().String() != "stopped by a fault at offset 2: refused" {
		t.Errorf("fault %v, blocked %v", m.Fault(), m.Blocked())
	}
}

func TestRestoredCompletionsAreNotDeliveredAgain(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Committed: 100})
	s := next(t, m, 0, 200, 20)
	mustSettle(t, m, 0, s,
		settle.Outcome{From: 103, To: 105, Verdict: settle.Retry}, settle.Outcome{From: 110, To: 111, Verdict: settle.Retry})
	stored := m.AppendCompleted([]byte("before"))[len("before"):]

	m = newMachine(t, settle.Config{Policy: plain, Committed: m.Committed(), Completed: stored})
	wantCommit(t, m, 103)
	if again := m.AppendCompleted(nil); !cmp.Equal(again, stored) {
		t.Fatalf("completed %x after a restart, want %x", again, stored)
	}
	a := next(t, m, 0, 200, 50)
	wantSpan(t, a, settle.Span{From: 103, To: 105, Attempt: 1})
	b := next(t, m, 0, 200, 50)
	wantSpan(t, b, settle.Span{From: 110, To: 111, Attempt: 1})
	wantSpan(t, next(t, m, 0, 200, 50), settle.Span{From: 120, To: 170, Attempt: 1})
	mustSettle(t, m, 0, b)
	wantCommit(t, m, 103)
	mustSettle(t, m, 0, a)
	wantCommit(t, m, 120)
}

func TestRestoredCompletionAtTheCommitIsSkipped(t *testing.T) {
	m := newMachine(t, settle.Config{Committed: 5, Completed: []byte{0b1011}})
	wantCommit(t, m, 7)
	wantSpan(t, next(t, m, 0, 100, 100), settle.Span{From: 7, To: 8, Attempt: 1})
	wantSpan(t, next(t, m, 0, 12, 100), settle.Span{From: 9, To: 12, Attempt: 1})
}

func TestOffsetsNearTheEdges_FM104(t *testing.T) {
	for _, base := range []penstock.Offset{1<<31 - 2, 1<<32 - 2, 1<<63 - 2, 1<<64 - 1 - settle.WindowMax, 1<<64 - 3} {
		m := newMachine(t, settle.Config{Policy: plain, Committed: base})
		s := next(t, m, 0, base+2, 100)
		wantSpan(t, s, settle.Span{From: base, To: base + 2, Attempt: 1})
		mustSettle(t, m, 0, s, settle.Outcome{From: base, To: base + 1, Verdict: settle.Retry})
		mustSettle(t, m, 0, next(t, m, time.Second, base+2, 100))
		wantCommit(t, m, base+2)
	}
}

func TestEndBelowTheCommitDeliversNothing(t *testing.T) {
	m := newMachine(t, settle.Config{Committed: 10})
	nothing(t, m, 0, 3)
	nothing(t, m, 0, 10)
	if _, ok := m.Next(start, 20, 0); ok {
		t.Error("a batch of none was delivered")
	}
}

func TestOutcomesThatDoNotFitPanic(t *testing.T) {
	for name, outcomes := range map[string][]settle.Outcome{
		"before":   {{From: 0, To: 11}},
		"behind":   {{From: 19, To: 21}},
		"empty":    {{From: 12, To: 12}},
		"reversed": {{From: 13, To: 12}},
		"overlap":  {{From: 12, To: 14}, {From: 13, To: 15}},
		"disorder": {{From: 15, To: 16}, {From: 12, To: 13}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, settle.Config{Committed: 10})
			s := next(t, m, 0, 20, 10)
			defer func() {
				if msg, _ := recover().(string); !strings.HasPrefix(msg, "settle: ") {
					t.Errorf("panic %q, want one that begins with the package", msg)
				}
			}()
			_ = m.Settle(start, s, outcomes...)
		})
	}
}

func TestWholeBatchesInOrderAllocateNothing(t *testing.T) {
	m := newMachine(t, settle.Config{})
	end := penstock.Offset(0)
	if n := testing.AllocsPerRun(1000, func() {
		end += 100
		s, _ := m.Next(start, end, 100)
		_ = m.Settle(start, s)
		if m.Committed() != end || len(m.AppendCompleted(nil)) != 0 {
			t.Fatal("not committed")
		}
	}); n != 0 {
		t.Fatalf("%v allocations per batch, want 0", n)
	}
}

func BenchmarkSettle(b *testing.B) {
	b.Run("in-order", func(b *testing.B) {
		m := newMachine(b, settle.Config{})
		end := penstock.Offset(0)
		b.ReportAllocs()
		for b.Loop() {
			end += 100
			s, _ := m.Next(start, end, 100)
			_ = m.Settle(start, s)
		}
	})
	b.Run("one-failed", func(b *testing.B) {
		m := newMachine(b, settle.Config{})
		end, now := penstock.Offset(0), start
		b.ReportAllocs()
		for b.Loop() {
			end += 100
			now = now.Add(time.Second)
			s, _ := m.Next(now, end, 100)
			_ = m.Settle(now, s, settle.Outcome{From: s.From + 1, To: s.From + 2, Verdict: settle.Retry, Cause: errFirst})
			now = now.Add(time.Second)
			s, _ = m.Next(now, end, 100)
			_ = m.Settle(now, s)
		}
	})
}
