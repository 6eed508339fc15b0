package stage

// AccumulateDemand has a source begin by holding back: it notes what its
// consumers ask for, produces nothing and sends nothing, until
// [Source.ForwardDemand]. So consumers that subscribe one after the other all
// begin with the same event. On a gate or a sink it is an error at Start.
func AccumulateDemand() Option {
	return func(s *settings) { s.only, s.holds = "AccumulateDemand", true }
}

// AccumulateDemand has the source hold back from now on, or rather from the end
// of what it does at this moment. Events pushed meanwhile go to the buffer, with
// its capacity and policy. A source that was told to end, or to drain with its
// graph, holds back no more; one whose emitter has finished ends after
// [Source.ForwardDemand]. Safe for concurrent use.
func (s *Source[T]) AccumulateDemand() { s.holding.Store(true) }

// ForwardDemand ends the holding back: what was pushed meanwhile goes out in
// order, and the demand of those who are subscribed then is met. On a source
// that does not hold back it changes nothing. Safe for concurrent use.
func (s *Source[T]) ForwardDemand() {
	if s.holding.Swap(false) {
		s.out.wake(0)
	}
}
