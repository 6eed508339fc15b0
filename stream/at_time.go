package stream

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// AtTime is the first container of the stream that its queue took in at or
// after t; the times of a queue are taken to rise. It can be asked for as far
// back as a token: above the checkpoint, and while the container is in the
// cache. What may have begun earlier is refused with [ErrCacheMiss], and a queue
// that does not say when it took containers in, an adapter that cannot rewind,
// or a cache that is no [TimeCache], with penstock.ErrUnsupported. A time behind
// the newest container is the same as [Latest]. While the checkpoint could not be
// loaded, a subscription whose time is not behind what was read first waits.
func AtTime(t time.Time) Start { return token{Kind: PositionAtTime, Time: t.Round(0)} }

// TimeCache is implemented by caches that can look a place up by time, as those
// of this package can.
type TimeCache interface {
	// CursorAtTime opens a cursor over one stream at the first container whose
	// Time is not before t, or at the end when there is none. The error is a
	// *CacheMissError when a container of the stream that was not before t may
	// have been dropped, and matches penstock.ErrUnsupported when one has no
	// time. It does not block.
	CursorAtTime(s penstock.StreamID, t time.Time) (Cursor, error)
}

// CursorAtTime implements [TimeCache].
func (s *SimpleCache) CursorAtTime(id penstock.StreamID, t time.Time) (Cursor, error) {
	return s.openAtTime(id, t, s.lowest())
}

// CursorAtTime implements [TimeCache].
func (l *LogCache) CursorAtTime(id penstock.StreamID, t time.Time) (Cursor, error) {
	return l.openAtTime(id, t, l.lowest())
}

// openAtTime walks the stream back from its newest container, so its cost is
// the number of containers from t on.
func (s *shelf) openAtTime(id penstock.StreamID, t time.Time, lowest penstock.Token) (Cursor, error) {
	p := s.streams[id]
	var found *item
	if p != nil {
		for it := p.tail; it != nil; it = it.older {
			if it.c.Time.IsZero() {
				return nil, noTimes(id)
			}
			if it.c.Time.Before(t) {
				return s.openAt(id, found, it.c.Token)
			}
			found = it
		}
	}
	// Everything kept of the stream is at or after t: what was dropped decides.
	dropped, last := s.dropped, s.purgedTime
	if p != nil && p.hasPurged {
		last = p.purgedTime
	}
	switch {
	case dropped && last.IsZero():
		return nil, noTimes(id)
	case dropped && !last.Before(t):
		return nil, &CacheMissError{Stream: id, Time: t, Low: lowest, High: s.newest}
	}
	return s.openAt(id, found, s.newest)
}

// openAt opens a cursor at a container or, without one, behind a token.
func (s *shelf) openAt(id penstock.StreamID, at *item, end penstock.Token) (Cursor, error) {
	if at != nil {
		return s.open(id, Position{Kind: PositionAt, Token: at.c.Token}, at.c.Token)
	}
	if !s.added {
		return s.open(id, Position{Kind: PositionEarliest}, penstock.Token{})
	}
	return s.open(id, Position{Kind: PositionAfter, Token: end}, penstock.Token{})
}

func noTimes(id penstock.StreamID) error {
	return &unsupportedError{what: fmt.Sprintf("stream %s: its queue does not say when it took containers in", id)}
}

// cursorAtTime opens a place by its time, under the rules of [AtTime].
func (r *run) cursorAtTime(id penstock.StreamID, t time.Time) (Cursor, error) {
	cache, ok := r.cache.(TimeCache)
	switch {
	case !r.rewindable:
		return nil, &unsupportedError{what: "a position by time: the adapter of provider " + r.provider + " cannot rewind"}
	case !ok:
		return nil, &unsupportedError{what: "a position by time: the cache of provider " + r.provider + " cannot look one up"}
	case (r.unloaded.is || r.loaded) && r.hasRead && r.first.IsZero():
		return nil, noTimes(id)
	case r.unloaded.is && (!r.hasRead || !r.first.Before(t)):
		return nil, errUnloaded
	case r.loaded && (!r.hasRead || !r.first.Before(t)):
		// What lies below the checkpoint of the runs before is not known here.
		return nil, &CacheMissError{Stream: id, Time: t, Low: r.floor, High: r.read, Checkpoint: true}
	}
	c, err := cache.CursorAtTime(id, t)
	if err != nil {
		return nil, err
	}
	if next, more := c.Peek(); more && r.hasFloor && next.Token.Compare(r.floor) <= 0 {
		c.Close()
		return nil, &CacheMissError{Stream: id, Time: t, Low: r.floor, High: r.read, Checkpoint: true}
	}
	return c, nil
}
