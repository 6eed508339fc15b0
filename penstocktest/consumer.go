package penstocktest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// StreamConsumer checks the seam between an agent and a consumer: whatever stands
// between them, such as a connection, hands questions and deliveries over as
// they are, and brings the answers back. open returns the near end, as an
// agent calls it, of a consumer that is far at the other end.
func StreamConsumer(t *testing.T, open func(t *testing.T, far stream.Consumer) (near stream.Consumer)) {
	streamConsumer(t, func(t *testing.T, f func(t *testing.T)) { f(t) }, open)
}

// StreamConsumerInBubble is [StreamConsumer] with each case, and open, in a
// testing/synctest bubble, where delays take no time. What open starts must
// have ended when its cleanup has.
func StreamConsumerInBubble(t *testing.T, open func(t *testing.T, far stream.Consumer) (near stream.Consumer)) {
	streamConsumer(t, synctest.Test, open)
}

func streamConsumer(t *testing.T, run func(t *testing.T, f func(t *testing.T)), open func(t *testing.T, far stream.Consumer) (near stream.Consumer)) {
	for _, s := range []struct {
		name string
		test func(t *testing.T, c *consumerRun)
	}{
		{"AnswersToHandshakesComeBack", handshakeAnswers},
		{"DeliveriesArriveAsTheyAre", deliveriesArrive},
		{"FailuresComeBackByIndex", failuresComeBack},
		{"RewindsComeBack", rewindsComeBack},
		{"ErrorsComeBack", errorsComeBack},
		{"HandshakeWhileADeliveryIsUnderWay", handshakeDuringDelivery},
		{"EndedContextEndsTheCall", consumerContext},
		{"ManyDeliveriesKeepTheirOrder", manyDeliveries},
	} {
		t.Run(s.name, func(t *testing.T) {
			run(t, func(t *testing.T) {
				far := &farConsumer{}
				s.test(t, &consumerRun{t: t, far: far, near: open(t, far)})
			})
		})
	}
}

type consumerRun struct {
	t    *testing.T
	far  *farConsumer
	near stream.Consumer
}

func (c *consumerRun) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	c.t.Cleanup(cancel)
	return ctx
}

// farConsumer does what the test says.
type farConsumer struct {
	mu        sync.Mutex
	handshake func(ctx context.Context, h stream.Handshake) (stream.Position, error)
	deliver   func(ctx context.Context, d *stream.Delivery) (stream.Answer, error)
}

func (f *farConsumer) Handshake(ctx context.Context, h stream.Handshake) (stream.Position, error) {
	f.mu.Lock()
	do := f.handshake
	f.mu.Unlock()
	if do == nil {
		return stream.Position{}, nil
	}
	return do(ctx, h)
}

func (f *farConsumer) Deliver(ctx context.Context, d *stream.Delivery) (stream.Answer, error) {
	f.mu.Lock()
	do := f.deliver
	f.mu.Unlock()
	if do == nil {
		return stream.Answer{}, nil
	}
	return do(ctx, d)
}

func (f *farConsumer) set(handshake func(context.Context, stream.Handshake) (stream.Position, error), deliver func(context.Context, *stream.Delivery) (stream.Answer, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handshake, f.deliver = handshake, deliver
}

func suiteRecord() stream.SubscriptionRecord {
	r := named("billing")
	r.Filter, r.Incarnation, r.Attached = "only 7", 4, 9
	return r
}

// suiteDelivery holds two containers, of two events and of one.
func suiteDelivery() *stream.Delivery {
	one := container(suiteStream.StreamID, "a", "b")
	one.Token, one.Time, one.Attempts = penstock.Token{Hi: 2, Lo: 7}, time.Unix(9, 10).UTC(), 3
	one.Header = penstock.Header{{Name: "trace", Value: "t"}}
	described(&one, 1, penstock.Meta{ID: "id", Key: "k", Header: penstock.Header{{Name: "h", Value: "v"}}})
	two := container(suiteStream.StreamID, "c")
	two.Token = penstock.Token{Hi: 2, Lo: 8}
	d := &stream.Delivery{Subscription: suiteRecord(), Queue: suiteQueue, Request: 5}
	for _, c := range []*stream.Container{&one, &two} {
		for i := range c.Events.Len() {
			t := c.Token
			t.Index = uint32(i)
			d.Items = append(d.Items, stream.Item{Token: t, Attempt: 4, From: c, Index: i})
		}
	}
	return d
}

// about is what a consumer can tell of an item.
func about(d *stream.Delivery) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%+v %s %d\n", d.Subscription, d.Queue, d.Request)
	for _, it := range d.Items {
		fmt.Fprintf(&b, "%s attempt %d %q %+v of %s, header %v, time %v\n", it.Token, it.Attempt, it.Value(), it.Event().Meta, it.From.Stream, it.From.Header, it.From.Time.UTC())
	}
	return b.String()
}

func handshakeAnswers(t *testing.T, c *consumerRun) {
	var asked []stream.Handshake
	for i, at := range []stream.Position{
		{}, {Kind: stream.PositionLatest}, {Kind: stream.PositionEarliest},
		{Kind: stream.PositionAt, Token: penstock.Token{Hi: 1 << 63, Lo: 3, Index: 2}},
		{Kind: stream.PositionAfter, Token: penstock.Token{Lo: 1<<64 - 1}},
		{Kind: stream.PositionResume, Token: penstock.Token{Lo: 4, Index: 1<<32 - 1}},
	} {
		c.far.set(func(_ context.Context, h stream.Handshake) (stream.Position, error) {
			asked = append(asked, h)
			return at, nil
		}, nil)
		question := stream.Handshake{Subscription: suiteRecord(), Queue: suiteQueue, Request: uint64(i + 1)}
		got, err := c.near.Handshake(c.ctx(), question)
		if err != nil || got != at {
			t.Errorf("answer %s came back as %s, %v", at, got, err)
		}
		if n := len(asked); n == 0 || !reflect.DeepEqual(asked[n-1], question) {
			t.Errorf("asked %+v, want %+v", asked, question)
		}
	}
}

func deliveriesArrive(t *testing.T, c *consumerRun) {
	got := make(chan string, 16)
	c.far.set(nil, func(_ context.Context, d *stream.Delivery) (stream.Answer, error) {
		got <- about(d)
		return stream.Answer{}, nil
	})
	a, err := c.near.Deliver(c.ctx(), suiteDelivery())
	if err != nil || len(a.Failed) > 0 || a.Rewind.Kind != stream.PositionNone {
		t.Errorf("answer %+v, %v; want all settled", a, err)
	}
	select {
	case d := <-got:
		if want := about(suiteDelivery()); d != want {
			t.Errorf("what arrived is not what was delivered:\n%swant\n%s", d, want)
		}
	default:
		t.Error("settled, and nothing arrived")
	}
}

func failuresComeBack(t *testing.T, c *consumerRun) {
	broken := map[string]error{"a": errors.New("first broke"), "c": errors.New("third broke")}
	c.far.set(nil, func(_ context.Context, d *stream.Delivery) (a stream.Answer, _ error) {
		for i := range d.Items { // what is known to be settled may be missing in a repetition
			if err := broken[string(d.Items[i].Value())]; err != nil {
				a.Failed = append(a.Failed, stream.ItemFailure{Index: i, Err: err})
			}
		}
		return a, nil
	})
	a, err := c.near.Deliver(c.ctx(), suiteDelivery())
	if err != nil || len(a.Failed) != 2 {
		t.Fatalf("%+v, %v; want two failures", a, err)
	}
	for i, want := range []string{"first broke", "third broke"} {
		if f := a.Failed[i]; f.Index != 2*i || f.Err == nil || !strings.Contains(f.Err.Error(), want) {
			t.Errorf("failure %d: %+v, want item %d with %q", i, f, 2*i, want)
		}
	}
}

func rewindsComeBack(t *testing.T, c *consumerRun) {
	at := stream.Position{Kind: stream.PositionAfter, Token: penstock.Token{Hi: 2, Lo: 3}}
	c.far.set(nil, func(context.Context, *stream.Delivery) (stream.Answer, error) {
		return stream.Answer{Rewind: at}, nil
	})
	if a, err := c.near.Deliver(c.ctx(), suiteDelivery()); err != nil || a.Rewind != at {
		t.Errorf("rewind %s came back as %+v, %v", at, a, err)
	}
}

func errorsComeBack(t *testing.T, c *consumerRun) {
	for _, far := range []error{errors.New("handler broke"), fmt.Errorf("logged out: %w", stream.ErrConsumerGone)} {
		c.far.set(
			func(context.Context, stream.Handshake) (stream.Position, error) { return stream.Position{}, far },
			func(context.Context, *stream.Delivery) (stream.Answer, error) { return stream.Answer{}, far })
		_, shaking := c.near.Handshake(c.ctx(), stream.Handshake{Subscription: suiteRecord(), Queue: suiteQueue, Request: 1})
		_, delivering := c.near.Deliver(c.ctx(), suiteDelivery())
		for what, err := range map[string]error{"Handshake": shaking, "Deliver": delivering} {
			if err == nil || !strings.Contains(err.Error(), far.Error()) || errors.Is(err, stream.ErrConsumerGone) != errors.Is(far, stream.ErrConsumerGone) {
				t.Errorf("%s: %v came back as %v", what, far, err)
			}
		}
	}
}

// handshakeDuringDelivery: a consumer inside its own call can still be asked.
func handshakeDuringDelivery(t *testing.T, c *consumerRun) {
	inside, release := make(chan struct{}), make(chan struct{})
	c.far.set(nil, func(context.Context, *stream.Delivery) (stream.Answer, error) {
		close(inside)
		<-release
		return stream.Answer{}, nil
	})
	delivered := make(chan error, 1)
	go func() { // ends with release
		_, err := c.near.Deliver(c.ctx(), suiteDelivery())
		delivered <- err
	}()
	select {
	case <-inside:
	case err := <-delivered:
		t.Fatalf("Deliver returned %v and nothing arrived", err)
	}
	if _, err := c.near.Handshake(c.ctx(), stream.Handshake{Subscription: suiteRecord(), Queue: suiteQueue, Request: 2}); err != nil {
		t.Errorf("Handshake during a delivery: %v", err)
	}
	select {
	case err := <-delivered:
		close(release)
		t.Fatalf("Deliver returned (%v) before its handler", err)
	default:
	}
	close(release)
	if err := <-delivered; err != nil {
		t.Errorf("Deliver: %v", err)
	}
}

// consumerContext: when the agent's context ends the handler's does too, and
// the call returns with an error.
func consumerContext(t *testing.T, c *consumerRun) {
	inside, ended := make(chan struct{}), make(chan struct{})
	c.far.set(nil, func(ctx context.Context, _ *stream.Delivery) (stream.Answer, error) {
		close(inside)
		select {
		case <-ctx.Done():
			close(ended)
		case <-time.After(guard):
		}
		return stream.Answer{}, ctx.Err()
	})
	ctx, cancel := context.WithCancel(c.ctx())
	delivered := make(chan error, 1)
	go func() { // ends with cancel
		_, err := c.near.Deliver(ctx, suiteDelivery())
		delivered <- err
	}()
	<-inside
	cancel()
	if err := <-delivered; err == nil {
		t.Error("Deliver whose context ended returned nil")
	}
	select {
	case <-ended:
	case <-time.After(guard):
		t.Error("the handler's context did not end")
	}
}

func manyDeliveries(t *testing.T, c *consumerRun) {
	var got []uint64
	c.far.set(nil, func(_ context.Context, d *stream.Delivery) (stream.Answer, error) {
		got = append(got, d.Items[0].Token.Lo)
		return stream.Answer{}, nil
	})
	const n = 100
	for i := uint64(1); i <= n; i++ {
		d := suiteDelivery()
		for k := range d.Items {
			d.Items[k].Token.Lo += 10 * i
			if k == 0 || d.Items[k].From != d.Items[k-1].From {
				d.Items[k].From.Token.Lo += 10 * i
			}
		}
		if _, err := c.near.Deliver(c.ctx(), d); err != nil {
			t.Fatalf("delivery %d: %v", i, err)
		}
	}
	for i, lo := range got {
		if want := 7 + 10*uint64(i+1); lo != want {
			t.Fatalf("token %d arrived in place %d, want %d", lo, i+1, want)
		}
	}
	if len(got) != n {
		t.Errorf("%d deliveries arrived, want %d", len(got), n)
	}
}
