package stage

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// terminate tells one child to stop.
func (c *crew[T]) terminate(id int64) error {
	c.mu.Lock()
	i := slices.IndexFunc(c.busy, func(s *seat[T]) bool { return s.id == id })
	if i < 0 {
		c.mu.Unlock()
		return fmt.Errorf("stage %q: child %d: %w", c.in.name, id, ErrChildNotFound)
	}
	s := c.busy[i]
	cancel := s.release
	c.tellToStop(s, time.Now())
	c.mu.Unlock()
	if cancel != nil {
		cancel(ErrTerminated)
	}
	c.in.wake(ctlWake)
	return nil
}

// tellToStop notes that a child was told to stop. The caller holds mu.
func (c *crew[T]) tellToStop(s *seat[T], now time.Time) {
	if s.state == ChildTerminating {
		return
	}
	s.state, s.stopBy = ChildTerminating, now.Add(c.shutdown)
	c.told++
}

// stopAll tells all children to stop, once (ST-121).
func (c *crew[T]) stopAll() {
	if c.down {
		return
	}
	c.down = true
	now := time.Now()
	c.mu.Lock()
	for _, s := range c.busy {
		c.tellToStop(s, now)
	}
	c.mu.Unlock()
	c.cancel(ErrTerminated)
	c.in.wake(ctlWake)
}

// abandonLate gives up the children that were told to stop and have not within
// the time for that, and sets the alarm for the next.
func (c *crew[T]) abandonLate() {
	for s := c.late(time.Now()); s != nil; s = c.late(time.Now()) {
		c.abandon(s)
	}
	var next time.Time
	c.mu.Lock()
	if c.told > 0 {
		for _, s := range c.busy {
			if !s.stopBy.IsZero() && (next.IsZero() || s.stopBy.Before(next)) {
				next = s.stopBy
			}
		}
	}
	c.mu.Unlock()
	switch {
	case next.IsZero():
		c.alarm.stop()
	case !next.Equal(c.alarm.at):
		c.alarm.until(next)
	}
}

// late returns a child to abandon, nil when there is none. From then on its
// goroutine has the seat for itself.
func (c *crew[T]) late(now time.Time) *seat[T] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == 0 {
		return nil
	}
	for _, s := range c.busy {
		if !s.stopBy.IsZero() && !now.Before(s.stopBy) && !s.ended {
			s.abandoned = true
			return s
		}
	}
	return nil
}

// abandon frees the slot of a child that does not stop: its goroutine cannot be
// ended from outside.
func (c *crew[T]) abandon(s *seat[T]) {
	id, event := s.id, s.event
	close(s.jobs)
	c.vacate(s)
	c.dropped()
	if c.down {
		c.left++
	}
	add(&c.in.stats.abandoned, 1)
	c.in.logger().Warn("child abandoned", slog.String("stage", c.in.name), slog.Int64("child", id), slog.Duration("shutdown", c.shutdown))
	c.tell(event, fmt.Errorf("stage %q: child %d: %w", c.in.name, id, ErrAbandoned))
}
