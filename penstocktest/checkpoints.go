package penstocktest

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// CheckpointStore checks the contract of [stream.CheckpointStore]. open returns
// one that knows nothing of the provider "suite", and a function that opens
// the same place again, as a restart does; nil when it ends with the process.
func CheckpointStore(t *testing.T, open func(t *testing.T) (s stream.CheckpointStore, again func() stream.CheckpointStore)) {
	testStore(t, open, checkpointRestarted, []storeTest[stream.CheckpointStore]{
		{"NothingIsStoredAtFirst", nothingStored},
		{"SwapsOnlyWhatItExpects", swapsWhatItExpects},
		{"NeverGoesBack", neverGoesBack},
		{"LowerEpochIsRefused", lowerEpoch},
		{"QueuesAndProvidersAreApart", queuesAreApart},
	})
}

func checkpointRestarted(t *testing.T, store stream.CheckpointStore, again func() stream.CheckpointStore) {
	want := mark(7, 2)
	swap(t, store, stream.Checkpoint{}, want, true)
	if got := loaded(t, again()); got != want {
		t.Errorf("after a restart %+v, want %+v", got, want)
	}
}

var suiteQueue = stream.QueueID{Name: "suite", Number: 1, Ring: 1 << 31}

func mark(lo, epoch uint64) stream.Checkpoint {
	return stream.Checkpoint{Position: penstock.Token{Hi: 1, Lo: lo}, Stored: true, Epoch: epoch}
}

func loaded(t *testing.T, s stream.CheckpointStore) stream.Checkpoint {
	t.Helper()
	return must[stream.Checkpoint](t, "LoadCheckpoint")(s.LoadCheckpoint(t.Context(), "suite", suiteQueue))
}

// swap stores and looks whether what comes back, and what is stored then, is
// as it should be.
func swap(t *testing.T, s stream.CheckpointStore, from, to stream.Checkpoint, want bool) {
	t.Helper()
	before := loaded(t, s)
	now, swapped, err := s.SwapCheckpoint(t.Context(), "suite", suiteQueue, from, to)
	if err != nil {
		t.Fatalf("SwapCheckpoint: %v", err)
	}
	expected := before
	if want {
		expected = to
	}
	if swapped != want || now != expected {
		t.Errorf("swap of %+v for %+v where %+v is stored: %v, %+v; want %v, %+v", from, to, before, swapped, now, want, expected)
	}
	if got := loaded(t, s); got != expected {
		t.Errorf("stored afterwards: %+v, want %+v", got, expected)
	}
}

func nothingStored(t *testing.T, s stream.CheckpointStore) {
	if got := loaded(t, s); got != (stream.Checkpoint{}) {
		t.Errorf("%+v, want nothing", got)
	}
}

func swapsWhatItExpects(t *testing.T, s stream.CheckpointStore) {
	swap(t, s, mark(1, 0), mark(2, 0), false)
	swap(t, s, stream.Checkpoint{}, mark(5, 0), true)
	swap(t, s, stream.Checkpoint{}, mark(6, 0), false)
	swap(t, s, mark(4, 0), mark(6, 0), false)
	swap(t, s, mark(5, 0), mark(6, 0), true)
}

func neverGoesBack(t *testing.T, s stream.CheckpointStore) {
	swap(t, s, stream.Checkpoint{}, mark(5, 0), true)
	swap(t, s, mark(5, 0), mark(4, 0), false)
	swap(t, s, mark(5, 0), mark(5, 0), false)
	swap(t, s, mark(5, 0), mark(4, 9), false)
}

func lowerEpoch(t *testing.T, s stream.CheckpointStore) {
	swap(t, s, stream.Checkpoint{}, mark(5, 3), true)
	swap(t, s, mark(5, 3), mark(6, 2), false)
	swap(t, s, mark(5, 3), mark(5, 4), true)
	swap(t, s, mark(5, 4), mark(6, 4), true)
}

func queuesAreApart(t *testing.T, s stream.CheckpointStore) {
	swap(t, s, stream.Checkpoint{}, mark(5, 0), true)
	other := suiteQueue
	other.Number++
	for _, k := range []struct {
		provider string
		queue    stream.QueueID
	}{{"suite", other}, {"Suite", suiteQueue}, {"suite/", suiteQueue}} {
		if got := must[stream.Checkpoint](t, "LoadCheckpoint")(s.LoadCheckpoint(t.Context(), k.provider, k.queue)); got.Stored {
			t.Errorf("queue %s of provider %q has %+v of another one", k.queue, k.provider, got)
		}
	}
}

// Checkpointer checks the contract of [stream.Checkpointer]. open returns a
// way to make checkpointers of one and the same queue, which has no checkpoint
// yet; each call stands for a receiver of its own, one after the other. Tokens
// of the suite have Hi 0 and rising Lo, from 1 on.
func Checkpointer(t *testing.T, open func(t *testing.T) func() stream.Checkpointer) {
	run := func(name string, test func(t *testing.T, next func() stream.Checkpointer)) {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
	run("NothingIsStoredAtFirst", func(t *testing.T, next func() stream.Checkpointer) {
		if pos, ok := loadPosition(t, next()); ok {
			t.Errorf("a checkpoint at %d before any", pos)
		}
	})
	run("FlushStoresTheNewest", func(t *testing.T, next func() stream.Checkpointer) {
		c := next()
		loadPosition(t, c)
		updateTo(t, c, 3, 5, 9)
		flushNow(t, c)
		flushNow(t, c)
		if pos, ok := loadPosition(t, next()); !ok || pos != 9 {
			t.Errorf("the next receiver begins behind %d (%v), want 9", pos, ok)
		}
	})
	run("PositionsNeverGoBack", func(t *testing.T, next func() stream.Checkpointer) {
		c := next()
		loadPosition(t, c)
		updateTo(t, c, 9, 4)
		flushNow(t, c)
		c = next()
		loadPosition(t, c)
		updateTo(t, c, 7)
		flushNow(t, c)
		if pos, ok := loadPosition(t, next()); !ok || pos != 9 {
			t.Errorf("the next receiver begins behind %d (%v), want 9", pos, ok)
		}
	})
	run("FlushWithoutUpdatesChangesNothing", func(t *testing.T, next func() stream.Checkpointer) {
		flushNow(t, next())
		if pos, ok := loadPosition(t, next()); ok {
			t.Errorf("a checkpoint at %d that nobody gave", pos)
		}
		c := next()
		loadPosition(t, c)
		updateTo(t, c, 2)
		flushNow(t, c)
		flushNow(t, next())
		if pos, ok := loadPosition(t, next()); !ok || pos != 2 {
			t.Errorf("the next receiver begins behind %d (%v), want 2", pos, ok)
		}
	})
	run("EndedContextIsAnErrorOrIsDone", func(t *testing.T, next func() stream.Checkpointer) {
		c := next()
		loadPosition(t, c)
		updateTo(t, c, 1, 2)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Flush(ended); err == nil {
			if pos, _ := loadPosition(t, next()); pos != 2 {
				t.Errorf("Flush with an ended context returned nil, stored is %d", pos)
			}
			return
		}
		flushNow(t, c)
		if pos, ok := loadPosition(t, next()); !ok || pos != 2 {
			t.Errorf("after a second Flush the next receiver begins behind %d (%v), want 2", pos, ok)
		}
	})
}

func loadPosition(t *testing.T, c stream.Checkpointer) (lo uint64, ok bool) {
	t.Helper()
	pos, ok, err := c.Load(t.Context())
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return pos.Lo, ok
}

func updateTo(t *testing.T, c stream.Checkpointer, los ...uint64) {
	t.Helper()
	for _, lo := range los {
		if err := c.Update(t.Context(), penstock.Token{Lo: lo}, time.Now()); err != nil {
			t.Fatalf("Update to %d: %v", lo, err)
		}
	}
}

func flushNow(t *testing.T, c stream.Checkpointer) {
	t.Helper()
	if err := c.Flush(t.Context()); err != nil {
		t.Fatalf("Flush: %v", err)
	}
}
