package stream

import (
	"time"

	"github.com/penstock/penstock"
)

// shelfOf returns the shelf of a cache of this package, which keeps nothing of
// the slice that it is given; nil for any other one.
func shelfOf(c Cache) *shelf {
	switch c := c.(type) {
	case *SimpleCache:
		return &c.shelf
	case *LogCache:
		return &c.shelf
	}
	return nil
}

// Cache keeps the containers of one queue between the read and the slowest
// delivery. It belongs to one run of an agent, which calls it and its cursors
// from one goroutine; it must not block. Its capacity is not durability: what
// is in it comes again from the queue after a failure.
type Cache interface {
	// MaxAdd returns how many containers may be added now: 0 for none, -1 for
	// any number.
	MaxAdd() int
	// Add takes containers in, all or none. The error matches penstock.ErrFull
	// when they do not fit and penstock.ErrInvalid when their tokens do not
	// rise. Cursors that had reached the end see them after Refresh, which the
	// agent calls before the next Purge.
	Add(batch []Container) error
	// Cursor opens a cursor over one stream. PositionNone is refused. The
	// error is a *CacheMissError when the position is no longer kept.
	Cursor(s penstock.StreamID, at Position) (Cursor, error)
	// UnderPressure reports whether reading should pause.
	UnderPressure() bool
	// Purge drops what no cursor needs and returns the dropped containers that
	// were delivered, oldest first.
	Purge() []Container
	// Progress tells how far every subscription has come: everything up to and
	// including earliest was processed; nil means that nothing constrains it.
	Progress(earliest *penstock.Token, now time.Time)
	// Len returns the number of containers kept.
	Len() int
}

// Cursor is the position of one subscription, or of one pin, in a cache. It
// sees the containers of its own stream only. An open cursor keeps the
// container it stands at, and every later one, in the cache.
type Cursor interface {
	// Next returns the next container and moves on; ok is false at the end.
	Next() (c Container, ok bool, err error)
	// Peek says what Next would return without moving.
	Peek() (p Peeked, ok bool)
	// Refresh tells a cursor at the end that the cache took in containers of
	// its stream, the first of them with the given token. It does nothing to a
	// cursor that is not at the end.
	Refresh(first penstock.Token)
	// Protect keeps what Next returns from now on in the cache until release
	// is called, even if the cursor moves on or is closed. A cursor has one
	// protection at a time.
	Protect() (release func())
	// Fail marks a container under protection as passed without delivery:
	// Purge will not return it.
	Fail(t penstock.Token) error
	// Close gives up the position. Closing twice is allowed.
	Close()
}

// Peeked describes the next container of a cursor.
type Peeked struct {
	Token penstock.Token
	// Before is the token of the container that the cache took in directly
	// before it, of whatever stream; HasBefore is false when it was the first.
	Before    penstock.Token
	HasBefore bool
}
