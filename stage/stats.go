package stage

// Stats are the counters of one stage since the graph started, in events. For
// every stage that has ended, and at any quiet moment before, nothing is
// missing: what came in was processed, and what was emitted was sent, is
// buffered, or was discarded.
type Stats struct {
	Name string
	Kind Kind

	In          int64 // given to callbacks that returned, or panicked
	Failed      int64 // of In: the call failed
	Filtered    int64 // of In: an operator let it go, as it is there to do
	Dropped     int64 // of In: an operator dropped it by its policy, or had it in hands when the stage ended; or its child was stopped
	Held        int64 // of In: an operator has it in hands now, or a child
	Emitted     int64 // by callbacks
	Pushed      int64 // into a source by its emitter
	Dispatched  int64 // of Emitted and Pushed: went out, to one consumer or, by a broadcast, to all
	Sent        int64 // to consumers; more or less than Dispatched only for a broadcast
	Buffered    int64 // in a source's buffer, and emitted output that waits for demand
	FilteredOut int64 // of Emitted and Pushed: the dispatcher had no partition for it
	CutOff      int64 // subscriptions that a broadcast has cut off, see [Slowest]
	Discarded   int64 // dropped by the overflow policy, or held when the stage ended

	// Undelivered is what was sent to a consumer that left, or that was
	// interrupted, before it had processed it. The part that a producer finds
	// is counted with the producer.
	Undelivered int64

	Restarts int64 // times it began anew after a failure, its own or that of a stage before it
	Resumed  int64 // failures after which it went on

	Messages        int64 // that the stage's handler was given; messages are no events
	MessagesWaiting int64 // in its mailbox
	MessagesLost    int64 // in its mailbox when the stage failed, was aborted, or could wait no longer
	Slots           int   // of a [Pool] or [Slots], over all its subscriptions; Held of them are in use
	ChildRestarts   int64 // how often a child was started again
	Abandoned       int64 // of Dropped: the child did not stop in time

	Consumers  int  // subscriptions that a source or a gate serves now
	InCallback bool // user code runs now
	Ended      bool
}

// Stats returns the counters of all stages, in the order they were connected.
// It takes no lock that a running stage waits for.
func (g *Graph) Stats() []Stats {
	g.mu.Lock()
	nodes := g.nodes
	g.mu.Unlock()
	all := make([]Stats, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, n.snapshot())
	}
	return all
}

func (b *base) snapshot() Stats {
	return Stats{
		Name: b.name, Kind: b.kind,
		In: b.stats.in.Load(), Failed: b.stats.failed.Load(),
		Filtered: b.stats.filtered.Load(), Dropped: b.stats.dropped.Load(), Held: b.stats.held.Load(),
		Emitted: b.stats.emitted.Load(), Dispatched: b.stats.sent.Load(), Sent: b.stats.sent.Load(),
		Buffered: b.stats.waiting.Load(), Discarded: b.stats.discarded.Load(), Undelivered: b.stats.undelivered.Load(),
		Restarts: b.stats.restarts.Load(), Resumed: b.stats.resumed.Load(),
		Messages: b.stats.messages.Load(), MessagesWaiting: b.stats.letters.Load(), MessagesLost: b.stats.messagesLost.Load(),
		FilteredOut: b.stats.filteredOut.Load(), CutOff: b.stats.cutOff.Load(),
		ChildRestarts: b.stats.childRestarts.Load(), Abandoned: b.stats.abandoned.Load(),
		InCallback: b.inCallback(), Ended: b.over.Load(),
	}
}

// lose counts what an operator let go.
func (b *base) lose(l losses) {
	add(&b.stats.filtered, l.filtered)
	add(&b.stats.dropped, l.dropped)
	add(&b.stats.failed, l.failed)
}

// inCallback reports whether user code runs, in the stage or in its workers.
func (b *base) inCallback() bool { return b.since.Load() != 0 || b.calls.Load() > 0 }
