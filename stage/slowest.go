package stage

import "log/slog"

// A BroadcastOption is a setting of [Broadcast].
type BroadcastOption func(*slowest)

// slowest says when a consumer of a broadcast is cut off.
type slowest struct {
	lag int // 0: never
	bad bool
}

// Slowest has a broadcast cut off a consumer that holds the others up and lags:
// it has asked for events before, has no demand open, and another has more than
// lag events open. Its subscription ends as by [Temporary] whatever its mode,
// behind what was sent to it, with [ErrTooSlow]; it may subscribe again. The cut
// is logged and counted in [Stats].CutOff. A lag below the largest max of the
// subscriptions is of use only: nobody has more open than that. lag < 1 is an
// error at Start.
func Slowest(lag int) BroadcastOption {
	return func(s *slowest) { s.lag, s.bad = lag, lag < 1 }
}

// cutOff cuts off the consumers that lag too far. (ST-108)
func (r *broadcast[T]) cutOff(o *outlet[T]) {
	most, cut := 0, false
	for _, e := range o.edges {
		most = max(most, e.open())
	}
	if most <= r.lag {
		return
	}
	for _, e := range o.edges {
		if e.open() > 0 || e.asked.Load() == 0 || e.cancelled() {
			continue
		}
		cut, e.cut = true, true
		e.end(ErrTooSlow)
		add(&o.stats.cutOff, 1)
		o.logger().Warn("consumer cut off", slog.String("stage", o.name), slog.String("consumer", e.sub.Consumer()), slog.Int("lag", most))
	}
	if cut {
		o.prune()
	}
}
