package queue

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// Skip says that a group was moved past events that it had not committed,
// because a limit of its topic has deleted them (Config.HardRetention).
type Skip struct {
	Topic     string
	Group     string
	Partition int
	From, To  penstock.Offset // the events [From, To); the group goes on at To
	Events    uint64          // of them, those that the group had not settled, as far as was stored, nor parked
	Time      time.Time
}

// SkippedError is a [Skip] as a pull returns it, once for each; skips of one
// partition that were not told yet are told as one. The next pull goes on. It
// matches [penstock.ErrOffsetOutOfRange].
type SkippedError struct{ Skip }

func (e *SkippedError) Error() string {
	return fmt.Sprintf("topic %q partition %d: group %q was moved from offset %d to %d: %d events that it had not settled were deleted by the topic's limits",
		e.Topic, e.Partition, e.Group, e.From, e.To, e.Events)
}

// Is reports whether target is penstock.ErrOffsetOutOfRange.
func (e *SkippedError) Is(target error) bool { return target == penstock.ErrOffsetOutOfRange }

// skips is what a group knows of how it was passed over.
type skips struct {
	events atomic.Uint64
	last   atomic.Pointer[Skip]

	mu      sync.Mutex
	untold  []Skip // for the hook
	telling bool   // somebody calls it, and goes on until nothing is left
}

// noteSkip counts a skip, logs it, and keeps it for whoever is to be told.
func (g *Group[T]) noteSkip(c *cursor[T], s Skip) {
	s.Topic, s.Group, s.Partition, s.Time = g.topic.config.Name, g.name, c.part.index, time.Now()
	g.skips.events.Add(s.Events)
	g.topic.seen.skipped.Add(s.Events)
	g.skips.last.Store(&s)
	g.topic.logger.Warn("a group was moved past events that the topic's limits delete", slog.String("group", g.name),
		slog.Int("partition", s.Partition), slog.Uint64("from", uint64(s.From)), slog.Uint64("to", uint64(s.To)), slog.Uint64("events", s.Events))
	if g.config.OnSkip != nil {
		g.skips.mu.Lock()
		g.skips.untold = append(g.skips.untold, s)
		g.skips.mu.Unlock()
	}
	for {
		was, all := c.skipped.Load(), s
		if was != nil { // not told yet
			all.From, all.Events = was.From, was.Events+s.Events
		}
		if c.skipped.CompareAndSwap(was, &all) {
			return
		}
	}
}

// tellSkips calls the hook. No lock is held.
func (g *Group[T]) tellSkips() {
	if g.config.OnSkip == nil {
		return
	}
	for first := true; ; first = false {
		g.skips.mu.Lock()
		if len(g.skips.untold) == 0 || first && g.skips.telling {
			g.skips.telling = g.skips.telling && first
			g.skips.mu.Unlock()
			return
		}
		s := g.skips.untold[0]
		g.skips.untold, g.skips.telling = g.skips.untold[1:], true
		g.skips.mu.Unlock()
		g.tellSkip(s)
	}
}

// tellSkip calls the hook and waits for it.
func (g *Group[T]) tellSkip(s Skip) {
	ended := make(chan struct{})
	// The hook, which may end its goroutine: that is neither the one that keeps
	// the limits nor a producer's. It ends with the hook; the caller waits for it.
	go func() {
		defer close(ended)
		returned := false
		defer func() {
			if v := recover(); !returned {
				g.topic.logger.Error("OnSkip panicked, or ended its goroutine", "group", g.name, "panic", v)
			}
		}()
		g.config.OnSkip(s)
		returned = true
	}()
	<-ended
}

// takeSkips takes what is to be told by the next pulls. The owner calls it.
func (c *Consumer[T]) takeSkips() {
	for _, cur := range c.cursors {
		if s := cur.skipped.Swap(nil); s != nil {
			c.skips = append(c.skips, *s)
		}
	}
}

// nextSkip returns the next skip as an error, nil when none is left to tell.
func (c *Consumer[T]) nextSkip() error {
	if len(c.skips) == 0 {
		return nil
	}
	s := c.skips[0]
	if c.skips = c.skips[1:]; len(c.skips) > 0 {
		c.halt()
	}
	return &SkippedError{s}
}
