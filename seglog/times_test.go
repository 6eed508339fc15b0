package seglog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
)

func TestAppendTimesAreTold(t *testing.T) {
	for _, size := range []int{0, 1, 3, 64} {
		t.Run(fmt.Sprint("segment=", size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLog[int](t, size)
				var want []int64
				for i := range 200 {
					l.Append(i)
					want = append(want, time.Now().UnixNano())
					time.Sleep(time.Duration(i%3) * 2 * time.Millisecond)
				}
				const kept = 50
				l.Release(kept)
				for i := range kept {
					want[i] = 0
				}
				var offsets []penstock.Offset
				for i := range penstock.Offset(200) {
					offsets = append(offsets, i)
				}
				got := make([]int64, len(offsets))
				l.TimesAt(offsets, got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
				some := []penstock.Offset{0, 50, 50, 51, 130, 199, 199, 200, 1 << 60}
				got = make([]int64, len(some))
				l.TimesAt(some, got)
				if diff := cmp.Diff([]int64{0, want[50], want[50], want[51], want[130], want[199], want[199], 0, 0}, got); diff != "" {
					t.Error(diff)
				}
				if l.Released() != kept {
					t.Errorf("released %d", l.Released())
				}
			})
		})
	}
}

// TestAppendTimesAreToldUnderLoad is for the race detector: times are read
// while events are appended, released, and segments used again.
func TestAppendTimesAreToldUnderLoad(t *testing.T) {
	const events = 20_000
	l := newLog[int](t, 16)
	start := time.Now().Add(-time.Minute).UnixNano()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range events {
			l.Append(i)
			if i%8 == 0 && i > 100 {
				l.Release(penstock.Offset(i - rand.IntN(100)))
			}
		}
	})
	wg.Go(func() {
		times := make([]int64, 3)
		for end := l.End(); end < events; end = l.End() {
			offsets := []penstock.Offset{end - min(end, 80), end - min(end, 20), end}
			slices.Sort(offsets)
			l.TimesAt(offsets, times)
			for i, at := range times {
				if at != 0 && at < start {
					t.Errorf("offset %d was appended at %d", offsets[i], at)
					return
				}
			}
		}
	})
	wg.Wait()
}
