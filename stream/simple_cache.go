package stream

import (
	"fmt"
	"time"

	"github.com/penstock/penstock"
)

// DefaultCapacity is the capacity of a simple cache unless told otherwise, in
// containers. It is behaviour, not a recommendation: a cache should hold what
// arrives while the slowest subscription is served once.
const DefaultCapacity = 4096

// pressureBuckets is the number of buckets in use from which a simple cache is
// under pressure, and the number into which its capacity is divided.
const pressureBuckets = 10

// SimpleCache keeps containers in the order in which they were read, in
// buckets of a tenth of its capacity. A bucket is dropped as a whole, oldest
// first, when no cursor stands in it and no delivery protects it; undelivered
// containers are never discarded: reading pauses instead.
// Per stream the cache keeps a list of its containers, so that a cursor's Next
// does not depend on the number of streams (G-5). It is not safe for
// concurrent use.
//
// Invariants: buckets are ordered by token and all but the newest are full;
// holds of a bucket = cursors that stand in it + protections that began in it;
// the list of a stream holds exactly the cached containers of that stream, in
// order; 0 <= Len <= capacity.
type SimpleCache struct {
	capacity int
	size     int // containers per bucket
	buckets  []*bucket
	spare    *bucket // one dropped bucket, kept for the next one
	streams  map[penstock.StreamID]*posting
	count    int
	newest   penstock.Token // of the container added last
	added    bool           // newest is set
	purged   penstock.Token // of the container dropped last
	dropped  bool           // purged is set
}

type bucket struct {
	items []item // never grows beyond its first capacity: pointers stay valid
	holds int
}

type item struct {
	c            Container
	before       penstock.Token
	hasBefore    bool
	failed       bool
	in           *bucket
	older, newer *item // of the same stream
}

// posting lists the cached containers of one stream. It lives while it has a
// container or a cursor.
type posting struct {
	id         penstock.StreamID
	head, tail *item
	cursors    int
}

// NewSimpleCache returns an empty cache for up to capacity containers. The
// error matches penstock.ErrInvalid when capacity is not positive.
func NewSimpleCache(capacity int) (*SimpleCache, error) {
	if capacity <= 0 {
		return nil, &penstock.FieldError{Field: "capacity", Reason: fmt.Sprintf("%d is not positive", capacity)}
	}
	return &SimpleCache{
		capacity: capacity,
		size:     max(capacity/pressureBuckets, 1),
		streams:  map[penstock.StreamID]*posting{},
	}, nil
}

// MaxAdd returns the size of a bucket, or what is left of the capacity.
func (s *SimpleCache) MaxAdd() int { return min(s.size, s.capacity-s.count) }

// Len returns the number of containers kept.
func (s *SimpleCache) Len() int { return s.count }

// UnderPressure reports whether 10 or more buckets are in use.
func (s *SimpleCache) UnderPressure() bool { return len(s.buckets) >= pressureBuckets }

// Progress does nothing: this cache purges by its cursors alone.
func (s *SimpleCache) Progress(*penstock.Token, time.Time) {}

// Add appends the containers, all or none.
func (s *SimpleCache) Add(batch []Container) error {
	if s.count+len(batch) > s.capacity {
		return fmt.Errorf("cache holds %d of %d containers, %d more do not fit: %w", s.count, s.capacity, len(batch), penstock.ErrFull)
	}
	last, any := s.newest, s.added
	for i := range batch {
		t := containerToken(batch[i].Token)
		if any && t.Compare(last) <= 0 {
			return &penstock.FieldError{Field: "Token", Reason: fmt.Sprintf("%s does not rise above %s", t, last)}
		}
		last, any = t, true
	}
	for i := range batch {
		s.append(batch[i])
	}
	return nil
}

func (s *SimpleCache) append(c Container) {
	c.Token = containerToken(c.Token)
	b := s.newestBucket()
	b.items = append(b.items, item{c: c, in: b, before: s.newest, hasBefore: s.added})
	it := &b.items[len(b.items)-1]
	p := s.posting(c.Stream)
	it.older = p.tail
	if p.tail == nil {
		p.head = it
	} else {
		p.tail.newer = it
	}
	p.tail = it
	s.newest, s.added = c.Token, true
	s.count++
}

func (s *SimpleCache) newestBucket() *bucket {
	if n := len(s.buckets); n > 0 && len(s.buckets[n-1].items) < s.size {
		return s.buckets[n-1]
	}
	b := s.spare
	s.spare = nil
	if b == nil {
		b = &bucket{items: make([]item, 0, s.size)}
	}
	s.buckets = append(s.buckets, b)
	return b
}

func (s *SimpleCache) posting(id penstock.StreamID) *posting {
	p := s.streams[id]
	if p == nil {
		p = &posting{id: id}
		s.streams[id] = p
	}
	return p
}

// forget drops a posting that nothing refers to.
func (s *SimpleCache) forget(p *posting) {
	if p.head == nil && p.cursors == 0 {
		delete(s.streams, p.id)
	}
}

// Purge drops whole buckets, oldest first, while they hold no cursor and no
// protection; it may empty the cache. It returns their containers except those
// marked by Fail.
func (s *SimpleCache) Purge() []Container {
	n := 0
	for n < len(s.buckets) && s.buckets[n].holds == 0 {
		n++
	}
	if n == 0 {
		return nil
	}
	var done []Container
	for _, b := range s.buckets[:n] {
		for i := range b.items {
			it := &b.items[i]
			if !it.failed {
				done = append(done, it.c)
			}
			s.unlink(it)
		}
		clear(b.items)
		b.items = b.items[:0]
		s.spare = b
	}
	left := copy(s.buckets, s.buckets[n:])
	clear(s.buckets[left:])
	s.buckets = s.buckets[:left]
	return done
}

// unlink takes the oldest container of the cache out of its stream's list.
func (s *SimpleCache) unlink(it *item) {
	p := s.streams[it.c.Stream]
	p.head = it.newer
	if p.head == nil {
		p.tail = nil
		s.forget(p)
	} else {
		p.head.older = nil
	}
	s.purged, s.dropped = it.c.Token, true
	s.count--
}

// Cursor opens a cursor over one stream. On an empty cache, and for a position
// newer than everything, the cursor waits for the position; one at or below
// what was dropped is a miss also when the cache is empty.
func (s *SimpleCache) Cursor(id penstock.StreamID, at Position) (Cursor, error) {
	c := &simpleCursor{cache: s}
	switch at.Kind {
	case PositionEarliest:
	case PositionLatest:
		c.want, c.strict = s.newest, s.added
	case PositionAt, PositionAfter:
		c.want, c.strict = containerToken(at.Token), at.Kind == PositionAfter
		if s.misses(c.want, c.strict) {
			return nil, &CacheMissError{Stream: id, Requested: at.Token, Low: s.lowest(), High: s.newest}
		}
	default:
		return nil, &penstock.FieldError{Field: "at", Reason: at.String() + " is not a place in a cache"}
	}
	c.p = s.posting(id)
	c.p.cursors++
	c.locate()
	return c, nil
}

// misses reports whether containers at or after the position may be gone.
func (s *SimpleCache) misses(t penstock.Token, strict bool) bool {
	if s.dropped {
		order := t.Compare(s.purged)
		return order < 0 || order == 0 && !strict
	}
	return s.count > 0 && t.Compare(s.lowest()) < 0
}

// lowest is the oldest container kept, or the newest one dropped.
func (s *SimpleCache) lowest() penstock.Token {
	if len(s.buckets) > 0 {
		return s.buckets[0].items[0].c.Token
	}
	return s.purged
}

// simpleCursor stands at a container, or at the end, where it waits for the
// first container at (or, if strict, after) a token.
type simpleCursor struct {
	cache     *SimpleCache
	p         *posting
	at        *item // nil at the end
	want      penstock.Token
	strict    bool
	protected *item // where the protected group began
	closed    bool
}

// locate moves a cursor at the end to the first container it waits for. It
// walks back from the newest container of the stream, so its cost is the
// number of containers that are new to it.
func (c *simpleCursor) locate() {
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
func (c *simpleCursor) stand(at *item) {
	if at != nil {
		at.in.holds++
	}
	if c.at != nil {
		c.at.in.holds--
	}
	c.at = at
}

func (c *simpleCursor) Next() (Container, bool, error) {
	if c.closed {
		return Container{}, false, fmt.Errorf("cursor of stream %s: %w", c.p.id, penstock.ErrClosed)
	}
	if c.at == nil {
		c.locate()
	}
	if c.at == nil {
		return Container{}, false, nil
	}
	out := c.at.c
	c.want, c.strict = out.Token, true
	c.stand(c.at.newer)
	return out, true, nil
}

func (c *simpleCursor) Peek() (Peeked, bool) {
	if c.closed {
		return Peeked{}, false
	}
	if c.at == nil {
		c.locate()
	}
	if c.at == nil {
		return Peeked{}, false
	}
	return Peeked{Token: c.at.c.Token, Before: c.at.before, HasBefore: c.at.hasBefore}, true
}

func (c *simpleCursor) Refresh(penstock.Token) {
	if !c.closed && c.at == nil {
		c.locate()
	}
}

func (c *simpleCursor) Protect() func() {
	if c.protected != nil {
		panic("stream: Cursor.Protect: the cursor already protects a group")
	}
	if c.at == nil {
		c.locate()
	}
	it := c.at
	if c.closed || it == nil {
		return func() {}
	}
	c.protected = it
	b := it.in
	b.holds++
	released := false
	return func() {
		if released {
			return
		}
		released = true
		b.holds--
		if c.protected == it {
			c.protected = nil
		}
	}
}

func (c *simpleCursor) Fail(t penstock.Token) error {
	t = containerToken(t)
	for it := c.protected; it != nil && it != c.at; it = it.newer {
		if it.c.Token == t {
			it.failed = true
			return nil
		}
	}
	return fmt.Errorf("container %s is not under the cursor's protection: %w", t, penstock.ErrNotFound)
}

func (c *simpleCursor) Close() {
	if c.closed {
		return
	}
	c.closed = true
	c.stand(nil)
	c.p.cursors--
	c.cache.forget(c.p)
}
