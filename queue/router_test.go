package queue_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func numeric[K queue.Number](t *testing.T, key K, partitions, want int) {
	t.Helper()
	got, err := queue.NumericRouter(func(k K) K { return k }).Route(key, partitions)
	if err != nil || got != want {
		t.Errorf("%T(%v) over %d: %d, %v, want %d", key, key, partitions, got, err, want)
	}
}

func TestNumericKeys_QC7(t *testing.T) {
	for key, want := range map[int8]int{15: 14, 16: 15, 17: 0, 0: 15, -1: 14, -16: 15, 1: 0} {
		numeric(t, key, 16, want)
		numeric(t, int16(key), 16, want)
		numeric(t, int32(key), 16, want)
		numeric(t, int64(key), 16, want)
		numeric(t, int(key), 16, want)
		numeric(t, float32(key), 16, want)
		numeric(t, float64(key), 16, want)
		if key >= 0 {
			numeric(t, uint8(key), 16, want)
			numeric(t, uint16(key), 16, want)
			numeric(t, uint32(key), 16, want)
			numeric(t, uint64(key), 16, want)
			numeric(t, uint(key), 16, want)
		}
	}
	numeric(t, int32(math.MinInt32), 16, 15)
	numeric(t, int32(math.MaxInt32), 16, 14)
	numeric(t, int64(math.MinInt64), 16, 15)
	numeric(t, int64(math.MaxInt64), 16, 14)
	numeric(t, uint32(math.MaxUint32), 16, 14)
	numeric(t, uint64(math.MaxUint64), 16, 14)
	numeric(t, float64(math.MinInt64), 16, 15)
	for k := int64(-50); k <= 50; k++ {
		for p := int64(1); p <= 7; p++ {
			numeric(t, k, int(p), int((((k-1)%p)+p)%p))
		}
	}
	for _, bad := range []float64{1.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300} {
		_, err := queue.NumericRouter(func(k float64) float64 { return k }).Route(bad, 16)
		wantErr(t, err, penstock.ErrInvalid)
	}
}

func TestPrefixAndDefaultRouting_QC9(t *testing.T) {
	prefix := queue.PrefixRouter(func(k string) string { return k })
	for _, test := range []struct {
		key              string
		partitions, want int
	}{
		{"cust-0001", 16, 3}, {"cust-9999", 16, 3}, {"", 16, 0}, {"ABCD", 2, 0}, {"ABCE", 2, 1},
		{"ABCD", 1 << 30, 2001986}, {"ABCE", 1 << 30, 2001987}, {"cust", 1 << 30, 3065427},
		// U+1F600 is the two code units D83D DE00; the fourth unit cuts the
		// second one in half.
		{"a\U0001F600\U0001F600", 1 << 30, ((('a'*31+0xD83D)*31+0xDE00)*31 + 0xD83D) % (1 << 30)},
	} {
		if got, err := prefix.Route(test.key, test.partitions); err != nil || got != test.want {
			t.Errorf("%q over %d: %d, %v, want %d", test.key, test.partitions, got, err, test.want)
		}
	}
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 16, Key: func(i int) string { return fmt.Sprintf("user-%d", i) }})
		produce(t, topic, seq(0, 10_000)...)
		least, most := math.MaxInt, 0
		for _, p := range topic.Stats().Partitions {
			least, most = min(least, int(p.End)), max(most, int(p.End))
		}
		if float64(most) >= 1.5*float64(least) {
			t.Errorf("loads from %d to %d", least, most)
		}
	})
}

func TestNumericKeysKeepOrder_QC11(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[string]{
			Partitions: 4, Router: queue.NumericRouter(func(e string) int { return int(e[0] - '0') }),
		})
		produce(t, topic, "1a", "2b", "1c", "4d", "2e")
		want := [][]string{{"1a", "1c"}, {"2b", "2e"}, {}, {"4d"}}
		if diff := cmp.Diff(want, contents(t, topic), nilIsEmpty); diff != "" {
			t.Error(diff)
		}
	})
}
