package remote

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// offer makes a delivery of events with the tokens given, of one subscription.
func offer(name string, request uint64, los ...uint64) *stream.Delivery {
	id := penstock.StreamID{Namespace: "n", Key: "k"}
	d := &stream.Delivery{Request: request, Subscription: stream.SubscriptionRecord{
		Stream: stream.QualifiedStreamID{Provider: "p", StreamID: id}, Name: name, Incarnation: 1}}
	for _, lo := range los {
		c := &stream.Container{Stream: id, Token: penstock.Token{Lo: lo}, Events: stream.EventsOf(penstock.Envelope{})}
		d.Items = append(d.Items, stream.Item{Token: c.Token, Attempt: 1, From: c})
	}
	return d
}

// farRig drives the machine with a handler that answers at once, unless slow.
type farRig struct {
	*far
	t      *testing.T
	call   uint64
	got    []string // tokens handed to the handler, by delivery
	answer func(d *stream.Delivery) (stream.Answer, error)
	slow   bool
	busy   []*job
	said   []frame
}

func newFarRig(t *testing.T, max, memory int) *farRig {
	return &farRig{far: newFar(max, max*3/4, memory, 100), t: t}
}

func (r *farRig) connect(conn uint64, sameOwner, sameHistory bool) {
	r.far.connected(conn, defaultMaxLine, sameOwner, sameHistory)
	r.demand(true)
}

func (r *farRig) deliver(d *stream.Delivery) {
	r.t.Helper()
	r.call++
	run, reply, err := r.far.delivered(r.call, d)
	if err != nil {
		r.t.Fatal(err)
	}
	if reply != nil {
		r.said = append(r.said, *reply)
	}
	if run != nil {
		r.run(run)
	}
	r.demand(false)
}

func (r *farRig) run(j *job) {
	for j != nil {
		var tokens []string
		for _, it := range j.rest.Items {
			tokens = append(tokens, fmt.Sprint(it.Token.Lo))
		}
		r.got = append(r.got, strings.Join(tokens, ","))
		if r.slow {
			r.busy = append(r.busy, j)
			return
		}
		j = r.finish(j)
	}
}

func (r *farRig) finish(j *job) *job {
	var a stream.Answer
	var err error
	if r.answer != nil {
		a, err = r.answer(j.rest)
	}
	next, replies := r.far.handled(j, a, err)
	r.said = append(r.said, replies...)
	r.demand(false)
	return next
}

func (r *farRig) want(what, got string) {
	r.t.Helper()
	if is := strings.Join(r.got, " "); is != got {
		r.t.Errorf("%s: handler got %q, want %q", what, is, got)
	}
}

// wantSaid compares the last answer: settled, or what failed.
func (r *farRig) wantSaid(what, want string) {
	r.t.Helper()
	if len(r.said) == 0 {
		r.t.Fatalf("%s: nothing was answered", what)
	}
	f := r.said[len(r.said)-1]
	got := string(f.Kind)
	for _, x := range f.Failed {
		got += fmt.Sprint(" ", x.Index)
	}
	if f.Position != nil {
		got += " " + f.Position.Kind
	}
	if got != want {
		r.t.Errorf("%s: answered %q, want %q", what, got, want)
	}
}

// ORC-62: what was settled and comes again because its answer was lost is
// settled without the handler.
func TestLostAnswerDoesNotCallTheHandlerAgain_ORC62(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	r.deliver(offer("a", 1, 5))
	r.far.lost()
	r.connect(2, true, true)
	r.deliver(offer("a", 1, 5))
	r.wantSaid("the repetition", "answer")
	r.deliver(offer("a", 1, 6))
	r.want("5, 5 again, 6", "5 6")
	if len(r.said) != 3 {
		t.Errorf("%d answers, want 3", len(r.said))
	}
}

// Of a delivery of which some failed, only those are handled again, and both
// answers name them by their place in the delivery.
func TestLostAnswerOfAPartlyFailedDelivery(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	bad := errors.New("broke")
	r.answer = func(d *stream.Delivery) (a stream.Answer, err error) {
		for i := range d.Items {
			if lo := d.Items[i].Token.Lo; lo == 2 || lo == 4 {
				a.Failed = append(a.Failed, stream.ItemFailure{Index: i, Err: bad})
			}
		}
		return a, nil
	}
	r.deliver(offer("a", 1, 1, 2, 3, 4))
	r.wantSaid("first", "answer 1 3")
	r.deliver(offer("a", 1, 1, 2, 3, 4))
	r.wantSaid("repetition", "answer 1 3")
	r.answer = nil
	r.deliver(offer("a", 1, 1, 2, 3, 4))
	r.wantSaid("again", "answer")
	r.deliver(offer("a", 1, 1, 2, 3, 4))
	r.wantSaid("and again", "answer")
	r.want("all", "1,2,3,4 2,4 2,4")
}

func TestFailedDeliveryIsHandledAgain(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	r.answer = func(*stream.Delivery) (stream.Answer, error) { return stream.Answer{}, errors.New("broke") }
	r.deliver(offer("a", 1, 1))
	r.wantSaid("failed", "error")
	r.answer = nil
	r.deliver(offer("a", 1, 1))
	r.wantSaid("again", "answer")
	r.want("both", "1 1")
}

// What the consumer asks for again, or what belongs to another life of the
// subscription, of the owner or of its queue, is handed over although its token
// was settled.
func TestWhatIsAskedForAgainIsHandled(t *testing.T) {
	for name, between := range map[string]func(r *farRig) *stream.Delivery{
		"another handshake": func(*farRig) *stream.Delivery { return offer("a", 2, 5) },
		"another incarnation": func(*farRig) *stream.Delivery {
			d := offer("a", 1, 5)
			d.Subscription.Incarnation = 2
			return d
		},
		"another subscription": func(*farRig) *stream.Delivery { return offer("b", 1, 5) },
		"another owner":        func(r *farRig) *stream.Delivery { r.far.lost(); r.connect(2, false, true); return offer("a", 1, 5) },
		"another history":      func(r *farRig) *stream.Delivery { r.far.lost(); r.connect(2, true, false); return offer("a", 1, 5) },
		"a rewind": func(r *farRig) *stream.Delivery {
			r.answer = func(*stream.Delivery) (stream.Answer, error) {
				return stream.Answer{Rewind: stream.Position{Kind: stream.PositionAt, Token: penstock.Token{Lo: 5}}}, nil
			}
			r.deliver(offer("a", 1, 5, 6))
			r.wantSaid("rewind", "answer at")
			r.answer, r.got = nil, []string{"5"}
			return offer("a", 1, 5)
		},
	} {
		r := newFarRig(t, 10, 10)
		r.connect(1, false, false)
		r.deliver(offer("a", 1, 5))
		r.deliver(between(r))
		r.want(name, "5 5")
	}
}

// What is with a handler when a history ends is not remembered under the next.
func TestOutcomeFromAnotherHistoryIsForgotten(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	r.slow = true
	r.deliver(offer("a", 1, 5))
	r.far.lost()
	r.connect(2, false, false)
	r.deliver(offer("a", 1, 5))
	r.want("one at a time", "5")
	next := r.finish(r.busy[0])
	if next == nil {
		t.Fatal("the second waits although the first has ended")
	}
	r.run(next)
	r.want("both", "5 5")
	if len(r.said) != 0 {
		t.Errorf("an answer to a call of an earlier connection: %+v", r.said)
	}
}

// A delivery that comes again while the first one is still with the handler
// waits for it, and is settled by its outcome.
func TestRepetitionWaitsForTheHandler(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	r.slow = true
	r.deliver(offer("a", 1, 5))
	r.far.lost()
	r.connect(2, true, true)
	r.deliver(offer("a", 1, 5))
	if next := r.finish(r.busy[0]); next != nil {
		t.Error("handled again")
	}
	r.want("once", "5")
	if len(r.said) != 1 || r.said[0].Call != 2 || r.said[0].Kind != kindAnswer {
		t.Errorf("answered %+v, want call 2 settled", r.said)
	}
}

// Open demand and what is held never exceed the most, over connections too, and
// everything that is held comes back as demand.
func TestDemandCountsWhatIsHeld(t *testing.T) {
	r := newFarRig(t, 10, 10)
	check := func(what string, held, open int) {
		t.Helper()
		if got := int(r.told - r.taken); r.held != held || got != open {
			t.Errorf("%s: held %d, open %d; want %d and %d", what, r.held, got, held, open)
		}
	}
	r.connect(1, false, false)
	check("connected", 0, 10)
	r.slow = true
	r.deliver(offer("a", 1, 1, 2, 3, 4))
	check("4 with a handler", 4, 6)
	r.deliver(offer("b", 1, 1, 2, 3, 4, 5, 6))
	check("10 with handlers", 10, 0)
	if _, _, err := r.far.delivered(99, offer("c", 1, 1)); !errors.Is(err, ErrProtocol) {
		t.Errorf("delivered beyond the demand: %v", err)
	}
	r.far.lost()
	r.connect(2, true, true)
	check("another connection", 10, 0)
	r.finish(r.busy[0])
	check("4 back", 6, 4)
	r.finish(r.busy[1])
	check("all back", 0, 10)
	r.far.leaving = true
	before := r.told
	if limit, tell := r.demand(true); !tell || limit != before {
		t.Errorf("leaving: limit %d, %v; want the same again, so that it does not expire", limit, tell)
	}
}

// Small deliveries give demand back before it is used up, large ones as soon as
// nothing is held.
func TestDemandIsToldInTime(t *testing.T) {
	r := newFarRig(t, 100, 100)
	r.connect(1, false, false)
	tells := 0
	for i := range uint64(50) {
		before := r.told
		r.deliver(offer("a", 1, i+1))
		if r.told != before {
			tells++
		}
		if r.told-r.taken < 75 {
			t.Fatalf("open demand %d", r.told-r.taken)
		}
	}
	if tells == 0 {
		t.Error("never told")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	for i := range 20 {
		r.deliver(offer(fmt.Sprint(i), 1, 1, 2, 3))
		if r.tokens > 10 {
			t.Fatalf("%d tokens remembered, at most 10", r.tokens)
		}
	}
	sum := 0
	for _, l := range r.lanes {
		sum += len(l.settled)
	}
	if sum != r.tokens || sum != 9 {
		t.Errorf("%d tokens remembered, %d counted; want 9", sum, r.tokens)
	}
	r.got = nil
	r.deliver(offer("19", 1, 1, 2, 3))
	r.want("the last one is known", "")
	r.deliver(offer("0", 1, 1, 2, 3))
	r.want("the first one is not", "1,2,3")
}

func TestSubscriptionsAreBounded(t *testing.T) {
	r := newFarRig(t, 1000, 10)
	r.connect(1, false, false)
	r.slow = true
	for i := range 100 {
		r.deliver(offer(fmt.Sprint(i), 1, 1))
	}
	r.deliver(offer("one more", 1, 1))
	r.wantSaid("one more", "error")
	if f := r.said[len(r.said)-1]; !f.Away {
		t.Errorf("answered %+v; nobody has tried it, want away", f)
	}
	if _, reply := r.far.asked(1, offer("two more", 1).Subscription); reply == nil || reply.Kind != kindError {
		t.Errorf("asked for one more: %+v", reply)
	}
	if r.held != 100 {
		t.Errorf("%d events held, want those at work", r.held)
	}
}

func TestLeavingRefusesWithoutAnAttempt(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	r.far.leaving = true
	r.deliver(offer("a", 1, 1))
	if f := r.said[0]; !f.Away {
		t.Errorf("answered %+v, want away", f)
	}
	if _, reply := r.far.asked(2, offer("a", 1).Subscription); reply == nil || !reply.Away {
		t.Errorf("asked: %+v, want away", reply)
	}
	r.want("nothing", "")
}

func TestCancelOfADelivery(t *testing.T) {
	r := newFarRig(t, 10, 10)
	r.connect(1, false, false)
	r.slow = true
	r.deliver(offer("a", 1, 1))
	r.deliver(offer("a", 1, 2))
	if stop, reply := r.far.cancelled(1); stop != r.busy[0] || reply != nil {
		t.Errorf("one that is handled: %v, %v", stop, reply)
	}
	if stop, reply := r.far.cancelled(2); stop != nil || reply == nil || !reply.Away {
		t.Errorf("one that waits: %v, %+v", stop, reply)
	}
	if stop, reply := r.far.cancelled(3); stop != nil || reply != nil {
		t.Errorf("one that is not there: %v, %v", stop, reply)
	}
	r.far.lost()
	r.connect(2, true, true)
	r.deliver(offer("a", 1, 1))
	if stop, reply := r.far.cancelled(3); stop != r.busy[0] || reply == nil {
		t.Errorf("one that waits for an earlier connection's: %v, %v", stop, reply)
	}
	if r.held != 1 {
		t.Errorf("held %d, want 1", r.held)
	}
}

// A consumer that answers nonsense fails its delivery, and nothing of it is
// remembered.
func TestNonsenseFailsTheDelivery(t *testing.T) {
	for name, failed := range map[string][]stream.ItemFailure{
		"negative": {{Index: -1}}, "beyond": {{Index: 2}}, "twice": {{Index: 1}, {Index: 1}},
	} {
		r := newFarRig(t, 10, 10)
		r.connect(1, false, false)
		r.answer = func(*stream.Delivery) (stream.Answer, error) { return stream.Answer{Failed: failed}, nil }
		r.deliver(offer("a", 1, 1, 2))
		r.wantSaid(name, "error")
		if r.tokens != 0 {
			t.Errorf("%s: %d tokens remembered", name, r.tokens)
		}
	}
}
