package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets that are at most 1/64 wider than their
// lower end. The zero histogram is empty. It is for one goroutine.
type histogram struct {
	n       uint64
	buckets [64 * perDoubling]uint64
}

// perDoubling is how many buckets lie between a number and its double.
const perDoubling = 64

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < perDoubling {
		return int(v)
	}
	shift := bits.Len64(v) - bits.Len64(perDoubling)
	return shift*perDoubling + int(v>>shift)
}

// lower returns the smallest duration in bucket i.
func lower(i int) time.Duration {
	if i < 2*perDoubling {
		return time.Duration(i)
	}
	shift := i/perDoubling - 1
	return time.Duration(i-shift*perDoubling) << shift
}

func (h *histogram) add(d time.Duration) {
	h.buckets[bucket(d)]++
	h.n++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.n += o.n
}

// percentile returns, in microseconds, the lower end of the bucket with the
// duration below which lies the share q of at least one.
func (h *histogram) percentile(q float64) float64 {
	left := uint64(q * float64(h.n))
	for i, n := range h.buckets {
		if n > left {
			return float64(lower(i).Nanoseconds()) / 1000
		}
		left -= n
	}
	return 0
}
