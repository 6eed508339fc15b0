// Package settle decides what becomes of delivered events: settled, delivered
// again after a backoff, parked with their key, or handed over as dead letters;
// and, from that, how far a commit may go. It holds no events, starts no goroutine and reads no
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
// the order of the partition is kept. With [Config.Beside] they do not wait; a
// carrier that runs several handlers at a time then keeps what order it wants.
//
// With [Config.Parking] a key that fails for long is parked instead: the failed
// event and its followers, which are all later events of its key, move to the
// retry log of the group, the commit passes them, and other keys go on. The
// machine says what to append to the retry log ([Entry], [Machine.Unlogged]),
// and the carrier says when it is there ([Machine.Logged]); see ADR 0029.
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
//	        due, retries := m.Due()
//	        wait(due, retries, end) // for the next retry, or for new events
//	        continue
//	    }
//	    failed := handle(span)      // []settle.Outcome, one per failed event
//	    m.Settle(time.Now(), span, failed...)
//	    store(m.Committed(), m.AppendCompleted(nil))
//	}
//
// With parking, the loop also does
//
//	log(m.Unlogged())           // then m.Logged(its last Seq)
//	if span, ok := m.NextParked(time.Now()); ok {
//	    store(m.Committed(), m.AppendCompleted(nil)) // before it is handled, see there
//	    m.Settle(time.Now(), span, handle(span)...)
//	}
//
// # Invariants
//
//	committed <= every unsettled offset < next
//	next <= committed + WindowMax, but for parked offsets that a restart skips
//
// The commit never moves back. A settlement that comes late, or a second time,
// changes nothing.
//
// An event is in exactly one place: unsettled in the partition, in the retry
// log, or settled. It leaves the first for the second when the log has
// confirmed it. Events of a parked key are delivered one at a time, in order,
// and none of its key is delivered beside them from behind them.
package settle
