package stream

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/penstock/penstock"
)

// LogCacheConfig describes a [LogCache]. Zero fields have the defaults given;
// a negative one is refused with a *penstock.FieldError.
type LogCacheConfig struct {
	// MaxBytes, 64 MiB, bounds what the containers take in memory: payloads,
	// metadata and the cache's own records. A full cache takes in nothing. The
	// bound is checked between calls of Add, so it is passed by what one Add
	// brings, at most MaxAdd containers.
	MaxBytes int64
	// MaxContainers, 1,048,576, bounds their number, exactly.
	MaxContainers int
	// MaxAdd, 1,000, is the largest number of containers in one Add.
	MaxAdd int
	// Evict says when the oldest container may go although there is room. Nil
	// means EvictByAge(5 min, 30 min). A full cache drops the oldest
	// containers whatever Evict says, down to seven eighths of its bounds.
	Evict Evictor
	// EvictUnderCursors lets containers go that a cursor has not passed. The
	// cursor's next read is a *CacheMissError; what it missed is counted (see
	// [LogCache.Evicted]) and not reported as delivered. Without it such a
	// container stays, and reading pauses when the cache is full.
	EvictUnderCursors bool
	// Monitors judge how far cursors lag. While one of them sees pressure,
	// nothing is read and nothing is dropped. None by default: bounds and
	// cursors hold reading back anyway.
	Monitors []PressureMonitor
	// Remember, 10 minutes, is how long the cache remembers, for a stream of
	// which it holds nothing any more, which container it dropped last, so
	// that a position behind it is no miss. At most 65,536 such streams are
	// remembered, the latest ones.
	Remember time.Duration
}

// maxRemembered bounds the streams that are remembered without a container.
const maxRemembered = 1 << 16

// itemsPerChunk is how many containers a log cache makes room for at once.
const itemsPerChunk = 64

func (c *LogCacheConfig) validate() error {
	for _, f := range []struct {
		name  string
		value *int
		zero  int
	}{{"MaxContainers", &c.MaxContainers, 1 << 20}, {"MaxAdd", &c.MaxAdd, 1000}} {
		if *f.value < 0 {
			return &penstock.FieldError{Field: f.name, Reason: fmt.Sprintf("%d is negative", *f.value)}
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if c.MaxBytes < 0 {
		return &penstock.FieldError{Field: "MaxBytes", Reason: fmt.Sprintf("%d is negative", c.MaxBytes)}
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 64 << 20
	}
	if c.Remember < 0 {
		return &penstock.FieldError{Field: "Remember", Reason: fmt.Sprintf("%v is negative", c.Remember)}
	}
	if c.Remember == 0 {
		c.Remember = 10 * time.Minute
	}
	for i, m := range c.Monitors {
		if m == nil {
			return &penstock.FieldError{Field: "Monitors", Reason: fmt.Sprintf("number %d is nil", i)}
		}
		if share, ok := threshold(m); ok && !(share >= 0 && share <= 1) {
			return &penstock.FieldError{Field: "Monitors", Reason: fmt.Sprintf("the threshold of number %d, %v, is not in (0, 1]", i, share)}
		}
	}
	if c.Evict == nil {
		c.Evict = EvictByAge(5*time.Minute, 30*time.Minute)
	}
	return nil
}

// LogCache keeps containers of a queue that is read by position: by bytes, and
// after their delivery too, for as long as its [Evictor] leaves them. So what
// one subscription has settled is there for others to start at, and for itself
// to be moved back to, as far as the checkpoint, which follows the slowest
// subscription of the queue ([From]). It drops one container at a time, the
// oldest first, and none that a cursor or a delivery still needs unless it was
// told to. "Latest" and every other position mean what they mean for a
// [SimpleCache]. It is not safe for concurrent use.
//
// Invariants: chunks are ordered by token; bytes is the sum over the
// containers kept; a container that was dropped under a cursor is gone for
// that cursor and is never reported as delivered, nor is any behind it that
// the cursor has not passed.
type LogCache struct {
	shelf
	config  LogCacheConfig
	chunks  [][]item // a chunk never grows beyond its first capacity: pointers stay valid
	first   int      // index of the oldest container in the first chunk
	bytes   int64
	number  uint64 // of the container added last
	evicted uint64

	remembered []memory // of streams without a container, oldest first
}

type memory struct {
	p     *posting
	since time.Time
}

// NewLogCache returns an empty cache.
func NewLogCache(c LogCacheConfig) (*LogCache, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("stream: log cache: %w", err)
	}
	l := &LogCache{shelf: shelf{streams: map[penstock.StreamID]*posting{}}, config: c}
	if len(c.Monitors) > 0 {
		l.onRead = l.contribute
	}
	return l, nil
}

// Len returns the number of containers kept.
func (l *LogCache) Len() int { return l.count }

// Bytes returns what the containers take in memory, in bytes.
func (l *LogCache) Bytes() int64 { return l.bytes }

// Evicted returns how many containers were dropped before every cursor of
// their stream had passed them.
func (l *LogCache) Evicted() uint64 { return l.evicted }

// full reports whether a bound is reached.
func (l *LogCache) full() bool {
	return l.bytes >= l.config.MaxBytes || l.count >= l.config.MaxContainers
}

// MaxAdd returns 0 when the cache is full or under pressure, else at most what
// the rest of the bounds leaves room for, judged by the containers that are
// there.
func (l *LogCache) MaxAdd() int {
	if l.UnderPressure() {
		return 0
	}
	n := min(l.config.MaxAdd, l.config.MaxContainers-l.count)
	if l.count > 0 {
		mean := max(l.bytes/int64(l.count), 1)
		n = int(min(int64(n), max((l.config.MaxBytes-l.bytes)/mean, 1)))
	}
	return n
}

// UnderPressure reports whether the cache is full, or a monitor sees pressure.
func (l *LogCache) UnderPressure() bool { return l.full() || l.pressed(time.Now()) }

func (l *LogCache) pressed(now time.Time) bool {
	any := false
	for _, m := range l.config.Monitors {
		any = m.UnderPressure(now) || any // each of them counts its checks
	}
	return any
}

// Progress does nothing: this cache drops by its cursors, its bounds and age.
func (l *LogCache) Progress(*penstock.Token, time.Time) {}

// Add appends the containers, all or none. The error matches penstock.ErrFull
// when the cache is full or the batch is larger than MaxAdd containers.
func (l *LogCache) Add(batch []Container) error {
	if len(batch) > min(l.config.MaxAdd, l.config.MaxContainers-l.count) || len(batch) > 0 && l.full() {
		return fmt.Errorf("cache holds %d containers and %d bytes, %d more do not fit: %w", l.count, l.bytes, len(batch), penstock.ErrFull)
	}
	if err := l.check(batch); err != nil {
		return err
	}
	now := time.Now()
	for i := range batch {
		n := len(l.chunks)
		if n == 0 || len(l.chunks[n-1]) == itemsPerChunk {
			l.chunks = append(l.chunks, make([]item, 0, itemsPerChunk))
			n++
		}
		chunk := append(l.chunks[n-1], item{cached: now})
		l.chunks[n-1] = chunk
		it := &chunk[len(chunk)-1]
		it.holds = &it.own
		l.number++
		l.link(it, batch[i], l.number)
		l.bytes += footprint(&it.c)
	}
	return nil
}

// footprint is what a container takes in memory, in bytes.
func footprint(c *Container) int64 {
	return int64(int(unsafe.Sizeof(item{})) + len(c.Stream.Namespace) + len(c.Stream.Key) + headerBytes(c.Header) + c.Events.footprint())
}

func headerBytes(h penstock.Header) int {
	n := len(h) * int(unsafe.Sizeof(penstock.Field{}))
	for _, f := range h {
		n += len(f.Name) + len(f.Value)
	}
	return n
}

// Cursor opens a cursor over one stream; see [Cache]. A position below what
// was dropped is no miss when it is known that nothing of its stream was.
func (l *LogCache) Cursor(id penstock.StreamID, at Position) (Cursor, error) {
	return l.open(id, at, l.lowest())
}

// lowest is the oldest container kept, or the newest one dropped.
func (l *LogCache) lowest() penstock.Token {
	if it := l.oldest(); it != nil {
		return it.c.Token
	}
	return l.purged
}

func (l *LogCache) oldest() *item {
	if l.count == 0 {
		return nil
	}
	return &l.chunks[0][l.first]
}

// Purge drops the oldest containers that nothing needs: those that the evictor
// lets go and, when the cache is full, more until an eighth of it is free. It
// drops nothing under pressure of a monitor.
func (l *LogCache) Purge() (done []Container) {
	now := time.Now()
	l.forgetOld(now)
	if l.pressed(now) {
		return nil
	}
	bytes, count := l.config.MaxBytes, l.config.MaxContainers
	if l.full() {
		bytes, count = bytes-max(bytes/8, 1), count-max(count/8, 1)
	}
	for it := l.oldest(); it != nil; it = l.oldest() {
		if *it.holds > 0 && !l.config.EvictUnderCursors {
			break
		}
		if l.bytes <= bytes && l.count <= count && !l.mayEvict(it, now) {
			break
		}
		if c, delivered := l.drop(it, now); delivered {
			done = append(done, c)
		}
	}
	return done
}

func (l *LogCache) mayEvict(it *item, now time.Time) bool {
	last := l.chunks[len(l.chunks)-1]
	return l.config.Evict(it.meta(), last[len(last)-1].meta(), now)
}

func (it *item) meta() CacheMeta { return CacheMeta{Cached: it.cached, Time: it.c.Time} }

// drop takes the oldest container out. It was delivered when it was neither
// failed nor dropped before a cursor had passed it.
func (l *LogCache) drop(it *item, now time.Time) (c Container, delivered bool) {
	c = it.c
	l.bytes -= footprint(&c)
	p := l.unlink(it)
	delivered = !it.failed && it.own == 0 && p.stranded == 0
	if it.own > 0 || p.stranded > 0 {
		l.evicted++
	}
	it.gone = true
	p.stranded += it.own
	p.purgedAt = now
	it.c = Container{Stream: c.Stream, Token: c.Token} // a cursor may still point here
	if l.first++; l.first == itemsPerChunk {
		l.chunks[0] = nil
		l.chunks, l.first = l.chunks[1:], 0
	}
	if p.head == nil && !p.remembered {
		p.remembered = true
		l.streams[p.id] = p // unlink may have forgotten it
		l.remembered = append(l.remembered, memory{p, now})
	}
	return c, delivered
}

// forgetOld forgets streams whose last container was dropped long ago, and
// the oldest of them beyond the number that may be remembered.
func (l *LogCache) forgetOld(now time.Time) {
	for len(l.remembered) > 0 {
		m := l.remembered[0]
		tooMany := len(l.remembered) > maxRemembered
		if !tooMany && now.Sub(m.since) <= l.config.Remember {
			return
		}
		l.remembered[0] = memory{}
		l.remembered = l.remembered[1:]
		if p := m.p; !tooMany && p.head == nil && now.Sub(p.purgedAt) <= l.config.Remember {
			l.remembered = append(l.remembered, memory{p, p.purgedAt}) // it had containers again meanwhile
			continue
		}
		m.p.remembered = false
		l.forget(m.p)
	}
}
