// Package seglog keeps one partition of a topic in memory: a log with holds.
//
// # Words
//
// A [Log] is a run of events with consecutive offsets, kept in segments. Its
// end is the offset that the next event gets; events below it are readable
// once they are published. A [Cursor] is one reader's place in the segments.
//
// A [Hold] keeps events alive for one group: its commit is the offset below
// which the group has finished, its low is the offset below which the group
// looks at nothing any more (the commit, or the start of a batch still in
// hands). [Marks] joins the holds of a partition into two marks: the committed
// mark, the smallest commit, which gives capacity back, and the low-water
// mark, the smallest low, below which memory is cleared ([Log.Release]).
//
// A [Waker] lets a consumer of several partitions sleep until one of them has
// something new, without losing a wake-up and without spinning.
//
// # Example
//
//	clock := seglog.NewClock()
//	defer clock.Stop()
//	log, marks := seglog.New[string](seglog.Config{Clock: clock}), seglog.NewMarks()
//	hold := marks.Add(marks.Earliest())
//	log.Append("hello")                         // one appender at a time
//	span := log.Cursor().View(0, log.End())     // any number of readers
//	fmt.Println(span.Values)
//	hold.Commit(1)
//	hold.Lower(1)
//	log.Release(marks.Low())                    // span.Values must not be used any more
//
// # Invariants
//
//	low-water mark <= low <= commit <= end, for every hold
//	low-water mark <= committed mark
//
// Marks never go back. Nothing at or above the low-water mark is cleared.
package seglog
