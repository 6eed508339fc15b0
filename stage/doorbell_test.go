package stage

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestDoorbellLosesNoWakeUp has several goroutines bring work and ring while
// the owner takes it and sleeps, with yields at random places. A lost wake-up
// leaves the owner asleep with work in front of it: then every goroutine of the
// bubble is blocked, and synctest fails the test as a deadlock.
func TestDoorbellLosesNoWakeUp(t *testing.T) {
	const ringers, each = 3, 2000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		d := newDoorbell()
		var work atomic.Int64
		for i := range ringers {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			// A ringer: ends after its share of the work.
			go func() {
				for range each {
					work.Add(1)
					maybeYield(r)
					d.ring()
					maybeYield(r)
				}
			}()
		}
		r := rand.New(rand.NewPCG(seed, ringers))
		slept := 0
		for taken := int64(0); taken < ringers*each; {
			if n := work.Swap(0); n > 0 {
				taken += n
				maybeYield(r)
				continue
			}
			d.arm()
			maybeYield(r)
			if work.Load() > 0 {
				d.disarm()
				continue
			}
			d.wait()
			slept++
		}
		synctest.Wait()
		if len(d.token) > 1 || d.sleeping.Load() {
			t.Errorf("the bell is left with %d tokens, sleeping %v", len(d.token), d.sleeping.Load())
		}
		if slept == 0 {
			t.Error("the owner never slept: the test has shown nothing")
		}
	})
}

func maybeYield(r *rand.Rand) {
	if r.IntN(4) == 0 {
		runtime.Gosched()
	}
}

// TestDoorbellRingsOnceForMany shows that a ringer never blocks, and that one
// token serves any number of rings.
func TestDoorbellRingsOnceForMany(t *testing.T) {
	d := newDoorbell()
	d.ring() // nobody sleeps
	if len(d.token) != 0 {
		t.Fatal("a token for an owner that is awake")
	}
	d.arm()
	for range 10 {
		d.ring()
	}
	if len(d.token) != 1 {
		t.Fatalf("%d tokens, want one", len(d.token))
	}
	d.disarm()
	if len(d.token) != 0 {
		t.Fatal("disarm left a token: it would wake the owner for nothing")
	}
	d.arm()
	d.disarm()
	if d.sleeping.Load() {
		t.Fatal("disarm left the bell armed")
	}
}
