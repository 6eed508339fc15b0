package queue

import (
	"fmt"
	"math"
	"runtime/debug"
	"sync/atomic"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/penstock/penstock"
)

// Router chooses the partition of an event. It must be deterministic and safe
// for concurrent use; it is asked once per event and produce call.
type Router[T any] interface {
	// ID names the rule and its version, for example "hash/1". A topic on disk
	// records it and refuses another.
	ID() string
	// Route returns an index in [0, partitions). Any other index, and any
	// error, fails the produce call before anything is written.
	Route(v T, partitions int) (int, error)
}

// keyRouter is a router that can also route by a key given with the event.
type keyRouter interface {
	routeKey(key string, partitions int) (int, error)
}

// roundRobinID is recorded by topics on disk that route by nothing.
const roundRobinID = "roundrobin/1"

// hashRouter is the default for keys (BQ-33, ADR 0014).
type hashRouter[T any] struct{ key func(T) string }

func (hashRouter[T]) ID() string { return fmt.Sprintf("hash/%d", penstock.HashVersion) }

func (r hashRouter[T]) Route(v T, partitions int) (int, error) {
	return r.routeKey(r.key(v), partitions)
}

func (hashRouter[T]) routeKey(key string, partitions int) (int, error) {
	return int(penstock.HashKey(key) % uint64(partitions)), nil
}

// Number is a key that [NumericRouter] takes.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 |
		~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr |
		~float32 | ~float64
}

// NumericRouter routes by a number: key k goes to the mathematical (k-1) mod
// partitions, for every integer width, zero and negatives. A key of a
// floating type must be integral and within 64 bits, or the produce call fails
// with an error that matches [penstock.ErrInvalid]. A key given with
// the event ([penstock.Meta]) is not used.
func NumericRouter[T any, K Number](key func(T) K) Router[T] { return numericRouter[T, K]{key} }

type numericRouter[T any, K Number] struct{ key func(T) K }

func (numericRouter[T, K]) ID() string { return "numeric/1" }

func (r numericRouter[T, K]) check() error { return needKey(r.key == nil) }

func (r numericRouter[T, K]) Route(v T, partitions int) (int, error) {
	return numericIndex(r.key(v), partitions)
}

func numericIndex[K Number](k K, partitions int) (int, error) {
	p := uint64(partitions)
	if half := 0.5; K(half) != 0 { // a floating type
		return floatIndex(float64(k), p)
	}
	if k < 0 {
		return signedIndex(int64(k), p), nil
	}
	return unsignedIndex(uint64(k), p), nil
}

// unsignedIndex is (k-1) mod p; k = 0 is worth p.
func unsignedIndex(k, p uint64) int { return int((k%p + p - 1) % p) }

// signedIndex is the mathematical (k-1) mod p for a negative k.
func signedIndex(k int64, p uint64) int {
	below := (-(uint64(k)) + 1) % p // 1-k without overflow, also for the smallest k
	return int((p - below) % p)
}

func floatIndex(k float64, p uint64) (int, error) {
	switch {
	case math.IsNaN(k) || math.IsInf(k, 0) || k != math.Trunc(k):
		return 0, &penstock.FieldError{Field: "key", Reason: fmt.Sprintf("%v is out of range: not an integral number", k)}
	case k < -(1<<63) || k >= 1<<64:
		return 0, &penstock.FieldError{Field: "key", Reason: fmt.Sprintf("%v is out of range: above 64 bits", k)}
	case k < 0:
		return signedIndex(int64(k), p), nil
	}
	return unsignedIndex(uint64(k), p), nil
}

// PrefixRouter routes by the first four UTF-16 code units of a key: v = v*31 +
// unit from v = 0, then v mod partitions; "" goes to partition 0. It
// sends keys with a common prefix to one partition and exists for
// compatibility; Config.Key is the better default. A key given with the event
// is used before the selector's.
func PrefixRouter[T any](key func(T) string) Router[T] { return prefixRouter[T]{key} }

type prefixRouter[T any] struct{ key func(T) string }

func (prefixRouter[T]) ID() string { return "prefix/1" }

func (r prefixRouter[T]) check() error { return needKey(r.key == nil) }

func (r prefixRouter[T]) Route(v T, partitions int) (int, error) {
	return r.routeKey(r.key(v), partitions)
}

func (prefixRouter[T]) routeKey(key string, partitions int) (int, error) {
	return int(prefixHash(key) % uint32(partitions)), nil
}

// prefixHash is at most 2,017,429,440, so it does not overflow.
func prefixHash(key string) uint32 {
	var h uint32
	units := 0
	for len(key) > 0 && units < 4 {
		r, size := utf8.DecodeRuneInString(key)
		key = key[size:]
		if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
			h, units = h*31+uint32(high), units+1
			if units < 4 {
				h, units = h*31+uint32(low), units+1
			}
			continue
		}
		h, units = h*31+uint32(r), units+1
	}
	return h
}

// BatchRouter sends each batch whole to one partition, and the next one, a
// single event being a batch of one, to the next partition. Its events stay
// together and in order, and appending them costs less than spreading them. A
// batch that is larger than the topic's capacity is routed slice by slice. Keys
// are not used. The turns are those of the returned value: make one for each
// topic.
func BatchRouter[T any]() Router[T] { return &batchRouter[T]{} }

type batchRouter[T any] struct{ turns atomic.Uint64 }

func (*batchRouter[T]) ID() string { return "batch/1" }

func (r *batchRouter[T]) Route(_ T, partitions int) (int, error) { return r.turn(partitions), nil }

func (r *batchRouter[T]) turn(partitions int) int {
	return int((r.turns.Add(1) - 1) % uint64(partitions))
}

// wholeRouter is a router that chooses one partition for a slice of a request.
type wholeRouter interface{ turn(partitions int) int }

// RouterFunc makes a router of a function. id names the rule and its version.
func RouterFunc[T any](id string, route func(v T, partitions int) int) Router[T] {
	return funcRouter[T]{id: id, route: route}
}

type funcRouter[T any] struct {
	id    string
	route func(T, int) int
}

func (r funcRouter[T]) ID() string { return r.id }

func (r funcRouter[T]) check() error {
	if r.id == "" {
		return &penstock.FieldError{Field: "Router", Reason: "its id is empty"}
	}
	return needKey(r.route == nil)
}

func (r funcRouter[T]) Route(v T, partitions int) (int, error) { return r.route(v, partitions), nil }

func needKey(missing bool) error {
	if missing {
		return &penstock.FieldError{Field: "Router", Reason: "its selector is nil"}
	}
	return nil
}

// route asks the router for the partition of one event. A panic of user code
// becomes a [penstock.PanicError].
func (t *Topic[T]) route(v T, key string) (index int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &penstock.PanicError{Where: "router of topic " + t.config.Name, Value: r, Stack: debug.Stack()}
		}
	}()
	if t.byKey != nil && key != "" {
		index, err = t.byKey.routeKey(key, len(t.parts))
	} else {
		index, err = t.config.Router.Route(v, len(t.parts))
	}
	if err != nil {
		return 0, fmt.Errorf("topic %q: route: %w", t.config.Name, err)
	}
	if index < 0 || index >= len(t.parts) {
		return 0, &penstock.FieldError{Field: "Router", Reason: fmt.Sprintf("index %d is outside [0, %d)", index, len(t.parts))}
	}
	return index, nil
}
