package queue

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// The limits of a topic on disk are kept by one goroutine, which looks when a
// segment was sealed and, where time decides, now and then (ADR 0079).

// lookAgain bounds how long a limit of time may be overrun.
const (
	ageLookMax = time.Minute
	ttlLookMax = time.Hour
	lookMin    = 10 * time.Millisecond
)

func (c *Config[T]) limits() segfile.Limits {
	return segfile.Limits{Age: c.RetainAge, Bytes: c.RetainBytes, Events: c.RetainEvents}
}

func (c *Config[T]) validateRetention() error {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"RetainAge", int64(c.RetainAge)}, {"RetainBytes", int64(c.RetainBytes)},
		{"RetainEvents", int64(c.RetainEvents)}, {"GroupTTL", int64(c.GroupTTL)},
	} {
		switch {
		case f.value < 0:
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", f.value)}
		case f.value > 0 && c.Dir == "":
			return diskOnly(f.name)
		}
	}
	switch {
	case c.HardRetention && c.Dir == "":
		return diskOnly("HardRetention")
	case c.HardRetention && c.limits() == segfile.Limits{} && c.WhenFull != DropOldest:
		return &penstock.FieldError{Field: "HardRetention", Reason: "there is nothing to enforce: RetainAge, RetainBytes and RetainEvents are 0 and WhenFull is not DropOldest"}
	case c.WhenFull == DropOldest && !c.HardRetention:
		return &penstock.FieldError{Field: "WhenFull", Reason: "drop_oldest passes groups that have not committed, which needs HardRetention and Dir"}
	case c.WhenFull == DropOldest && c.Capacity == 0 && c.CapacityBytes == 0 && c.CapacityDisk == 0:
		return &penstock.FieldError{Field: "WhenFull", Reason: "drop_oldest needs Capacity, CapacityBytes or CapacityDisk"}
	}
	return nil
}

// keeper is the goroutine that keeps the limits of a topic.
type keeper[T any] struct {
	engine *fileEngine[T]
	wake   chan struct{} // a segment was sealed
	stop   chan struct{}
	done   chan struct{} // nil when there is nothing to keep
}

// start begins it, if the topic has limits. The first look has been taken when
// it returns.
func (k *keeper[T]) start(e *fileEngine[T]) {
	c := &e.topic.config
	limited := c.limits() != segfile.Limits{}
	if !limited && c.GroupTTL == 0 {
		return
	}
	k.engine, k.wake, k.stop, k.done = e, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	if limited {
		for i := range e.topic.parts {
			e.log.Partition(i).OnSealed(func() {
				select {
				case k.wake <- struct{}{}:
				default:
				}
			})
		}
	}
	k.look()
	// Keeps the limits: ends with the engine's close, which waits for it.
	go k.run()
}

// every returns how often time makes it look, 0 for never.
func (k *keeper[T]) every() (every time.Duration) {
	c := &k.engine.topic.config
	if c.RetainAge > 0 {
		every = min(max(c.RetainAge/16, lookMin), ageLookMax)
	}
	if ttl := min(max(c.GroupTTL/16, lookMin), ttlLookMax); c.GroupTTL > 0 && (every == 0 || ttl < every) {
		every = ttl
	}
	return every
}

func (k *keeper[T]) run() {
	defer close(k.done)
	var tick <-chan time.Time
	if every := k.every(); every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-k.stop:
			return
		case <-k.wake:
		case <-tick:
			k.engine.forget()
		}
		k.look()
	}
}

// end stops it and waits.
func (k *keeper[T]) end() {
	if k.done != nil {
		close(k.stop)
		<-k.done
	}
}

// look enforces everything once.
func (k *keeper[T]) look() {
	e := k.engine
	c := &e.topic.config
	if limits := c.limits(); limits != (segfile.Limits{}) {
		for _, p := range e.topic.parts {
			if err := e.keep(p, limits); err != nil && !errors.Is(err, penstock.ErrClosed) {
				e.topic.logger.Warn("limits are not kept; it is tried again", "partition", p.index, "err", err)
			}
		}
		e.topic.freed()
	}
	e.tellSkips()
}

// keep makes a partition hold what is within the limits, and deletes the rest.
func (e *fileEngine[T]) keep(p *partition[T], limits segfile.Limits) error {
	var errs []error
	if limits.Age > 0 {
		errs = append(errs, p.file.log.LearnAges(), p.file.log.SealOld(limits.Age))
	}
	to := p.file.log.Beyond(limits)
	p.file.within.Store(uint64(to))
	t := e.topic
	t.groupsMu.Lock()
	if t.groups != nil {
		errs = append(errs, e.expire(p, to, t.config.HardRetention))
	}
	t.groupsMu.Unlock()
	p.sweep()
	return errors.Join(errs...)
}

// tellSkips calls the hooks of groups that were moved.
func (e *fileEngine[T]) tellSkips() {
	groups, _ := e.topic.knownGroups()
	for _, g := range groups {
		g.tellSkips()
	}
}
