package stream

// WithCache returns the factory f with other caches: newCache returns an empty
// cache for one queue, once per run of its agent. The other parts are those of
// f.
//
//	stream.WithCache(topic, func(stream.QueueID) (stream.Cache, error) {
//	    return stream.NewLogCache(stream.LogCacheConfig{MaxBytes: 256 << 20})
//	})
func WithCache(f Factory, newCache func(QueueID) (Cache, error)) Factory {
	return cacheFactory{f, newCache}
}

type cacheFactory struct {
	Factory
	newCache func(QueueID) (Cache, error)
}

func (c cacheFactory) NewCache(q QueueID) (Cache, error) { return c.newCache(q) }
