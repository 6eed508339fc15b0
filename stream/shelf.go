package stream

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// shelf is what the caches have in common: the containers in the order in
// which they were read, per stream a list of its own, and the cursors in them.
// A cursor's step follows the list of its stream, so that its cost does not
// depend on the number of streams (G-5). A cache decides where items lie, what
// a hold keeps, and when an item leaves.
//
// Invariants: the list of a stream holds exactly the cached containers of that
// stream, in order; each open cursor that stands at an item, and each
// protection, is one hold on it; a posting lives while it has a container, a
// cursor or, in a log cache, a memory of what was dropped.
type shelf struct {
	streams    map[penstock.StreamID]*posting
	count      int
	newest     penstock.Token // of the container added last
	added      bool           // newest is set
	purged     penstock.Token // of the container dropped last
	dropped    bool           // purged is set
	purgedTime time.Time      // of that container

	onRead func(*item) // told of each container that a cursor returns; may be nil

	listed bool       // note the postings of what is added
	recent []*posting // of the containers of the last Add, in their order
}

type item struct {
	c            Container
	before       penstock.Token
	hasBefore    bool
	failed       bool
	gone         bool      // dropped while something held it; only its token is left
	number       uint64    // of the container in the cache's life, from 1
	ahead        uint64    // events of its stream that were linked before it
	cached       time.Time // when a log cache took it in
	holds        *int      // what keeps it: the count of its bucket, or its own
	own          int
	older, newer *item // of the same stream
	p            *posting
}

// posting lists the cached containers of one stream. What is needed for each
// container lies together.
type posting struct {
	id         penstock.StreamID
	head, tail *item
	cursors    int
	events     uint64         // linked in the posting's life
	entry      *streamEntry   // what the agent knows of the stream; nil when nobody has noted it
	purged     penstock.Token // of the container of the stream that was dropped last
	hasPurged  bool
	remembered bool      // a log cache keeps it for its purged token
	purgedTime time.Time // of that container
	purgedAt   time.Time // in a log cache
	stranded   int       // holds on containers that are gone
}

// check refuses tokens that do not rise. It begins an Add.
func (s *shelf) check(batch []Container) error {
	s.recent = s.recent[:0]
	last, any := s.newest, s.added
	for i := range batch {
		t := containerToken(batch[i].Token)
		if any && t.Compare(last) <= 0 {
			return &penstock.FieldError{Field: "Token", Reason: fmt.Sprintf("%s does not rise above %s", t, last)}
		}
		last, any = t, true
	}
	return nil
}

// link puts a container into a place that the cache has made, behind
// everything that is there.
func (s *shelf) link(it *item, c Container, number uint64) {
	c.Token = containerToken(c.Token)
	it.c, it.before, it.hasBefore, it.number = c, s.newest, s.added, number
	p := s.posting(c.Stream)
	it.p, it.older, it.ahead = p, p.tail, p.events
	p.events += uint64(c.Events.Len())
	if p.tail == nil {
		p.head = it
	} else {
		p.tail.newer = it
	}
	p.tail = it
	if s.listed {
		s.recent = append(s.recent, p)
	}
	s.newest, s.added = c.Token, true
	s.count++
}

// unlink takes the oldest container of the cache out of its stream's list and
// returns the stream's posting.
func (s *shelf) unlink(it *item) *posting {
	p := it.p
	p.head = it.newer
	if p.head == nil {
		p.tail = nil
	} else {
		p.head.older = nil
	}
	p.purged, p.hasPurged, p.purgedTime = it.c.Token, true, it.c.Time
	s.purged, s.dropped, s.purgedTime = it.c.Token, true, it.c.Time
	s.count--
	s.forget(p)
	return p
}

func (s *shelf) posting(id penstock.StreamID) *posting {
	p := s.streams[id]
	if p == nil {
		p = &posting{id: id}
		s.streams[id] = p
	}
	return p
}

// forget drops a posting that nothing refers to.
func (s *shelf) forget(p *posting) {
	if p.head == nil && p.cursors == 0 && !p.remembered && s.streams[p.id] == p {
		delete(s.streams, p.id)
	}
}

// open opens a cursor over one stream. lowest is the token of the oldest
// container kept.
func (s *shelf) open(id penstock.StreamID, at Position, lowest penstock.Token) (Cursor, error) {
	c := &shelfCursor{shelf: s}
	switch at.Kind {
	case PositionEarliest:
		c.want, c.strict = s.purged, s.dropped
	case PositionLatest:
		c.want, c.strict = s.newest, s.added
	case PositionAt, PositionAfter:
		c.want, c.strict = containerToken(at.Token), at.Kind == PositionAfter
		if s.misses(id, c.want, c.strict, lowest) {
			return nil, &CacheMissError{Stream: id, Requested: at.Token, Low: lowest, High: s.newest}
		}
	default:
		return nil, &penstock.FieldError{Field: "at", Reason: at.String() + " is not a place in a cache"}
	}
	c.p = s.posting(id)
	c.p.cursors++
	c.locate()
	return c, nil
}

// misses reports whether containers of the stream at or after the position may
// be gone. What was dropped of the stream itself decides, if that is known; a
// position below everything that was ever kept is a miss.
func (s *shelf) misses(id penstock.StreamID, t penstock.Token, strict bool, lowest penstock.Token) bool {
	if !s.dropped {
		return s.count > 0 && t.Compare(lowest) < 0
	}
	if !below(t, strict, s.purged) {
		return false
	}
	p := s.streams[id]
	return p == nil || !p.hasPurged || below(t, strict, p.purged)
}

// below reports whether the dropped token belongs to what the position asks for.
func below(t penstock.Token, strict bool, dropped penstock.Token) bool {
	order := t.Compare(dropped)
	return order < 0 || order == 0 && !strict
}

// shelfCursor stands at a container, or at the end, where it waits for the
// first container at (or, if strict, after) a token.
type shelfCursor struct {
	shelf     *shelf
	p         *posting
	at        *item // nil at the end
	protected *item // where the protected group began
	want      penstock.Token
	strict    bool
	lost      bool // at the end, and what it waited for was dropped
	closed    bool
}

// locate moves a cursor at the end to the first container it waits for. It
// walks back from the newest container of the stream, so its cost is the
// number of containers that are new to it.
func (c *shelfCursor) locate() {
	if c.p.hasPurged && below(c.want, c.strict, c.p.purged) {
		c.lost = true // dropped before anybody told the cursor of it
		return
	}
	var found *item
	for it := c.p.tail; it != nil; it = it.older {
		order := it.c.Token.Compare(c.want)
		if order < 0 || order == 0 && c.strict {
			break
		}
		found = it
	}
	c.stand(found)
}

// stand moves the cursor's hold.
func (c *shelfCursor) stand(at *item) {
	if at != nil {
		*at.holds++
	}
	if c.at != nil {
		c.unhold(c.at)
	}
	c.at = at
}

func (c *shelfCursor) unhold(it *item) {
	*it.holds--
	if it.gone {
		c.p.stranded--
	}
}

// miss is the error of a cursor whose container was dropped.
func (c *shelfCursor) miss() error {
	s := c.shelf
	low := s.newest
	if h := c.p.head; h != nil {
		low = h.c.Token
	}
	return &CacheMissError{Stream: c.p.id, Requested: c.want, Low: low, High: s.newest}
}

func (c *shelfCursor) Next() (Container, bool, error) {
	if c.closed {
		return Container{}, false, fmt.Errorf("cursor of stream %s: %w", c.p.id, penstock.ErrClosed)
	}
	if c.at == nil {
		c.locate()
	}
	it := c.at
	switch {
	case c.lost || it != nil && it.gone:
		return Container{}, false, c.miss()
	case it == nil:
		return Container{}, false, nil
	}
	if f := c.shelf.onRead; f != nil {
		f(it)
	}
	out := it.c
	c.want, c.strict = out.Token, true
	c.stand(it.newer)
	return out, true, nil
}

func (c *shelfCursor) Peek() (Peeked, bool) {
	if c.closed {
		return Peeked{}, false
	}
	if c.at == nil {
		c.locate()
	}
	if c.lost {
		return Peeked{Token: c.p.purged}, true // Next says that it is gone
	}
	if c.at == nil {
		return Peeked{}, false
	}
	return Peeked{Token: c.at.c.Token, Before: c.at.before, HasBefore: c.at.hasBefore}, true
}

func (c *shelfCursor) Refresh(penstock.Token) {
	if !c.closed && c.at == nil {
		c.locate()
	}
}

func (c *shelfCursor) Protect() func() {
	it := c.protect()
	return func() {
		if it != nil {
			c.unprotect(it)
			it = nil
		}
	}
}

// protect is Protect without a function; nil when there is nothing to protect.
func (c *shelfCursor) protect() *item {
	if c.protected != nil {
		panic("stream: Cursor.Protect: the cursor already protects a group")
	}
	if c.at == nil {
		c.locate()
	}
	it := c.at
	if c.closed || it == nil || it.gone {
		return nil
	}
	c.protected = it
	*it.holds++
	return it
}

// unprotect ends a protection, once.
func (c *shelfCursor) unprotect(it *item) {
	c.unhold(it)
	if c.protected == it {
		c.protected = nil
	}
}

func (c *shelfCursor) Fail(t penstock.Token) error {
	t = containerToken(t)
	for it := c.protected; it != nil && it != c.at; it = it.newer {
		if it.c.Token == t {
			it.failed = true
			return nil
		}
	}
	return fmt.Errorf("container %s is not under the cursor's protection: %w", t, penstock.ErrNotFound)
}

func (c *shelfCursor) Close() {
	if c.closed {
		return
	}
	c.closed = true
	c.stand(nil)
	c.p.cursors--
	c.shelf.forget(c.p)
}
