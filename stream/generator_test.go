package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func newGenerator(t *testing.T, c GeneratorConfig) *Generator {
	t.Helper()
	g, err := NewGenerator(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGeneratorConfigNamesTheBadField(t *testing.T) {
	for field, c := range map[string]GeneratorConfig{"Streams": {Streams: -1}, "Events": {Events: -1}} {
		var f *penstock.FieldError
		if _, err := NewGenerator(c); !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Four queues, 100 events in each stream, and a consumer that fails one of
// them until it is told that it failed for good: each stream ends with 99
// processed, the last one marked.
func TestGeneratedStreamsPassOneFailure_ORC41(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGenerator(t, GeneratorConfig{})
		p := openProvider(t, g, func(c *Config) { c.Queues = 4; c.MaxDeliveryTime = time.Second })
		var mu sync.Mutex
		processed, marked, told := map[string]int{}, map[string]bool{}, map[string]int{}
		for _, id := range g.Streams() {
			s := Of[int](p, id.Namespace, id.Key)
			handle := func(_ context.Context, b penstock.Batch[int]) error {
				mu.Lock()
				defer mu.Unlock()
				for i, n := range b.All() {
					if n == 33 && told[id.Key] == 0 {
						return errors.New("not this one")
					}
					if n != processed[id.Key] && n != processed[id.Key]+1 {
						t.Errorf("stream %s: %d after %d events", id, n, processed[id.Key])
					}
					processed[id.Key]++
					marked[id.Key] = LastGenerated(b.Meta(i).Header)
				}
				return nil
			}
			_, err := s.Subscribe(t.Context(), "x", handle, From(Earliest), OnNotice(func(context.Context, Notice) {
				mu.Lock()
				defer mu.Unlock()
				told[id.Key]++
			}))
			if err != nil {
				t.Fatal(err)
			}
		}
		stop := running(p)
		time.Sleep(5 * time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		p.Close()
		want(t, "streams", len(processed), 8)
		for key, n := range processed {
			if n != 99 || !marked[key] || told[key] != 1 {
				t.Errorf("stream %s: %d processed, last one marked %v, told %d times", key, n, marked[key], told[key])
			}
		}
	})
}

// A second run goes on behind the checkpoint; tokens that no queue has are
// refused, and so is writing.
func TestGeneratorGoesOnAndRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGenerator(t, GeneratorConfig{Streams: 1, Events: 10})
		total := 0
		life := func() {
			p := openProvider(t, g, func(c *Config) { c.Queues = 1 })
			defer p.Close()
			s := Of[int](p, "generated", "0")
			if _, err := s.Subscribe(t.Context(), "x", func(_ context.Context, b penstock.Batch[int]) error {
				total += b.Len()
				return nil
			}, From(Earliest)); err != nil {
				t.Fatal(err)
			}
			if err := s.Publish(t.Context(), 1); !errors.Is(err, penstock.ErrUnsupported) {
				t.Errorf("publish: %v, want ErrUnsupported", err)
			}
			for lo, match := range map[uint64]error{10: penstock.ErrOffsetOutOfRange, 9: nil} {
				_, err := s.Subscribe(t.Context(), fmt.Sprint("at", lo), func(context.Context, penstock.Batch[int]) error { return nil }, From(At(penstock.Token{Lo: lo})))
				if !errors.Is(err, match) {
					t.Errorf("subscribe at %d: %v, want %v", lo, err, match)
				}
			}
			if _, err := s.Subscribe(t.Context(), "hi", func(context.Context, penstock.Batch[int]) error { return nil }, From(At(penstock.Token{Hi: 1}))); !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("a token of another adapter: %v, want ErrInvalid", err)
			}
			stop := running(p)
			time.Sleep(time.Minute)
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		life()
		want(t, "after the first run", total, 10)
		life()
		want(t, "after the second", total, 10)
	})
}
