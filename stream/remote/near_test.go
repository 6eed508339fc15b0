package remote

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
)

// start is the time of the machine tests; they add to it and wait for nothing.
var start = time.Unix(1000, 0)

func deliverCall(events ...int) *call {
	c := &call{head: frame{Kind: kindDeliver}}
	for _, n := range events {
		c.parts = append(c.parts, part{line: []byte("{}"), events: n})
	}
	return c
}

func askCall() *call { return &call{head: frame{Kind: kindHandshake}} }

// words tells frames shortly.
func words(out []outgoing) string {
	var w []string
	for _, o := range out {
		s := string(o.frame.Kind)
		if o.frame.Call > 0 {
			s += fmt.Sprint(" ", o.frame.Call)
		}
		if len(o.parts) > 0 {
			s += fmt.Sprint(" of ", len(o.parts))
		}
		w = append(w, s)
	}
	return strings.Join(w, ", ")
}

func sameWords(t *testing.T, what string, out []outgoing, want string) {
	t.Helper()
	if got := words(out); got != want {
		t.Errorf("%s: sent %q, want %q", what, got, want)
	}
}

func hear(t *testing.T, n *near, f frame, now time.Time) []outgoing {
	t.Helper()
	out, err := n.received(&f, now)
	if err != nil {
		t.Fatalf("%s: %v", f.Kind, err)
	}
	return out
}

func result(t *testing.T, c *call) (r reply, ended bool) {
	t.Helper()
	select {
	case r = <-c.reply:
		return r, true
	default:
		return r, false
	}
}

var helloOfTen = frame{Kind: kindHello, Demand: 10, MaxLine: minLine}

func TestNothingIsSentBeyondTheDemand(t *testing.T) {
	n := newNear()
	first, second, third := deliverCall(3), deliverCall(4), deliverCall(1)
	sameWords(t, "no connection", n.start(first, start), "")
	sameWords(t, "no demand yet", n.connected(helloOfTen, minLine, start), "")
	sameWords(t, "demand of 2", hear(t, n, frame{Kind: kindDemand, Limit: 2, TTL: 1000}, start), "alive")
	sameWords(t, "demand of 3", hear(t, n, frame{Kind: kindDemand, Limit: 3, TTL: 1000}, start), "alive, deliver 1 of 1")
	sameWords(t, "behind", n.start(second, start), "")
	sameWords(t, "not past the one before it", n.start(third, start), "")
	sameWords(t, "an answer is no demand", hear(t, n, frame{Kind: kindAnswer, Call: 1}, start), "")
	if _, ended := result(t, first); !ended {
		t.Error("the first has no answer")
	}
	sameWords(t, "demand of 8", hear(t, n, frame{Kind: kindDemand, Limit: 8, TTL: 1000}, start), "alive, deliver 2 of 1, deliver 3 of 1")
}

func TestDemandExpires(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1000}, start)
	sameWords(t, "before", n.start(deliverCall(1), start.Add(999*time.Millisecond)), "deliver 1 of 1")
	late := start.Add(time.Second)
	sameWords(t, "after", n.start(deliverCall(1), late), "")
	sameWords(t, "a question needs no demand", n.start(askCall(), late), "handshake 2")
	sameWords(t, "renewed", hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1}, late), "alive, deliver 3 of 1")
}

// A delivery that is more than the subscriber takes goes in parts of whole
// containers; one container that is more is refused, and does not hold up the
// others.
func TestLargeDeliveriesGoInParts(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1000}, start)
	c := deliverCall(4, 5, 3)
	sameWords(t, "9 of 12", n.start(c, start), "deliver 1 of 2")
	if c.taken != 2 || c.events() != 9 {
		t.Errorf("%d parts with %d events taken, want 2 with 9", c.taken, c.events())
	}
	hear(t, n, frame{Kind: kindAnswer, Call: 1}, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 19, TTL: 1000}, start)
	huge, behind := deliverCall(11), deliverCall(1)
	sameWords(t, "too many events", n.start(huge, start), "")
	if r, ended := result(t, huge); !ended || !errors.Is(r.err, penstock.ErrTooLarge) {
		t.Errorf("%+v, %v; want ErrTooLarge", r, ended)
	}
	sameWords(t, "behind it", n.start(behind, start), "deliver 2 of 1")
	long := deliverCall(1, 1)
	long.overhead = 100
	long.parts[0].line = make([]byte, minLine-long.overhead-1)
	sameWords(t, "as many bytes as a line has", n.start(long, start), "deliver 3 of 1")
	long = deliverCall(1)
	long.overhead = 100
	long.parts[0].line = make([]byte, minLine-long.overhead)
	n.start(long, start)
	if r, ended := result(t, long); !ended || !errors.Is(r.err, penstock.ErrTooLarge) {
		t.Errorf("%+v, %v; want ErrTooLarge", r, ended)
	}
}

// A large delivery takes what demand there is, in whole containers: others that
// have their small ones with a handler at all times would keep it waiting for ever.
func TestLargeDeliveryTakesWhatDemandThereIs(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1000}, start)
	sameWords(t, "a small one", n.start(deliverCall(1), start), "deliver 1 of 1")
	large := deliverCall(4, 5, 1)
	sameWords(t, "9 of 10", n.start(large, start), "deliver 2 of 2")
	if large.taken != 2 || n.sent != n.limit {
		t.Errorf("%d parts taken, %d of %d events sent", large.taken, n.sent, n.limit)
	}
	sameWords(t, "no demand", n.start(deliverCall(2, 1), start), "")
	sameWords(t, "demand of 1", hear(t, n, frame{Kind: kindDemand, Limit: 11, TTL: 1000}, start), "alive")
	sameWords(t, "demand of 2", hear(t, n, frame{Kind: kindDemand, Limit: 12, TTL: 1000}, start), "alive, deliver 3 of 1")
}

func TestLostConnectionEndsWhatWasSent(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1000}, start)
	sent, waits, asked := deliverCall(8), deliverCall(3), askCall()
	n.start(sent, start)
	n.start(waits, start)
	n.start(asked, start)
	n.lost(ErrLost)
	for name, c := range map[string]*call{"delivery": sent, "question": asked} {
		if r, ended := result(t, c); !ended || !errors.Is(r.err, ErrLost) {
			t.Errorf("%s: %+v, %v; want ErrLost", name, r, ended)
		}
	}
	if _, ended := result(t, waits); ended {
		t.Error("what was not sent has ended")
	}
	// The demand of the connection before is void.
	sameWords(t, "connected", n.connected(helloOfTen, minLine, start), "")
	sameWords(t, "demand", hear(t, n, frame{Kind: kindDemand, Limit: 3, TTL: 1000}, start), "alive, deliver 3 of 1")
	if _, err := n.received(&frame{Kind: kindAnswer, Call: 1}, start); !errors.Is(err, ErrProtocol) {
		t.Errorf("an answer over another connection than the call: %v", err)
	}
}

func TestCallsThatAreGivenUp(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 1, TTL: 1000}, start)
	sent, waits := deliverCall(1), deliverCall(1)
	n.start(sent, start)
	n.start(waits, start)
	sameWords(t, "one that waits", n.giveUp(waits), "")
	sameWords(t, "one that was sent", n.giveUp(sent), "cancel 1")
	sameWords(t, "demand", hear(t, n, frame{Kind: kindDemand, Limit: 2, TTL: 1000}, start), "alive")
	hear(t, n, frame{Kind: kindError, Call: 1, Error: "late"}, start) // still expected
	sameWords(t, "one that has ended", n.giveUp(sent), "")
}

func TestQuestionsAreBounded(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	sent := 0
	for range maxQuestions + 5 {
		sent += len(n.start(askCall(), start))
	}
	if sent != maxQuestions {
		t.Errorf("%d questions sent, want %d", sent, maxQuestions)
	}
	sameWords(t, "an answer makes room", hear(t, n, frame{Kind: kindPosition, Call: 7, Position: &position{Kind: "none"}}, start), fmt.Sprint("handshake ", maxQuestions+1))
}

func TestLeavingSubscriberGetsNoMore(t *testing.T) {
	n := newNear()
	n.connected(helloOfTen, minLine, start)
	hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1000}, start)
	sameWords(t, "leave", hear(t, n, frame{Kind: kindLeave}, start), "left")
	sameWords(t, "delivery", n.start(deliverCall(1), start), "")
	sameWords(t, "question", n.start(askCall(), start), "")
	sameWords(t, "demand", hear(t, n, frame{Kind: kindDemand, Limit: 10, TTL: 1000}, start), "alive")
	if _, err := n.received(&frame{Kind: kindLeave}, start); !errors.Is(err, ErrProtocol) {
		t.Errorf("leave, twice: %v", err)
	}
	sameWords(t, "the next connection", n.connected(helloOfTen, minLine, start), "handshake 1")
}

func TestSubscriberThatBreaksTheProtocol(t *testing.T) {
	for name, f := range map[string]frame{
		"demand that goes back":        {Kind: kindDemand, Limit: 4, TTL: 1},
		"demand above what it said":    {Kind: kindDemand, Limit: 16, TTL: 1},
		"answer to an unknown call":    {Kind: kindAnswer, Call: 9},
		"answer to a handshake":        {Kind: kindAnswer, Call: 2},
		"position for a delivery":      {Kind: kindPosition, Call: 1, Position: &position{Kind: "none"}},
		"failure of an unknown item":   {Kind: kindAnswer, Call: 1, Failed: []failure{{Index: 5}}},
		"answer to what was not given": {Kind: kindAnswer, Call: 3},
	} {
		n := newNear()
		n.connected(helloOfTen, minLine, start)
		hear(t, n, frame{Kind: kindDemand, Limit: 5, TTL: 1000}, start)
		n.start(deliverCall(5), start)
		n.start(askCall(), start)
		n.start(deliverCall(1), start) // waits
		if _, err := n.received(&f, start); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v, want ErrProtocol", name, err)
		}
	}
}
