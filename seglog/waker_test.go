package seglog

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// TestNoWakeUpIsLost lets several appenders publish at random places and
// moments while the consumer takes what it finds and sleeps. When everything
// was published and the consumer still waits, a wake-up was lost: the test
// then hangs until its guard speaks.
func TestNoWakeUpIsLost(t *testing.T) {
	const places, appenders, each = 130, 3, 20_000
	for _, seed := range []uint64{1, 2, 3} {
		w := NewWaker(places)
		var published [places]atomic.Int64
		var group sync.WaitGroup
		for a := range appenders {
			rng := rand.New(rand.NewPCG(seed, uint64(a)))
			group.Go(func() { // ends after its events; waited for below
				for range each {
					p := rng.IntN(places)
					published[p].Add(1)
					w.Notify(p)
					if rng.IntN(50) == 0 {
						runtime.Gosched() // gives the consumer time to park
					}
				}
			})
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a wake-up was lost"))
		var seen [places]int64
		for total := int64(0); total < appenders*each; {
			for i := range w.Words() {
				for bits := w.Take(i); bits != 0; bits &= bits - 1 {
					p := i*wordBits + trailingZeros(bits)
					n := published[p].Load()
					total += n - seen[p]
					seen[p] = n
				}
			}
			if total == appenders*each {
				break
			}
			if err := w.Wait(ctx, nil); err != nil {
				t.Fatalf("seed %d: %d of %d seen: %v", seed, total, appenders*each, err)
			}
		}
		cancel()
		group.Wait()
	}
}

// TestLoneWakeUpIsNotLost: nothing follows that would wake the consumer instead.
// Each event comes alone, at a random moment of the consumer's falling asleep,
// and the next one when it was seen.
func TestLoneWakeUpIsNotLost(t *testing.T) {
	const places, rounds = 130, 50_000
	w := NewWaker(places)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Second, errors.New("a wake-up was lost"))
	defer cancel()
	var published, seen atomic.Int64
	var appender sync.WaitGroup
	defer appender.Wait()
	appender.Go(func() { // ends after its events or with ctx; waited for above
		rng := rand.New(rand.NewPCG(4, 5))
		for i := range int64(rounds) {
			for n := 1; seen.Load() < i; n++ { // spins, so that both run at the same time
				if n%5000 == 0 {
					runtime.Gosched() // on one core
				}
				if n%5000 == 0 && ctx.Err() != nil {
					return
				}
			}
			for range rng.IntN(1 << rng.IntN(9)) {
				seen.Load() // takes a little time
			}
			published.Add(1)
			w.Notify(rng.IntN(places))
		}
	})
	rng := rand.New(rand.NewPCG(6, 7))
	for {
		found := uint64(0)
		for i := range w.Words() {
			found |= w.Take(i)
		}
		if found != 0 {
			seen.Store(published.Load())
		}
		if seen.Load() == rounds {
			return
		}
		for range rng.IntN(1 << rng.IntN(9)) {
			seen.Load() // as above
		}
		if err := w.Wait(ctx, nil); err != nil {
			cancel()
			t.Errorf("%d of %d events seen: %v", seen.Load(), rounds, err)
			return
		}
	}
}

func trailingZeros(v uint64) (n int) {
	for ; v&1 == 0; v >>= 1 {
		n++
	}
	return n
}

// TestBusyConsumerIsNotWoken: while the bit is set, further notifications
// write nothing and send nothing.
func TestBusyConsumerIsNotWoken(t *testing.T) {
	w := NewWaker(2)
	for range 3 {
		w.Notify(1)
	}
	if len(w.ready) != 0 {
		t.Error("a token was sent to a consumer that does not sleep")
	}
	if got := w.Take(0); got != 2 {
		t.Errorf("Take = %b, want 10", got)
	}
	if got := w.Take(0); got != 0 {
		t.Errorf("second Take = %b, want 0", got)
	}
}

func TestWaitEndsByEachCause(t *testing.T) {
	cause := errors.New("the cause")
	tests := []struct {
		name string
		do   func(w *Waker, cancel context.CancelCauseFunc)
		want []error
	}{
		{"notify", func(w *Waker, _ context.CancelCauseFunc) { w.Notify(64) }, nil},
		{"close", func(w *Waker, _ context.CancelCauseFunc) { w.Close() }, []error{penstock.ErrClosed}},
		{"cancel", func(_ *Waker, cancel context.CancelCauseFunc) { cancel(cause) }, []error{context.Canceled, cause}},
	}
	for _, test := range tests {
		for _, when := range []string{"before", "while"} {
			t.Run(test.name+" "+when+" it sleeps", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := NewWaker(65)
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					if when == "before" {
						test.do(w, cancel)
					}
					result := make(chan error, 1)
					go func() { result <- w.Wait(ctx, nil) }() // ends by the cause; waited for below
					if when == "while" {
						synctest.Wait()
						test.do(w, cancel)
					}
					err := <-result
					if len(test.want) == 0 && err != nil {
						t.Errorf("Wait = %v, want nil", err)
					}
					for _, want := range test.want {
						if !errors.Is(err, want) {
							t.Errorf("Wait = %v, want %v", err, want)
						}
					}
				})
			})
		}
	}
}

func TestWaitEndsByAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWaker(1)
		begin := time.Now()
		if err := w.Wait(t.Context(), time.After(time.Second)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != time.Second {
			t.Errorf("waited %v, want 1s", d)
		}
	})
}

func TestStaleTokenCostsOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWaker(1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Wait(ctx, nil) }() // ends by cancel; waited for below
		synctest.Wait()
		cancel()
		w.Notify(0) // races with the cancelled Wait: may leave a token
		<-done
		w.Take(0)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		looks := 0
		for ; err == nil; looks++ {
			err = w.Wait(ctx, nil)
		}
		if looks > 2 {
			t.Errorf("Wait returned %d times with nothing new", looks-1)
		}
	})
}

// TestNoRingIsLost lets several goroutines change a number and ring while the
// consumer looks at it and sleeps.
func TestNoRingIsLost(t *testing.T) {
	const ringers, each = 3, 20_000
	w := NewWaker(1)
	var changes atomic.Int64
	var group sync.WaitGroup
	for range ringers {
		group.Go(func() { // ends after its changes; waited for below
			for i := range each {
				changes.Add(1)
				w.Ring()
				if i%50 == 0 {
					runtime.Gosched() // gives the consumer time to park
				}
			}
		})
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("a ring was lost"))
	defer cancel()
	for changes.Load() < ringers*each {
		if err := w.Wait(ctx, nil); err != nil {
			t.Fatalf("%d of %d seen: %v", changes.Load(), ringers*each, err)
		}
	}
	group.Wait()
}

func TestRingIsKeptForTheNextWaitAndNotLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWaker(1)
		w.Ring()
		w.Ring()
		if err := w.Wait(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if bits := w.Take(0); bits != 0 {
			t.Errorf("Ring marked places %b", bits)
		}
		begin := time.Now()
		time.AfterFunc(time.Minute, w.Ring)
		for time.Since(begin) < time.Minute { // a stale token costs one look
			if err := w.Wait(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if looks := time.Since(begin); looks != 0 && looks != time.Minute {
				t.Errorf("woken after %v", looks)
			}
		}
	})
}
