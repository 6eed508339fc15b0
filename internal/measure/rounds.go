package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// A Plan says how long is measured.
type Plan struct {
	Rounds int           // at least 1
	Slice  time.Duration // how long a side's clock runs in a round
}

const (
	// wallFactor bounds a round where little of an iteration is inside the clock.
	wallFactor = 5

	// Allocations are counted over so many iterations, or fewer where they are long.
	allocIterations = 20
	allocWall       = 100 * time.Millisecond
)

// A Series is what one side did in all rounds.
type Series struct {
	Ns      []float64         // per event, by round
	Samples [][]time.Duration // latencies, by round
	Allocs  float64           // per event, in a pass of its own
}

// Run measures the sides, all of them in every round. Each begins with an
// untimed pass in which every event is checked, and one that counts
// allocations; both warm it up. The first side of a round is another one each
// time, so that none always follows the same one. The error names the side
// that failed; ctx is looked at between rounds.
func Run(ctx context.Context, p Plan, sides ...Side) ([]Series, error) {
	all := make([]Series, len(sides))
	for i, s := range sides {
		var err error
		if all[i].Allocs, err = warmUp(s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	for r := range max(1, p.Rounds) {
		if err := ctx.Err(); err != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}
		for k := range sides {
			i := (r + k) % len(sides)
			if err := all[i].round(sides[i], p.Slice); err != nil {
				return nil, fmt.Errorf("%s: %w", sides[i].Name, err)
			}
		}
	}
	return all, nil
}

// warmUp runs the untimed passes of a side and returns its allocations per event.
func warmUp(s Side) (float64, error) {
	if err := s.Run(&Clock{Every: true}); err != nil {
		return 0, err
	}
	c := Clock{Allocs: true}
	began := time.Now()
	for i := 0; i == 0 || i < allocIterations && time.Since(began) < allocWall; i++ {
		if err := s.Run(&c); err != nil {
			return 0, err
		}
	}
	return float64(c.Mallocs) / float64(max(1, c.Events)), nil
}

// round runs iterations until their clocks have run for the slice, and one at
// the least.
func (s *Series) round(side Side, slice time.Duration) error {
	runtime.GC() // no side pays for another's garbage
	var each []float64
	var samples []time.Duration
	inside := time.Duration(0)
	for began := time.Now(); len(each) == 0 || inside < slice && time.Since(began) < wallFactor*slice; {
		var c Clock
		if err := side.Run(&c); err != nil {
			return err
		}
		if c.Events == 0 {
			return errors.New("no event was counted")
		}
		inside += c.Elapsed
		each = append(each, c.nsPerEvent())
		samples = append(samples, c.Samples...)
	}
	s.Ns = append(s.Ns, Median(each))
	s.Samples = append(s.Samples, samples)
	return nil
}
