package penstocktest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// AttemptStore checks the contract of [stream.AttemptStore]. open returns one
// that knows nothing of the provider "suite", and a function that opens the same
// place again, as a restart after the end of the process does; nil when it ends
// with the process.
func AttemptStore(t *testing.T, open func(t *testing.T) (s stream.AttemptStore, again func() stream.AttemptStore)) {
	testStore(t, open, attemptsRestarted, []storeTest[stream.AttemptStore]{
		{"NothingIsStoredAtFirst", func(t *testing.T, s stream.AttemptStore) { wantAttempts(t, s) }},
		{"EntryTakesThePlaceOfItsName", attemptReplaced},
		{"EntriesOfOneSubscriptionAreApart", attemptsApart},
		{"OverlappingEntriesStay", attemptsOverlap},
		{"ZeroRemovesOneEntry", attemptRemoved},
		{"ValuesComeBackAsTheyWere", attemptValues},
		{"QueuesAndProvidersAreApart", attemptQueues},
		{"EndedContextIsAnErrorOrIsDone", attemptEnded},
		{"SubscriptionsMayStoreAtOnce", attemptsAtOnce},
	})
}

func attemptsRestarted(t *testing.T, store stream.AttemptStore, again func() stream.AttemptStore) {
	a, b := attempt(1, 5, 2), attempt(1, 7, 1)
	storeAttempts(t, store, attempt(1, 3, 1), a, b, attempt(1, 3, 0))
	wantAttempts(t, again(), a, b)
}

// attempt is an entry of a subscription, of the events of one container.
func attempt(sub byte, lo uint64, n int) stream.Attempt {
	return stream.Attempt{
		Subscription: stream.SubscriptionID{sub, 15: 1}, Incarnation: 7,
		First: penstock.Token{Hi: 1, Lo: lo}, End: penstock.Token{Hi: 1, Lo: lo, Index: 4}, N: n, Open: n%2 == 1,
	}
}

func storeAttempts(t *testing.T, s stream.AttemptStore, all ...stream.Attempt) {
	t.Helper()
	for _, a := range all {
		if err := s.StoreAttempt(t.Context(), "suite", suiteQueue, a); err != nil {
			t.Fatalf("StoreAttempt of %+v: %v", a, err)
		}
	}
}

// wantAttempts compares what is stored, in whatever order.
func wantAttempts(t *testing.T, s stream.AttemptStore, want ...stream.Attempt) {
	t.Helper()
	got := must[[]stream.Attempt](t, "LoadAttempts")(s.LoadAttempts(t.Context(), "suite", suiteQueue))
	text := func(all []stream.Attempt) []string {
		out := make([]string, 0, len(all))
		for _, a := range all {
			out = append(out, fmt.Sprintf("%+v", a))
		}
		slices.Sort(out)
		return out
	}
	if g, w := text(got), text(want); !slices.Equal(g, w) {
		t.Errorf("stored %v, want %v", g, w)
	}
}

func attemptReplaced(t *testing.T, s stream.AttemptStore) {
	a := attempt(1, 5, 1)
	storeAttempts(t, s, a)
	wantAttempts(t, s, a)
	a.Open = false // the answer
	storeAttempts(t, s, a)
	wantAttempts(t, s, a)
	a.N, a.Open, a.End.Index = 2, true, 2 // again, of fewer events
	storeAttempts(t, s, a)
	wantAttempts(t, s, a)
}

func attemptsApart(t *testing.T, s stream.AttemptStore) {
	all := []stream.Attempt{attempt(1, 5, 1), attempt(2, 5, 2), attempt(1, 6, 3), attempt(1, 4, 4)}
	for _, at := range []penstock.Token{{Hi: 2, Lo: 5}, {Hi: 1, Lo: 5, Index: 3}} {
		a := attempt(1, 5, 5)
		a.First, a.End = at, penstock.Token{Hi: at.Hi, Lo: at.Lo, Index: 9}
		all = append(all, a)
	}
	later := attempt(1, 5, 6) // the name was given to another one since
	later.Incarnation++
	all = append(all, later)
	storeAttempts(t, s, all...)
	wantAttempts(t, s, all...)
	late := attempt(1, 5, 0) // the last answer for the earlier one
	storeAttempts(t, s, late)
	wantAttempts(t, s, all[1:]...)
}

// A process may end between two writes of an agent, which leaves entries that
// overlap. What they mean is not the store's to decide.
func attemptsOverlap(t *testing.T, s stream.AttemptStore) {
	whole, part := attempt(1, 5, 1), attempt(1, 5, 2)
	part.First.Index = 2
	storeAttempts(t, s, whole, part)
	wantAttempts(t, s, whole, part)
}

func attemptRemoved(t *testing.T, s stream.AttemptStore) {
	a, b := attempt(1, 5, 1), attempt(1, 6, 1)
	storeAttempts(t, s, attempt(1, 5, 0)) // there is none
	wantAttempts(t, s)
	storeAttempts(t, s, a, b, attempt(1, 5, 0), attempt(3, 6, 0))
	wantAttempts(t, s, b)
	storeAttempts(t, s, attempt(1, 6, 0), a)
	wantAttempts(t, s, a)
}

func attemptValues(t *testing.T, s stream.AttemptStore) {
	const top = 1<<64 - 1
	a := stream.Attempt{Incarnation: top, End: penstock.Token{Hi: top, Lo: top, Index: 1<<32 - 1}, N: 1<<31 - 1}
	for i := range a.Subscription {
		a.Subscription[i] = byte(255 - i)
	}
	b := a
	b.First = penstock.Token{Hi: top, Lo: top, Index: 1<<32 - 2}
	b.N, b.Open = 1, true
	storeAttempts(t, s, a, b)
	wantAttempts(t, s, a, b)
}

func attemptQueues(t *testing.T, s stream.AttemptStore) {
	storeAttempts(t, s, attempt(1, 5, 1))
	other := suiteQueue
	other.Number++
	for _, k := range []struct {
		provider string
		queue    stream.QueueID
	}{{"suite", other}, {"Suite", suiteQueue}, {"suite/", suiteQueue}} {
		got := must[[]stream.Attempt](t, "LoadAttempts")(s.LoadAttempts(t.Context(), k.provider, k.queue))
		if len(got) > 0 {
			t.Errorf("queue %s of provider %q has %+v of another one", k.queue, k.provider, got)
		}
		if err := s.StoreAttempt(t.Context(), k.provider, k.queue, attempt(1, 5, 0)); err != nil {
			t.Fatalf("StoreAttempt: %v", err)
		}
	}
	wantAttempts(t, s, attempt(1, 5, 1))
}

func attemptEnded(t *testing.T, s stream.AttemptStore) {
	a := attempt(1, 5, 1)
	storeAttempts(t, s, a)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	b := attempt(1, 6, 1)
	if err := s.StoreAttempt(ended, "suite", suiteQueue, b); err != nil {
		wantAttempts(t, s, a)
	} else {
		wantAttempts(t, s, a, b)
	}
}

func attemptsAtOnce(t *testing.T, s stream.AttemptStore) {
	var want []stream.Attempt
	var all sync.WaitGroup
	for sub := range byte(8) {
		want = append(want, attempt(sub, 9, 2))
		all.Go(func() { // ends when it has stored; waited for below
			for lo := range uint64(10) {
				for _, n := range []int{1, 2, 0} {
					if lo == 9 && n == 0 {
						return
					}
					if err := s.StoreAttempt(t.Context(), "suite", suiteQueue, attempt(sub, lo, n)); err != nil {
						t.Errorf("StoreAttempt: %v", err)
					}
				}
			}
		})
	}
	all.Wait()
	wantAttempts(t, s, want...)
}
