package remote

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// near is the owner's side as a pure machine: which calls wait, which are on
// their way, and what may be sent. It does no I/O and reads no clock. Its
// methods return the frames to send, in order; a call that has ended is told by
// its reply, which has room for it.
//
// Invariants: while a connection is open sent <= limit, except that limit is
// never lowered; a delivery is in waiting or flying, never both, and a flying
// one was sent once; at most maxQuestions questions fly; after a connection is
// lost nothing flies.
type near struct {
	open    bool // both ends have said hello
	leaving bool // the subscriber takes no more
	max     int  // most events that it accepts at a time
	lineMax int  // longest line that it accepts, in bytes
	limit   uint64
	sent    uint64
	until   time.Time // the demand is void from then on

	waiting   []*call // deliveries, in the order in which they came
	asking    []*call // questions that wait for a connection or for their turn
	flying    map[uint64]*call
	questions int    // of those that fly
	last      uint64 // number of the last call sent, over all connections
}

// call is one question, or one delivery of several parts, of which the leading
// ones that fit are sent together.
type call struct {
	head     frame
	parts    []part // of a delivery: its containers
	overhead int    // bytes of its line beside them, at most

	number uint64 // while it flies
	taken  int    // parts that were sent
	given  bool   // up: nobody waits for it
	reply  chan reply
}

type part struct {
	line   []byte // a container in JSON
	events int
}

// reply is what becomes of a call.
type reply struct {
	frame frame
	err   error
}

func newNear() *near { return &near{flying: map[uint64]*call{}} }

// start takes a call. It ends by its reply, or when it is given up.
func (n *near) start(c *call, now time.Time) []outgoing {
	c.reply = make(chan reply, 1)
	if c.head.Kind == kindDeliver {
		n.waiting = append(n.waiting, c)
	} else {
		n.asking = append(n.asking, c)
	}
	return n.send(now)
}

// outgoing is a frame on its way, with the parts of a delivery.
type outgoing struct {
	frame frame
	parts []part
}

// send releases what may be sent now: questions by number, deliveries by
// demand, in the order in which they came.
func (n *near) send(now time.Time) (out []outgoing) {
	if !n.open || n.leaving {
		return nil
	}
	for len(n.asking) > 0 && n.questions < maxQuestions {
		c := n.asking[0]
		n.asking = n.asking[1:]
		n.questions++
		out = append(out, n.fly(c, nil))
	}
	for len(n.waiting) > 0 && now.Before(n.until) {
		c := n.waiting[0]
		taken, events := fit(c.parts, n.max, int(min(n.limit-n.sent, uint64(n.max))), n.lineMax-c.overhead)
		if taken < 0 {
			break
		}
		n.waiting = n.waiting[1:]
		if taken == 0 {
			c.reply <- reply{err: fmt.Errorf("container of %d events and %d bytes as a line, the subscriber takes %d and %d: %w",
				c.parts[0].events, len(c.parts[0].line)+c.overhead, n.max, n.lineMax, penstock.ErrTooLarge)}
			continue
		}
		n.sent += uint64(events)
		c.taken = taken
		out = append(out, n.fly(c, c.parts[:taken]))
	}
	return out
}

func (n *near) fly(c *call, parts []part) outgoing {
	n.last++
	c.number = n.last
	c.head.Call = c.number
	n.flying[c.number] = c
	return outgoing{frame: c.head, parts: parts}
}

// fit is how many leading parts go into one delivery of at most open events and
// lineMax bytes: 0 when the first one is beyond demandMax or lineMax, and negative
// when it has to wait for demand. Parts do not wait for each other: others may
// never leave so much demand at once.
func fit(parts []part, demandMax, open, lineMax int) (taken, events int) {
	bytes := 0 // with a comma behind each
	for _, p := range parts {
		if events+p.events > open || bytes+len(p.line)+1 > lineMax {
			if taken == 0 && p.events <= demandMax && len(p.line)+1 <= lineMax {
				return -1, 0
			}
			break
		}
		taken, events, bytes = taken+1, events+p.events, bytes+len(p.line)+1
	}
	return taken, events
}

// giveUp ends a call that nobody waits for any more. One that flies keeps its
// place until it is answered, so that bounds on what is sent hold.
func (n *near) giveUp(c *call) (out []outgoing) {
	if n.withdraw(c) || c.number == 0 || n.flying[c.number] != c {
		return nil
	}
	c.given = true
	return []outgoing{{frame: frame{Kind: kindCancel, Call: c.number}}}
}

// withdraw takes back a call that was not sent; false when it was.
func (n *near) withdraw(c *call) bool {
	for _, line := range []*[]*call{&n.waiting, &n.asking} {
		if i := slices.Index(*line, c); i >= 0 {
			*line = slices.Delete(*line, i, i+1)
			return true
		}
	}
	return false
}

// connected begins a connection whose subscriber has said hello. No demand is
// known yet.
func (n *near) connected(hello frame, lineMax int, now time.Time) []outgoing {
	n.open, n.leaving = true, false
	n.max, n.lineMax = hello.Demand, min(hello.MaxLine, lineMax)
	n.limit, n.sent, n.until = 0, 0, time.Time{}
	return n.send(now)
}

// lost ends a connection: what flies has an unknown outcome, what waits goes on
// waiting.
func (n *near) lost(why error) {
	n.open, n.leaving = false, false
	for _, c := range n.flying {
		c.reply <- reply{err: why}
	}
	clear(n.flying)
	n.questions = 0
}

// received takes a frame of the subscriber. An error ends the connection.
func (n *near) received(f *frame, now time.Time) ([]outgoing, error) {
	switch f.Kind {
	case kindDemand:
		if f.Limit < n.limit {
			return nil, bad("demand goes back from %d to %d", n.limit, f.Limit)
		}
		if f.Limit-n.sent > uint64(n.max) {
			return nil, bad("demand of %d events, and at most %d were announced", f.Limit-n.sent, n.max)
		}
		n.limit, n.until = f.Limit, now.Add(time.Duration(f.TTL)*time.Millisecond)
		return append([]outgoing{{frame: frame{Kind: kindAlive}}}, n.send(now)...), nil
	case kindLeave:
		if n.leaving {
			return nil, bad("leave, twice")
		}
		n.leaving = true
		return []outgoing{{frame: frame{Kind: kindLeft}}}, nil
	}
	return n.answered(f, now)
}

func (n *near) answered(f *frame, now time.Time) ([]outgoing, error) {
	c := n.flying[f.Call]
	if c == nil {
		return nil, bad("%s to call %d, which is not under way", f.Kind, f.Call)
	}
	question := c.head.Kind != kindDeliver
	if f.Kind != kindError && (f.Kind == kindPosition) != (c.head.Kind == kindHandshake) {
		return nil, bad("%s to a %s", f.Kind, c.head.Kind)
	}
	if len(f.Failed) > 0 {
		if events := c.events(); f.Failed[len(f.Failed)-1].Index >= events {
			return nil, bad("item %d of %d failed", f.Failed[len(f.Failed)-1].Index, events)
		}
	}
	delete(n.flying, f.Call)
	c.reply <- reply{frame: *f}
	if question {
		n.questions--
		return n.send(now), nil
	}
	return nil, nil
}

// events counts what was sent of a delivery.
func (c *call) events() (n int) {
	for _, p := range c.parts[:c.taken] {
		n += p.events
	}
	return n
}
