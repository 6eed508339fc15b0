package stream

import "time"

// CacheMeta is what an [Evictor] knows of a container.
type CacheMeta struct {
	Cached time.Time // when the cache took it in
	Time   time.Time // when the queue took it in; zero when the queue does not say
}

// Evictor says whether the oldest container of a [LogCache] may go. It is a
// pure function of the oldest and the newest container kept and the present
// time; it must not block.
type Evictor func(oldest, newest CacheMeta, now time.Time) bool

// EvictByAge lets a container go when it has been in the cache for longer than
// minCached and, at the same time, is older than the newest one by more than
// maxAge. Ages are told by the times at which the queue took the containers in
// or, where it does not say, by those at which the cache did.
func EvictByAge(minCached, maxAge time.Duration) Evictor {
	return func(oldest, newest CacheMeta, now time.Time) bool {
		return now.Sub(oldest.Cached) > minCached && newest.when().Sub(oldest.when()) > maxAge
	}
}

func (m CacheMeta) when() time.Time {
	if m.Time.IsZero() {
		return m.Cached
	}
	return m.Time
}
