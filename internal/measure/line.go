package measure

import (
	"errors"
	"runtime"
	"sync/atomic"
)

// looksAtOnce is how often somebody at the line looks before it lets others
// run: they may be those that are not there yet. It is seldom where everybody
// has a processor, because who lets others run may lose its own to one that
// then sleeps; it is not never, because the system may have given the processor
// to something else.
const (
	looksAtOnce = 64
	looksAlone  = 1 << 16
)

// AtOnce runs f(0) to f(n-1) at the same time, each in a goroutine of its own
// but the last, which the caller runs, and returns what went wrong after all
// have ended. The clock starts when all of them stand at the line, where they
// look for the start without parking: what it measures is their work together,
// and not how long the runtime takes to wake a processor for a new goroutine,
// which is more than some rows last. The caller stops the clock.
func (c *Clock) AtOnce(n int, f func(i int) error) error {
	errs := make(chan error, n)
	var there atomic.Int64
	var started atomic.Bool
	looks := looksAtOnce
	if n <= runtime.GOMAXPROCS(0) {
		looks = looksAlone
	}
	for i := range n - 1 {
		go func() { // ends with f; the receives below wait for it
			there.Add(1)
			await(started.Load, looks)
			errs <- f(i)
		}()
	}
	await(func() bool { return there.Load() == int64(n-1) }, looks)
	c.Start()
	started.Store(true)
	err := f(n - 1)
	for range n - 1 {
		err = errors.Join(err, <-errs)
	}
	return err
}

// await returns when come does; whoever it waits for is at work already or is
// let run.
func await(come func() bool, looks int) {
	for i := 1; !come(); i++ {
		if i%looks == 0 {
			runtime.Gosched()
		}
	}
}
