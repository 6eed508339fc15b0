package stream

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

func TestExponentialStaysInItsRange(t *testing.T) {
	var asked int64
	top := func(n int64) int64 { asked = n; return n - 1 }
	e := Exponential{Min: time.Second, Max: 30 * time.Second, Step: time.Second, Rand: top}
	for n, seconds := range []int64{1, 2, 4, 8, 16, 29, 29} {
		if got := e.Next(n); got != time.Second+time.Duration(seconds)*time.Second-1 || asked != seconds*int64(time.Second) {
			t.Errorf("repetition %d: %v of at most %v", n, got, time.Duration(asked))
		}
	}
	e.Rand = func(int64) int64 { return 0 }
	for _, n := range []int{0, 5, 61, 62, 63, 64, 1000} {
		want(t, "shortest", e.Next(n), time.Second)
	}
	want(t, "no range", Exponential{Min: 5, Max: 5}.Next(3), 5)
	want(t, "zero", Exponential{}.Next(0), 0)
	if d := (Exponential{Max: time.Hour, Step: 1}).Next(100); d < 0 || d >= time.Hour {
		t.Errorf("with the default source: %v", d)
	}
	for _, bad := range []Exponential{{Min: -1}, {Min: 2, Max: 1}, {Step: -1}} {
		if err := bad.validate("B"); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
