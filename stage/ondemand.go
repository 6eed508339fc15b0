package stage

// OnDemand sets a function that is told the level of demand whenever it has
// changed: how many events the consumers have asked for beyond what the source
// holds, 0 and more. It is for sources that are pushed to and steer how much
// comes, for instance by the credit of a broker: let no more be on its way than
// the level. f runs on the source's goroutine, never beside its callback, and not
// after the source has begun to end; between two calls the level may have risen
// and fallen. f must not block. A panic of f fails the source. It returns s. Call
// it before the graph starts.
func (s *Source[T]) OnDemand(f func(open int)) *Source[T] {
	s.onDemand = f
	return s
}

// tellDemand tells the level of demand if it has changed. (ST-54)
func (s *Source[T]) tellDemand() {
	level := 0
	if !s.holding.Load() {
		level = max(0, s.out.want()-int(s.in.size.Load()))
	}
	if level != s.demandTold {
		s.demandTold = level
		s.out.guard(func() { s.onDemand(level) })
	}
}
