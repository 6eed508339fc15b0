package settle_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/settle"
)

// parking returns Parking for events whose keys are the words of keys, "-" for
// none, again and again; each has size bytes.
func parking(size penstock.Bytes, keys string) *settle.Parking {
	words := strings.Fields(keys)
	return &settle.Parking{
		Key:  func(o penstock.Offset) string { return strings.TrimPrefix(words[int(o)%len(words)], "-") },
		Size: func(penstock.Offset) penstock.Bytes { return size },
	}
}

func park(o penstock.Offset) settle.Outcome {
	return settle.Outcome{From: o, To: o + 1, Verdict: settle.Park, After: time.Minute, Cause: errFirst}
}

func nextParked(t testing.TB, m *settle.Machine, at time.Duration) settle.Span {
	t.Helper()
	s, ok := m.NextParked(start.Add(at))
	if !ok {
		due, has := m.ParkedDue()
		t.Fatalf("no parked event at %v; due %v, %v", at, due, has)
	}
	return s
}

func nothingParked(t testing.TB, m *settle.Machine, at time.Duration) {
	t.Helper()
	if s, ok := m.NextParked(start.Add(at)); ok {
		t.Fatalf("delivered %+v at %v, want no parked event", s, at)
	}
}

// logAll confirms all entries and returns them.
func logAll(m *settle.Machine) []settle.Entry {
	out := append([]settle.Entry(nil), m.Unlogged()...)
	if n := len(out); n > 0 {
		m.Logged(out[n-1].Seq)
	}
	return out
}

func wantEntries(t testing.TB, got []settle.Entry, want ...settle.Entry) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors(), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("entries (-want +got):\n%s", diff)
	}
}

// The story of a key that fails for long: its event waits once in its place,
// then moves to the retry log, later ones of the key follow, all else goes on.
func TestFailingKeyIsParkedWithItsFollowers_FM55(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(10, "a b")})
	s := next(t, m, 0, 4, 4)
	retry := settle.Outcome{From: 0, To: 1, Verdict: settle.Retry, Cause: errFirst}
	mustSettle(t, m, 0, s, retry) // 1 s is not longer than the default of After
	nothing(t, m, 0, 4)
	s = next(t, m, time.Second, 4, 4)
	wantSpan(t, s, settle.Span{From: 0, To: 1, Attempt: 2})
	mustSettle(t, m, time.Second, s, retry)

	wantCommit(t, m, 0) // nothing has passed to the retry log yet
	due := start.Add(3 * time.Second)
	wantEntries(t, m.Unlogged(), settle.Entry{Seq: 1, Offset: 0, Key: "a", Size: 10, New: true, Attempt: 2, Due: due, Cause: errFirst})
	s = next(t, m, time.Second, 8, 4) // 4 has the key
	wantSpan(t, s, settle.Span{From: 5, To: 6, Attempt: 1})
	mustSettle(t, m, time.Second, s)
	wantEntries(t, m.Unlogged()[1:], settle.Entry{Seq: 2, Offset: 4, Key: "a", Size: 10, New: true})
	m.Logged(1)
	wantCommit(t, m, 4)
	m.Logged(2)
	wantCommit(t, m, 6)
	if p := m.Parked(); p != (settle.Parked{Keys: 1, Events: 2, Bytes: 20}) || m.Unsettled() != 0 {
		t.Fatalf("parked %+v, unsettled %d", p, m.Unsettled())
	}

	nothingParked(t, m, 2999*time.Millisecond)
	head := nextParked(t, m, 3*time.Second)
	wantSpan(t, head, settle.Span{From: 0, To: 1, Attempt: 3, Parked: true})
	nothingParked(t, m, time.Hour) // its key has one in hand
	mustSettle(t, m, 3*time.Second, head)
	follower := nextParked(t, m, 3*time.Second)
	wantSpan(t, follower, settle.Span{From: 4, To: 5, Attempt: 1, Parked: true})
	mustSettle(t, m, 3*time.Second, follower)
	wantEntries(t, m.Unlogged(),
		settle.Entry{Seq: 3, Offset: 0, Key: "a", Size: 10, Gone: true}, settle.Entry{Seq: 4, Offset: 4, Key: "a", Size: 10, Gone: true})

	// A crash would repeat 0 and 4 now, so 6 has to come behind them.
	wantSpan(t, next(t, m, 0, 8, 4), settle.Span{From: 7, To: 8, Attempt: 1})
	wantEntries(t, m.Unlogged()[2:], settle.Entry{Seq: 5, Offset: 6, Key: "a", Size: 10, New: true})
	logAll(m)
	s = nextParked(t, m, 3*time.Second)
	wantSpan(t, s, settle.Span{From: 6, To: 7, Attempt: 1, Parked: true})
	mustSettle(t, m, 3*time.Second, s)
	logAll(m)
	if p := m.Parked(); p != (settle.Parked{}) {
		t.Fatalf("parked %+v, want nothing", p)
	}
	wantSpan(t, next(t, m, 0, 12, 4), settle.Span{From: 8, To: 12, Attempt: 1})
}

func TestWhichRetriesPark(t *testing.T) {
	for name, c := range map[string]struct {
		after   time.Duration
		outcome settle.Outcome
		parks   bool
	}{
		"delay of After":               {time.Minute, settle.Outcome{Verdict: settle.Retry, After: time.Minute}, false},
		"longer delay":                 {time.Minute, settle.Outcome{Verdict: settle.Retry, After: time.Minute + 1}, true},
		"backoff of After":             {time.Second, settle.Outcome{Verdict: settle.Retry}, false},
		"longer backoff":               {time.Second - 1, settle.Outcome{Verdict: settle.Retry}, true},
		"longer than the default":      {0, settle.Outcome{Verdict: settle.Retry, After: time.Second + 1}, true},
		"only by verdict":              {-1, settle.Outcome{Verdict: settle.Retry, After: time.Hour}, false},
		"verdict with a short delay":   {time.Hour, settle.Outcome{Verdict: settle.Park, After: 1}, true},
		"verdict with the own backoff": {-1, settle.Outcome{Verdict: settle.Park}, true},
		"given up":                     {1, settle.Outcome{Verdict: settle.DeadLetter, After: time.Hour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := parking(1, "a")
			p.After = c.after
			policy := plain
			policy.Backoff.Jitter = 0.9 // does not count
			m := newMachine(t, settle.Config{Policy: policy, Parking: p, Rand: func() float64 { return 0.5 }})
			c.outcome.From, c.outcome.To = 0, 1
			mustSettle(t, m, 0, next(t, m, 0, 1, 1), c.outcome)
			if got := m.Parked().Events == 1; got != c.parks {
				t.Fatalf("parked %v, want %v", got, c.parks)
			}
		})
	}
}

func TestParkWithoutParkingIsRetry(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain})
	mustSettle(t, m, 0, next(t, m, 0, 5, 5), park(2))
	nothing(t, m, 59*time.Second, 9)
	wantSpan(t, next(t, m, time.Minute, 9, 5), settle.Span{From: 2, To: 3, Attempt: 2})
	nothingParked(t, m, time.Hour)
	if _, ok := m.ParkedDue(); ok || m.Unlogged() != nil || m.AppendParked(nil) != nil || m.Parked() != (settle.Parked{}) {
		t.Fatal("something is parked")
	}
	m.Logged(0)
	if err := m.Settle(start, settle.Span{From: 2, To: 3, Parked: true}); !errors.Is(err, settle.ErrLate) {
		t.Fatalf("%v, want ErrLate", err)
	}
	if got := settle.Park.String(); got != "park" {
		t.Fatalf("verdict %q", got)
	}
}

// The head is handed over after its last attempt, and only when that worked
// its followers go on.
func TestExhaustedHeadIsHandedOverAndFollowersGoOn_FM55(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: settle.Policy{Attempts: 2, Backoff: plain.Backoff}, Parking: parking(1, "a")})
	mustSettle(t, m, 0, next(t, m, 0, 2, 2), park(0), park(1))
	logAll(m)
	at := time.Minute
	s := nextParked(t, m, at)
	wantSpan(t, s, settle.Span{From: 0, To: 1, Attempt: 2, Parked: true})
	fail := settle.Outcome{From: 0, To: 1, Verdict: settle.Retry, Cause: errOther}
	mustSettle(t, m, at, s, fail)
	wantEntries(t, logAll(m), settle.Entry{Seq: 3, Offset: 0, Key: "a", Size: 1, Attempt: 2, Dead: true, Cause: errOther})
	s = nextParked(t, m, at)
	wantSpan(t, s, settle.Span{From: 0, To: 1, Attempt: 2, Parked: true, DeadLetter: true, Cause: errOther})
	mustSettle(t, m, at, s, fail) // was not taken
	nothingParked(t, m, at+time.Second)
	wantEntries(t, logAll(m), settle.Entry{Seq: 4, Offset: 0, Key: "a", Size: 1, Attempt: 2, Dead: true, HandOver: 1, Due: start.Add(at + time.Second), Cause: errOther})
	nothingParked(t, m, at+999*time.Millisecond)

	p := parking(1, "a")
	p.Log = m.AppendParked(nil)
	after := newMachine(t, settle.Config{Policy: plain, Committed: 2, Parking: p})
	wantEntries(t, after.AppendParked(nil), p.Log...)

	mustSettle(t, m, at, nextParked(t, m, at+time.Second))
	wantSpan(t, nextParked(t, m, at+time.Second), settle.Span{From: 1, To: 2, Attempt: 2, Parked: true})
}

// An attempt comes only when the log has the one before it, so that a restart
// does not count from the beginning.
func TestAttemptsOfParkedEventsAreLoggedFirst_FM55(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a")})
	mustSettle(t, m, 0, next(t, m, 0, 1, 1), park(0))
	nothingParked(t, m, time.Hour) // is not even there yet
	logAll(m)
	mustSettle(t, m, time.Hour, nextParked(t, m, time.Hour), park(0))
	nothingParked(t, m, 2*time.Hour)
	logAll(m)
	wantSpan(t, nextParked(t, m, 2*time.Hour), settle.Span{From: 0, To: 1, Attempt: 3, Parked: true})
}

func TestParkedKeysComeByDueTime(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a b c a b c")})
	after := func(o penstock.Offset, d time.Duration) settle.Outcome {
		return settle.Outcome{From: o, To: o + 1, Verdict: settle.Park, After: d, Cause: errFirst}
	}
	mustSettle(t, m, 0, next(t, m, 0, 3, 3), after(0, 3*time.Second), after(1, time.Second), after(2, 2*time.Second))
	nothing(t, m, 0, 6) // they follow
	logAll(m)
	var got []string
	for range 10 {
		due, ok := m.ParkedDue()
		if !ok {
			break
		}
		s, ok := m.NextParked(due)
		if !ok {
			t.Fatal("due and not delivered")
		}
		got = append(got, fmt.Sprint(s.From))
		if s.From != 1 {
			mustSettle(t, m, due.Sub(start), s)
		}
	}
	// 4 stays behind 1, which stays in hand. Followers are due at once.
	if want := "1 2 5 0 3"; strings.Join(got, " ") != want {
		t.Fatalf("order %v, want %s", got, want)
	}
}

func TestEventParkedAfterALaterOneOfItsKeyComesFirst(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a")})
	s := next(t, m, 0, 3, 3)
	for _, o := range []penstock.Offset{1, 2, 0} {
		mustSettle(t, m, 0, s.Part(o, o+1), park(o))
		if o != 2 { // is logged together with 0
			logAll(m)
		}
		if o != 0 { // 0 is in hand
			nothingParked(t, m, time.Hour)
		}
	}
	wantCommit(t, m, 3)
	for o := range penstock.Offset(3) {
		s := nextParked(t, m, time.Hour)
		wantSpan(t, s, settle.Span{From: o, To: o + 1, Attempt: 2, Parked: true})
		mustSettle(t, m, time.Hour, s)
	}
}

func TestEventsWithoutAKeyAreParkedAlone(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "-")})
	mustSettle(t, m, 0, next(t, m, 0, 2, 2), park(0), park(1))
	wantSpan(t, next(t, m, 0, 5, 5), settle.Span{From: 2, To: 5, Attempt: 1})
	logAll(m)
	if p := m.Parked(); p.Keys != 2 || p.Events != 2 {
		t.Fatalf("parked %+v, want two keys", p)
	}
	first := nextParked(t, m, time.Hour)
	second := nextParked(t, m, time.Hour) // does not wait for the other
	mustSettle(t, m, time.Hour, second)
	mustSettle(t, m, time.Hour, first)
}

func TestRetryLogTakesTenThousandEvents(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a b")})
	mustSettle(t, m, 0, next(t, m, 0, 2, 2), park(0), park(1))
	end := penstock.Offset(1 << 40)
	for range 10 { // the window passes as the log takes what it is given
		nothing(t, m, 0, end)
		if m.Blocked().Reason != settle.NotLogged {
			break
		}
		if want := "offset 0 is parked and not stored in the retry log yet, and holds the 4096 offsets behind it, which is the limit"; m.Committed() == 0 && m.Blocked().String() != want {
			t.Fatalf("blocked %q, want %q", m.Blocked(), want)
		}
		logAll(m)
	}
	if p := m.Parked(); p.Events != settle.ParkedEventsMax || m.Position() != settle.ParkedEventsMax {
		t.Fatalf("parked %+v, position %d", p, m.Position())
	}
	if got, want := m.Blocked().String(), "offset 10000 comes behind offset 0, which has its key and is parked, and the retry log has no room for it"; got != want {
		t.Fatalf("blocked %q, want %q", got, want)
	}
	logAll(m)
	wantCommit(t, m, 10_000)
	nothing(t, m, 0, end)
	mustSettle(t, m, time.Hour, nextParked(t, m, time.Hour))
	nothing(t, m, time.Hour, end) // it leaves the log when the log knows
	if m.Parked().Events != settle.ParkedEventsMax-1 {
		t.Fatalf("parked %+v", m.Parked())
	}
	logAll(m)
	nothing(t, m, time.Hour, end)
	if m.Position() != 10_001 || m.Parked().Events != settle.ParkedEventsMax {
		t.Fatalf("position %d, parked %+v, want one more", m.Position(), m.Parked())
	}
}

func TestRetryLogTakes64MiB(t *testing.T) {
	for _, c := range []struct {
		size penstock.Bytes
		want int
	}{{penstock.MiB, 64}, {penstock.MiB + 1, 63}, {(64*penstock.MiB + 1) / 5, 4}, {64 * penstock.MiB, 1}} {
		m := newMachine(t, settle.Config{Policy: plain, Parking: parking(c.size, "a")})
		mustSettle(t, m, 0, next(t, m, 0, 1, 1), park(0))
		nothing(t, m, 0, 1000)
		if p := m.Parked(); p.Events != c.want || p.Bytes != penstock.Bytes(c.want)*c.size || m.Blocked().Reason != settle.RetryLogFull {
			t.Errorf("size %v: parked %+v, blocked %v, want %d events", c.size, p, m.Blocked(), c.want)
		}
	}
}

func TestWhatFindsNoRoomWaitsInItsPlace(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(40*penstock.MiB, "a b")})
	s := next(t, m, 0, 3, 3)
	mustSettle(t, m, 0, s, park(0), park(1), park(2))
	logAll(m)
	wantCommit(t, m, 1)
	if got, want := m.Blocked().String(), "offset 1 waits for attempt 2 of 3 in its place, because the retry log had no room for it: timeout"; got != want {
		t.Fatalf("blocked %q, want %q", got, want)
	}
	s = next(t, m, time.Minute, 3, 1)
	wantSpan(t, s, settle.Span{From: 1, To: 2, Attempt: 2})
	mustSettle(t, m, time.Minute, s, settle.Outcome{From: 1, To: 2, Verdict: settle.Retry, After: 1, Cause: errFirst})
	if got, want := m.Blocked().String(), "offset 1 waits for attempt 3 of 3: timeout"; got != want { // and would have without a log
		t.Fatalf("blocked %q, want %q", got, want)
	}
	mustSettle(t, m, time.Minute, next(t, m, time.Minute+1, 3, 1))
	nothing(t, m, time.Minute, 3) // 2 follows 0
	if _, ok := m.Due(); ok || m.Blocked().Reason != settle.RetryLogFull {
		t.Fatalf("something is due although %v", m.Blocked())
	}
	mustSettle(t, m, time.Minute, nextParked(t, m, time.Minute))
	logAll(m)
	wantSpan(t, next(t, m, time.Minute, 3, 1), settle.Span{From: 2, To: 3, Attempt: 2}) // in its place: 0 is gone
}

func TestEarlierRetryIsNotHiddenByAFullLog(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(40*penstock.MiB, "b a")})
	first := next(t, m, 0, 4, 1)
	mustSettle(t, m, 0, next(t, m, 0, 4, 1), park(1))
	mustSettle(t, m, 0, next(t, m, 0, 4, 2)) // 2; 3 follows 1
	nothing(t, m, 0, 4)
	if b := m.Blocked(); b.Reason != settle.RetryLogFull || b.Offset != 3 || b.Behind != 1 {
		t.Fatalf("blocked %+v, want offset 3 behind offset 1", b)
	}
	mustSettle(t, m, 0, first, settle.Outcome{From: 0, To: 1, Verdict: settle.Retry, Cause: errFirst})
	if due, ok := m.Due(); !ok || !due.Equal(start.Add(time.Second)) || m.Blocked().Reason != settle.Retrying {
		t.Fatalf("due %v, %v, blocked %v, want the retry of 0", due, ok, m.Blocked())
	}
	wantSpan(t, next(t, m, time.Second, 4, 4), settle.Span{From: 0, To: 1, Attempt: 2})
}

// An event that is larger than the whole bound is never parked; those of its
// key that are parked after it wait for it, and not it for them.
func TestOversizedEventIsNotStuckBehindItsFollowers(t *testing.T) {
	p := parking(0, "a")
	p.Size = func(o penstock.Offset) penstock.Bytes {
		if o == 0 {
			return settle.ParkedBytesMax + 1
		}
		return 1
	}
	m := newMachine(t, settle.Config{Policy: plain, Parking: p})
	s := next(t, m, 0, 2, 2)
	mustSettle(t, m, 0, s.Part(1, 2), park(1))
	mustSettle(t, m, 0, s.Part(0, 1), park(0))
	logAll(m)
	nothingParked(t, m, time.Hour)
	s = next(t, m, time.Hour, 2, 2)
	wantSpan(t, s, settle.Span{From: 0, To: 1, Attempt: 2})
	nothingParked(t, m, time.Hour)
	mustSettle(t, m, time.Hour, s)
	mustSettle(t, m, time.Hour, nextParked(t, m, time.Hour))
	wantCommit(t, m, 2)
}

func TestFollowersAmongRetriesArePartedFromTheRest(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a a b a a")})
	s := next(t, m, 0, 5, 5)
	retry := settle.Outcome{From: 1, To: 5, Verdict: settle.Retry, Cause: errFirst}
	mustSettle(t, m, 0, s, park(0), retry)
	nothing(t, m, time.Second, 1) // nothing that can be read
	s = next(t, m, time.Second, 5, 5)
	wantSpan(t, s, settle.Span{From: 2, To: 3, Attempt: 2})
	nothing(t, m, time.Second, 4)
	if m.Position() != 4 { // no further than it was allowed to look
		t.Fatalf("position %d, want 4", m.Position())
	}
	nothing(t, m, time.Second, 5)
	mustSettle(t, m, 0, s)
	logAll(m)
	wantCommit(t, m, 5)
	var got []string
	for range 4 {
		s := nextParked(t, m, time.Minute)
		got = append(got, fmt.Sprintf("%d:%d", s.From, s.Attempt))
		mustSettle(t, m, time.Minute, s)
	}
	if want := "0:2 1:2 3:2 4:2"; strings.Join(got, " ") != want {
		t.Fatalf("offset:attempt %v, want %s", got, want)
	}
}

func TestLateSettlementsOfParkedEventsChangeNothing_FM58(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a")})
	ordinary := next(t, m, 0, 1, 1)
	mustSettle(t, m, 0, ordinary, park(0))
	logAll(m)
	first := nextParked(t, m, time.Minute)
	mustSettle(t, m, time.Minute, first, park(0))
	logAll(m)
	late := func(s settle.Span, outcomes ...settle.Outcome) {
		t.Helper()
		before := m.AppendParked(nil)
		if err := m.Settle(start, s, outcomes...); !errors.Is(err, settle.ErrLate) {
			t.Fatalf("%v, want ErrLate", err)
		}
		wantEntries(t, m.AppendParked(nil), before...)
		wantEntries(t, m.Unlogged())
	}
	late(first)
	late(ordinary)
	second := nextParked(t, m, time.Hour)
	late(first, park(0))
	mustSettle(t, m, time.Hour, second)
	if err := m.Settle(start, second, park(0)); !errors.Is(err, settle.ErrLate) {
		t.Fatalf("%v, want ErrLate", err)
	}
	logAll(m)
	late(second, settle.Outcome{From: 0, To: 1, Verdict: settle.Fault})
}

func TestFaultOfAParkedEventStopsAll(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a b")})
	mustSettle(t, m, 0, next(t, m, 0, 2, 2), park(0), park(1))
	logAll(m)
	mustSettle(t, m, time.Hour, nextParked(t, m, time.Hour), settle.Outcome{From: 0, To: 1, Verdict: settle.Fault, Cause: errOther})
	nothing(t, m, time.Hour, 9)
	nothingParked(t, m, time.Hour)
	if _, ok := m.ParkedDue(); ok || !errors.Is(m.Fault(), errOther) || m.Parked().Events != 2 || m.Parked().InHand != 0 {
		t.Fatalf("fault %v, parked %+v", m.Fault(), m.Parked())
	}
}

func TestLoggedIsMonotonic(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a b c")})
	mustSettle(t, m, 0, next(t, m, 0, 3, 3), park(0), park(1), park(2))
	m.Logged(2)
	wantCommit(t, m, 2)
	m.Logged(2)
	m.Logged(1)
	m.Logged(0)
	wantCommit(t, m, 2)
	if u := m.Unlogged(); len(u) != 1 || u[0].Seq != 3 {
		t.Fatalf("unlogged %+v", u)
	}
	m.Logged(3)
	wantCommit(t, m, 3)
	for name, f := range map[string]func(){
		"beyond":          func() { m.Logged(4) },
		"without parking": func() { newMachine(t, settle.Config{}).Logged(1) },
	} {
		func() {
			defer func() {
				if msg, _ := recover().(string); !strings.HasPrefix(msg, "settle: ") {
					t.Errorf("%s: panic %q, want one that begins with the package", name, msg)
				}
			}()
			f()
		}()
	}
}

// The log may know more than the stored commit, which may be old.
func TestRestoredKeysWaitForWhatComesAgainBeforeThem(t *testing.T) {
	m := newMachine(t, settle.Config{Policy: plain, Parking: parking(1, "a")})
	for range 2 {
		mustSettle(t, m, 0, next(t, m, 0, 10_000, 4000))
	}
	mustSettle(t, m, 0, next(t, m, 0, 10_000, 1), park(8000))
	nothing(t, m, 0, 8003)
	log := logAll(m)
	wantCommit(t, m, 8003)

	p := parking(1, "a")
	p.Log = log
	m = newMachine(t, settle.Config{Policy: plain, Parking: p}) // from the beginning
	if n := len(m.AppendCompleted(nil)); n != 0 {
		t.Fatalf("completed takes %d bytes for what lies beyond the window", n)
	}
	for at := penstock.Offset(0); at < 8000; at += 4000 {
		nothingParked(t, m, time.Hour)
		s := next(t, m, 0, 10_000, 4000)
		wantSpan(t, s, settle.Span{From: at, To: at + 4000, Attempt: 1})
		nothingParked(t, m, time.Hour)
		mustSettle(t, m, 0, s)
	}
	wantCommit(t, m, 8003)
	for o := penstock.Offset(8000); o < 8003; o++ {
		s := nextParked(t, m, time.Hour)
		if s.From != o {
			t.Fatalf("parked %+v, want offset %d", s, o)
		}
		mustSettle(t, m, time.Hour, s)
	}
}

func TestParkedBeyondTheWindowIsNotStoredAsCompleted_FM73(t *testing.T) {
	p := parking(1, "a")
	for o := range penstock.Offset(10) {
		p.Log = append(p.Log, settle.Entry{Offset: settle.WindowMax - 5 + o, Key: "a", Size: 1})
	}
	m := newMachine(t, settle.Config{Policy: plain, Parking: p})
	b := m.AppendCompleted(nil)
	if len(b) != settle.CompletedMax || b[len(b)-1] != 0b1111_1000 {
		t.Fatalf("completed takes %d bytes, want %d with the last 5 bits set", len(b), settle.CompletedMax)
	}
}

func TestWhatExceedsALowerBoundIsKept(t *testing.T) {
	p := parking(10, "a b c")
	for o := range penstock.Offset(3) {
		p.Log = append(p.Log, settle.Entry{Offset: o, Key: string(rune('a' + o)), Size: 10, Attempt: 1, Dead: o == 2})
	}
	budget, err := demand.NewBudget(demand.BudgetConfig{Events: 2})
	if err != nil {
		t.Fatal(err)
	}
	p.Budget = budget
	m := newMachine(t, settle.Config{Policy: plain, Committed: 3, Parking: p})
	if got := m.Parked(); got != (settle.Parked{Keys: 3, Events: 3, Bytes: 30}) {
		t.Fatalf("parked %+v", got)
	}
	nothing(t, m, 0, 4)
	if m.Blocked().Reason != settle.RetryLogFull {
		t.Fatalf("blocked %v", m.Blocked())
	}
	for range 3 {
		s := nextParked(t, m, 0)
		if s.DeadLetter && s.Cause == nil {
			t.Fatal("a dead letter has no cause at all")
		}
		mustSettle(t, m, 0, s)
	}
	logAll(m)
	if n, _ := budget.Available(); n != 2 {
		t.Fatalf("%d events are free, want 2", n)
	}
}

func TestParkingRefusesWhatIsWrong(t *testing.T) {
	good := parking(1, "a")
	entry := func(e settle.Entry) *settle.Parking {
		return &settle.Parking{Key: good.Key, Log: []settle.Entry{{}, e}}
	}
	for name, c := range map[string]struct {
		field string
		p     *settle.Parking
	}{
		"no Key":  {"Parking.Key", &settle.Parking{}},
		"attempt": {"Parking.Log", entry(settle.Entry{Attempt: -1})},
		"hand":    {"Parking.Log", entry(settle.Entry{HandOver: -1})},
		"size":    {"Parking.Log", entry(settle.Entry{Size: -1})},
		"offset":  {"Parking.Log", entry(settle.Entry{Offset: 1<<64 - 1})},
	} {
		_, err := settle.New(settle.Config{Parking: c.p})
		if f, ok := errors.AsType[*penstock.FieldError](err); !errors.Is(err, penstock.ErrInvalid) || !ok || f.Field != c.field {
			t.Errorf("%s: %v, want ErrInvalid of %s", name, err, c.field)
		}
	}
}

// A group that could park and has nothing parked pays nothing and is not asked
// for keys.
func TestParkingCostsNothingWhileNothingIsParked(t *testing.T) {
	m := newMachine(t, settle.Config{Parking: &settle.Parking{Key: func(o penstock.Offset) string {
		t.Fatalf("asked for the key of offset %d", o)
		return ""
	}}})
	end := penstock.Offset(0)
	if n := testing.AllocsPerRun(1000, func() {
		end += 100
		s, _ := m.Next(start, end, 100)
		_ = m.Settle(start, s)
		if _, ok := m.NextParked(start); ok || m.Committed() != end || m.Unlogged() != nil {
			t.Fatal("not committed")
		}
	}); n != 0 {
		t.Fatalf("%v allocations per batch, want 0", n)
	}
}

func BenchmarkParked(b *testing.B) {
	for _, keys := range []int{1, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			m := newMachine(b, settle.Config{Policy: settle.Policy{Attempts: -1}, Parking: &settle.Parking{
				Key: func(o penstock.Offset) string { return fmt.Sprint(o) }}})
			s := next(b, m, 0, penstock.Offset(keys), keys)
			mustSettle(b, m, 0, s, settle.Outcome{From: s.From, To: s.To, Verdict: settle.Park, After: 1})
			logAll(m)
			now := start
			b.ReportAllocs()
			for b.Loop() { // one attempt of one parked event
				now = now.Add(time.Second)
				s, _ := m.NextParked(now)
				_ = m.Settle(now, s, settle.Outcome{From: s.From, To: s.To, Verdict: settle.Retry, After: 1, Cause: errFirst})
				m.Logged(m.Unlogged()[0].Seq)
			}
		})
	}
}
