package stage

import "context"

// Conflate returns a gate that never makes its producers wait: while nobody
// asks, it joins what comes to one event, first with seed(v), then with
// join(&event, v); a single demand takes that. With enough demand every event
// passes on its own, as seed(v). It holds one joined event at most: what join
// makes it grow to is the caller's to bound. The pointer may not be kept.
func Conflate[In, Out any](seed func(In) Out, join func(*Out, In), opts ...Option) *Gate[In, Out] {
	c := &conflater[In, Out]{seed: seed, join: join}
	g := driven[In, Out]("conflate", seed != nil && join != nil, c, c.take, opts)
	c.want = g.out.want
	return g
}

// Invariant: joined is the event that n events were joined to, and nothing when
// n is 0.
type conflater[In, Out any] struct {
	passive[Out]
	seed func(In) Out
	join func(*Out, In)
	want func() int

	joined Out
	n      int
}

func (c *conflater[In, Out]) take(_ context.Context, in []In, out *Output[Out]) error {
	want := c.want()
	for _, v := range in {
		if c.n == 0 {
			c.joined, c.n = c.seed(v), 1
		} else {
			c.join(&c.joined, v)
			c.n++
		}
		if len(out.buf) < want {
			c.emit(out)
		}
	}
	return nil
}

func (c *conflater[In, Out]) emit(out *Output[Out]) {
	var none Out
	out.buf = append(out.buf, c.joined)
	c.joined, c.n = none, 0
}

func (c *conflater[In, Out]) due(_ bool, want int) bool { return want > 0 && c.n > 0 }

func (c *conflater[In, Out]) poll(_ context.Context, _ int, out *Output[Out]) error {
	c.emit(out)
	return nil
}

func (c *conflater[In, Out]) held() int { return c.n }

func (c *conflater[In, Out]) renew() { c.close() }

func (c *conflater[In, Out]) close() {
	var none Out
	c.joined, c.n = none, 0
}
