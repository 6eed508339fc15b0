// Package demand holds the two rules that keep a pipeline from filling up.
//
// # Words
//
// Demand is what a receiver still accepts: it asks for a number of events, and
// the sender never delivers more in total than was asked for. A [Window] is the
// receiver's side of that rule: it says how much to ask for at the start, in
// what chunks to process what arrives, and when to ask again.
//
// Admission is the rule at a producer's way in. A [Budget] holds capacity in
// events and bytes: a producer acquires before it appends, the same capacity
// is released when the events are no longer held. Requests are admitted whole
// and first come, first served.
//
// # Using a window
//
//	w, err := demand.NewWindow(1000, 750)
//	sender.Ask(w.Start())                      // 1000
//	for events := range deliveries {
//	    for len(events) > 0 {
//	        n := w.Chunk(len(events))          // at most 250
//	        process(events[:n])
//	        events = events[n:]
//	        if ask := w.Took(n); ask > 0 {
//	            sender.Ask(ask)
//	        }
//	    }
//	}
//
// # Using a budget
//
//	b, err := demand.NewBudget(demand.BudgetConfig{Events: 100_000})
//	if err := b.Acquire(ctx, len(events), size); err != nil {
//	    return err // ctx ended, or the budget was closed; nothing was taken
//	}
//	append(events)
//	// later, when the events are no longer held:
//	b.Release(len(events), size)
//
// # Invariants
//
//	0 <= min < max, 0 <= open <= max           (Window)
//	acquired - released <= limit, in events and in bytes (Budget)
//
// The package starts no goroutine, reads no clock and does no I/O.
package demand
