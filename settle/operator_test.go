package settle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/settle"
)

var errDiscarded = errors.New("discarded")

// An operator who has repaired the cause does not wait for the backoff: the
// key's events come at once, in order, and other keys stay as they were.
func TestRetryParkedMakesOneKeyDueAtOnce(t *testing.T) {
	m := newMachine(t, settle.Config{Parking: parking(1, "a b a -")})
	s := next(t, m, 0, 4, 4)
	mustSettle(t, m, 0, s, park(0), park(1), park(2), park(3))
	logAll(m)
	nothingParked(t, m, 0)
	if n := m.RetryParked("a"); n != 2 {
		t.Fatalf("%d events, want 2", n)
	}
	first := nextParked(t, m, 0)
	if first.From != 0 || first.Attempt != 2 || first.DeadLetter {
		t.Fatalf("%+v, want the second delivery of offset 0", first)
	}
	nothingParked(t, m, 0) // one of a key at a time
	if n := m.RetryParked("a"); n != 1 {
		t.Fatalf("%d events beside the one in hand, want 1", n)
	}
	mustSettle(t, m, 0, first)
	logAll(m)
	second := nextParked(t, m, 0)
	if second.From != 2 {
		t.Fatalf("%+v, want offset 2", second)
	}
	mustSettle(t, m, 0, second)
	logAll(m)
	nothingParked(t, m, 0)
	if n := m.RetryParked(""); n != 1 {
		t.Fatalf("%d events without a key, want 1", n)
	}
	if s := nextParked(t, m, 0); s.From != 3 {
		t.Fatalf("%+v, want offset 3", s)
	}
	if n := m.RetryParked("nobody"); n != 0 {
		t.Fatalf("%d events of a key that is not parked", n)
	}
}

// What an operator discards is handed over in order, and its followers come
// only when it was taken.
func TestDiscardParkedHandsAKeyOver(t *testing.T) {
	m := newMachine(t, settle.Config{Parking: parking(1, "a b a")})
	s := next(t, m, 0, 2, 2)
	mustSettle(t, m, 0, s, park(0), park(1))
	logAll(m)
	if _, ok := m.Next(start, 3, 9); ok { // parks the follower
		t.Fatal("the follower was delivered in its place")
	}
	logAll(m)
	cause := func(last error) error { return fmt.Errorf("discarded: %w", errors.Join(last, errDiscarded)) }
	if n := m.DiscardParked("a", cause); n != 2 {
		t.Fatalf("%d events, want 2", n)
	}
	if n := m.DiscardParked("a", cause); n != 0 {
		t.Fatalf("%d events are discarded twice", n)
	}
	for _, want := range []struct {
		attempt int
		cause   error
	}{{1, errFirst}, {0, errDiscarded}} {
		s := nextParked(t, m, 0)
		if !s.DeadLetter || s.Attempt != want.attempt || !errors.Is(s.Cause, want.cause) {
			t.Fatalf("%+v, want a dead letter after %d attempts with %v", s, want.attempt, want.cause)
		}
		nothingParked(t, m, 0)
		mustSettle(t, m, 0, s)
		logAll(m)
	}
	nothingParked(t, m, 0)
	if s := nextParked(t, m, time.Minute); s.From != 1 || s.DeadLetter {
		t.Fatalf("%+v, want the event of another key as it was", s)
	}
}
