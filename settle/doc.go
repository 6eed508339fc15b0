// Package settle decides what becomes of delivered events: settled, delivered
// again after a backoff, or handed over as dead letters; and, from that, how
// far a commit may go. It holds no events, starts no goroutine and reads no
// clock: a carrier (a consumer group, a stream subscription) tells a [Machine]
// what happened and when, and asks what to do next.
//
// # Words
//
// A [Span] is a run of consecutive offsets handed out in one delivery. To
// settle a span is to give a [Verdict] on each of its events. An attempt is
// one delivery of an event to a handler. The commit is contiguous: it is the
// lowest offset that is not settled. Events above it that are settled are
// completed; the machine delivers at most [WindowMax] offsets above the
// commit, so that the completed ones fit a small bitmap that is stored with
// the commit (ADR 0008).
//
// A failed event is retried in its place: new events wait behind it, so that
// the order of the partition is kept.
//
// Offsets may be any numbers that rise by one, for example the sequence
// numbers of one stream.
//
// # Using it
//
//	m, err := settle.New(settle.Config{Committed: stored, Completed: bitmap})
//	for {
//	    span, ok := m.Next(time.Now(), end, 100)
//	    if !ok {
//	        wait(m.Due(), end) // for the next retry, or for new events
//	        continue
//	    }
//	    failed := handle(span)      // []settle.Outcome, one per failed event
//	    m.Settle(time.Now(), span, failed...)
//	    store(m.Committed(), m.AppendCompleted(nil))
//	}
//
// # Invariants
//
//	committed <= every unsettled offset < next
//	next <= committed + WindowMax
//
// The commit never moves back. A settlement that comes late, or a second time,
// changes nothing.
package settle
