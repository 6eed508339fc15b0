package settle_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

func TestPolicyDefaults(t *testing.T) {
	var p settle.Policy
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	want := settle.Policy{Attempts: 5, Backoff: settle.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second, Factor: 2, Jitter: 0.2}}
	if p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	p = settle.Policy{Backoff: settle.Backoff{Min: time.Minute}}
	if err := p.Validate(); err != nil || p.Backoff.Max != time.Minute {
		t.Errorf("Min above the default of Max: %+v, %v", p, err)
	}
	p = settle.Policy{Backoff: settle.Backoff{Max: time.Millisecond}}
	if err := p.Validate(); err != nil || p.Backoff.Min != time.Millisecond {
		t.Errorf("Max below the default of Min: %+v, %v", p, err)
	}
}

func TestPolicyNamesTheBadField(t *testing.T) {
	for _, c := range []struct {
		field string
		b     settle.Backoff
	}{
		{"Backoff.Min", settle.Backoff{Min: -1}},
		{"Backoff.Max", settle.Backoff{Max: -1}},
		{"Backoff.Max", settle.Backoff{Min: 2, Max: 1}},
		{"Backoff.Factor", settle.Backoff{Factor: 0.9}},
		{"Backoff.Factor", settle.Backoff{Factor: -2}},
		{"Backoff.Factor", settle.Backoff{Factor: math.NaN()}},
		{"Backoff.Factor", settle.Backoff{Factor: math.Inf(1)}},
		{"Backoff.Jitter", settle.Backoff{Jitter: 1.1}},
		{"Backoff.Jitter", settle.Backoff{Jitter: math.NaN()}},
	} {
		p := settle.Policy{Backoff: c.b}
		err := p.Validate()
		if f, ok := errors.AsType[*penstock.FieldError](err); !errors.Is(err, penstock.ErrInvalid) || !ok || f.Field != c.field {
			t.Errorf("%+v: %v, want ErrInvalid of %s", c.b, err, c.field)
		}
	}
}

func TestBackoffGrowsToItsMax(t *testing.T) {
	b := settle.Backoff{Min: time.Second, Max: 5 * time.Second, Factor: 2, Jitter: 0.5}
	for _, c := range []struct {
		attempt int
		random  float64
		want    time.Duration
	}{
		{1, 0, time.Second}, {2, 0, 2 * time.Second}, {3, 0, 4 * time.Second}, {4, 0, 5 * time.Second}, {1 << 30, 0, 5 * time.Second},
		{0, 0, time.Second}, {1, 0.5, 750 * time.Millisecond}, {3, 0.5, 3 * time.Second},
	} {
		if got := b.Delay(c.attempt, c.random); got != c.want {
			t.Errorf("attempt %d, random %v: %v, want %v", c.attempt, c.random, got, c.want)
		}
	}
}

func TestBackoffStaysInItsRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := settle.Policy{Backoff: settle.Backoff{
			Min:    time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "min")),
			Max:    time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "max")),
			Factor: rapid.Float64Range(1, 1e9).Draw(t, "factor"),
			Jitter: rapid.Float64Range(-1, 1).Draw(t, "jitter"),
		}}
		if p.Validate() != nil {
			t.Skip("not valid")
		}
		d := p.Backoff.Delay(rapid.IntRange(0, 1<<30).Draw(t, "attempt"), rapid.Float64Range(0, 0.999).Draw(t, "random"))
		if d < 0 || d > p.Backoff.Max {
			t.Fatalf("delay %v of %+v", d, p.Backoff)
		}
	})
}
