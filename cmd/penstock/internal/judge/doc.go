// Package judge decides, from what the driver of a demo saw itself, whether
// anything was lost, repeated or put out of order.
//
// The driver is the only witness: it numbers every event, notes when it sends
// one and when that one is acknowledged, and receives a report of every event
// that a handler took, before that handler returns. The node that is killed
// and restarted is asked nothing.
//
// # Words
//
// An event is sent when the driver has written its id to the journal, and
// produced when its request was acknowledged. It is handled by a group when a
// handler of that group reported it, dead when it came out of the dead-letter
// topic for that group and was never handled. It is unknown when it was sent
// and not acknowledged, and lost for a group when it was produced and is
// neither handled nor dead. A delivery is one report of one event.
//
// # Using it
//
//	l := judge.NewLedger("billing", "emails")
//	l.Sent(0, l.KeyNumber("customer-7"))
//	l.Acked(0)
//	l.Handled("billing", 0)
//	v := l.Verdict()
//	fmt.Println(v.Groups["emails"].Lost) // 1
//
// # Invariants
//
//	handled, dead, acknowledged <= sent        (anything else is a phantom)
//	distinct + duplicates = delivered          (per group)
//	distinct + dead + lost >= produced         (per group; > only by unknown events that arrived)
//
// The judgement is arithmetic over the history: no clock, no goroutine, no
// file. Memory is a few bits per event and four bytes per key and group, so an
// hour at full rate fits beside the node.
package judge
