package bench

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

const (
	waiters = 1000
	// idleTime is how long the waiting consumers are watched in an iteration.
	idleTime = 150 * time.Millisecond
)

// idleTopics are topics, each with a consumer that waits for its first event.
type idleTopics struct {
	topics []*queue.Topic[measure.Word]
	cancel context.CancelFunc
	ended  chan error
}

func openIdle(e env, n int) (*idleTopics, error) {
	ctx, cancel := context.WithCancel(e.ctx)
	w := &idleTopics{cancel: cancel, ended: make(chan error, n)}
	for range n {
		t, groups, err := openTopic(layout{partitions, 1}, queue.Config[measure.Word]{}, queue.GroupConfig{})
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.topics = append(w.topics, t)
		// A waiting consumer: ends with ctx; close waits for it.
		go func() {
			_, err := groups[0].Consumer(0).Pull(ctx)
			w.ended <- err
		}()
	}
	return w, nil
}

// close ends the waiting and makes sure that nobody got an event.
func (w *idleTopics) close() (err error) {
	w.cancel()
	for range w.topics {
		if waited := <-w.ended; !errors.Is(waited, context.Canceled) {
			err = errors.Join(errors.New("a consumer did not wait to the end"), waited)
		}
	}
	for _, t := range w.topics {
		err = errors.Join(err, t.Close())
	}
	return err
}

// idleProcessor compares the processor time of waiting consumers with that of
// goroutines that wait on a channel. An event is a consumer that waits for a
// second.
func idleProcessor(e env) (pair, error) {
	ours := func(c *measure.Clock) error {
		w, err := openIdle(e, min(waiters, e.events))
		if err != nil {
			return err
		}
		return errors.Join(watch(e, c), w.close())
	}
	base := func(c *measure.Clock) error {
		gate, ended := make(chan struct{}), make(chan struct{})
		n := min(waiters, e.events)
		for range n {
			go func() { // waits; ends with gate, and the receives below wait for it
				<-gate
				ended <- struct{}{}
			}()
		}
		err := watch(e, c)
		close(gate)
		for range n {
			<-ended
		}
		return err
	}
	return pair{ours: ours, base: base}, nil
}

// watch adds the processor time that the process uses while everybody waits.
// What the system cannot tell apart from nothing counts as a microsecond.
func watch(e env, c *measure.Clock) error {
	settle()
	before, known := measure.ProcessorTime()
	if !known {
		return errors.New("the system does not tell processor time")
	}
	select {
	case <-time.After(idleTime):
	case <-e.ctx.Done():
		return penstock.ContextError(e.ctx)
	}
	after, _ := measure.ProcessorTime()
	c.Add(max(time.Microsecond, after-before), max(1, min(waiters, e.events)*int(idleTime/time.Millisecond)/1000))
	return nil
}

// settle lets everybody begin to wait, and takes the garbage of their opening
// out of what is measured.
func settle() {
	time.Sleep(10 * time.Millisecond)
	runtime.GC()
}

// idleFlow compares a busy topic beside waiting consumers of other topics with
// the same topic alone.
func idleFlow(e env) (pair, error) {
	events := measure.Numbered[measure.Word](e.events)
	alone := func(c *measure.Clock) error {
		return flowTopic(e, c, layout{partitions, 1}, events, 100)
	}
	// The waiting consumers are there in the iterations of ours only: opened
	// before the clock, and closed after it.
	ours := func(c *measure.Clock) error {
		w, err := openIdle(e, min(waiters, e.events))
		if err != nil {
			return err
		}
		settle()
		for range idleLaps {
			err = errors.Join(err, alone(c))
		}
		return errors.Join(err, w.close())
	}
	base := func(c *measure.Clock) (err error) {
		settle()
		for range idleLaps {
			err = errors.Join(err, alone(c))
		}
		return err
	}
	return pair{ours: ours, base: base}, nil
}

// idleLaps is how often the busy topic is run per opening of the others.
const idleLaps = 20
