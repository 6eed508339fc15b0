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
	shelf
	capacity int
	size     int // containers per bucket
	buckets  []*bucket
	spare    *bucket // one dropped bucket, kept for the next one
	number   uint64  // of the container added last
}

type bucket struct {
	items []item // never grows beyond its first capacity: pointers stay valid
	holds int
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
		shelf:    shelf{streams: map[penstock.StreamID]*posting{}},
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
	if err := s.check(batch); err != nil {
		return err
	}
	for i := range batch {
		s.append(batch[i])
	}
	return nil
}

func (s *SimpleCache) append(c Container) {
	b := s.newestBucket()
	b.items = append(b.items, item{holds: &b.holds})
	s.number++
	s.link(&b.items[len(b.items)-1], c, s.number)
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

// Purge drops whole buckets, oldest first, while they hold no cursor and no
// protection; it may empty the cache. It returns their containers except those
// marked by Fail.
func (s *SimpleCache) Purge() []Container {
	done, _, _ := s.purge(true)
	return done
}

// purge returns the newest of the containers that Purge returns, and, when keep
// is set, all of them.
func (s *SimpleCache) purge(keep bool) (done []Container, newest penstock.Token, any bool) {
	n := 0
	for n < len(s.buckets) && s.buckets[n].holds == 0 {
		n++
	}
	if n == 0 {
		return nil, penstock.Token{}, false
	}
	for _, b := range s.buckets[:n] {
		for i := range b.items {
			it := &b.items[i]
			if !it.failed {
				newest, any = it.c.Token, true
				if keep {
					done = append(done, it.c)
				}
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
	return done, newest, any
}

// Cursor opens a cursor over one stream. On an empty cache, and for a position
// newer than everything, the cursor waits for the position; one at or below
// what was dropped is a miss also when the cache is empty.
func (s *SimpleCache) Cursor(id penstock.StreamID, at Position) (Cursor, error) {
	return s.open(id, at, s.lowest())
}

// lowest is the oldest container kept, or the newest one dropped.
func (s *SimpleCache) lowest() penstock.Token {
	if len(s.buckets) > 0 {
		return s.buckets[0].items[0].c.Token
	}
	return s.purged
}
