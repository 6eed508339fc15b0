package stream

// places are the requests whose answer named a place that was opened, and from
// which nothing has been settled yet, so that its consumer cannot know. They
// outlive the attachment and the run: an idle stream leaves memory, agents stop
// and start, and the checkpoint passes the place meanwhile. Asked for anew it
// would be lost.
//
// Invariant: there are at most takenKept.
type places map[triedKey]uint64

// takenKept bounds what an agent remembers. One that is forgotten is asked for
// again, as if nobody had taken it.
const takenKept = 4096

// note remembers an answer that was taken.
func (t *places) note(h *handshake, at Position) {
	switch at.Kind {
	case PositionEarliest, PositionAt, PositionAfter, PositionAtTime:
	default:
		return // it asks for nothing, or, as "latest" does, only once
	}
	if *t == nil {
		*t = places{}
	}
	key := keyOf(&h.sub.rec)
	if _, known := (*t)[key]; !known && len(*t) >= takenKept {
		for any := range *t {
			delete(*t, any)
			break
		}
	}
	(*t)[key] = h.request
	h.sub.untold = true
}

// forget is told that a subscription is no more, or that its consumer knows.
func (t places) forget(rec *SubscriptionRecord) { delete(t, keyOf(rec)) }
