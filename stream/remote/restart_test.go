package remote_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// The process of the owner is replaced by another one whose queue in memory
// begins anew, so that tokens, requests and revisions are those of the first
// one again. A subscriber that lives through it gets all of the new events.
func TestQueueThatBeginsAnewSwallowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newShop(t)
		first.publish(t, 1, 3)
		var l ledger
		var made atomic.Int32
		c := l.config()
		c.Consumer = func(stream.SubscriptionRecord) (stream.Consumer, error) {
			made.Add(1)
			return stream.NewConsumer(penstock.JSON[int](), l.handle)
		}
		var now atomic.Pointer[shop]
		now.Store(first)
		c.Dial = func(ctx context.Context) (io.ReadWriteCloser, error) { return now.Load().dial(ctx) }
		first.subscriber(c)
		time.Sleep(time.Minute)
		wantValues(t, &l, upTo(3))

		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		second := newShop(t)
		second.publish(t, 1, 5)
		now.Store(second)
		first.breakAll()
		time.Sleep(time.Minute)
		wantValues(t, &l, append(upTo(3), upTo(5)...))
		if n := made.Load(); n != 2 {
			t.Errorf("%d consumers made, want one for each history", n)
		}
	})
}

// Agents that stop and start again ask anew, and nothing comes twice.
func TestAgentsThatStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		var l ledger
		s.subscriber(l.config())
		s.publish(t, 1, 3)
		time.Sleep(time.Minute)
		if err := s.provider.StopAgents(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.publish(t, 4, 6)
		if err := s.provider.StartAgents(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		wantValues(t, &l, upTo(6))
	})
}

// A place that an agent has taken is not asked for again over a connection either,
// although nothing has come from it and the checkpoint has passed it.
func TestPlaceThatWasTakenIsNotAskedForAgain(t *testing.T) {
	for _, how := range []string{"attached again", "after inactivity", "agents started again"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, func(c *stream.Config) { c.Inactivity = time.Minute })
				other := stream.Of[int](s.provider, "orders", "8")
				nop := func(context.Context, penstock.Batch[int]) error { return nil }
				for _, at := range []*stream.Stream[int]{s.orders, other} {
					if _, err := at.Subscribe(t.Context(), "here", nop); err != nil {
						t.Fatal(err)
					}
				}
				var l ledger
				s.subscriber(remote.SubscriberConfig{Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
					return stream.NewConsumer(penstock.JSON[int](), l.handle, stream.From(stream.After(penstock.Token{})))
				}})
				s.publish(t, 1, 1) // its token is the one that it has
				time.Sleep(time.Second)
				for i := range 5 {
					if err := other.Publish(t.Context(), i); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				switch how {
				case "attached again":
					if _, err := s.provider.Attach(t.Context(), s.orders.ID(), "billing", s.owner); err != nil {
						t.Fatal(err)
					}
				case "after inactivity":
					time.Sleep(5 * time.Minute)
				default:
					if err := s.provider.StopAgents(t.Context()); err != nil {
						t.Fatal(err)
					}
					if err := s.provider.StartAgents(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(time.Second)
				s.publish(t, 2, 3)
				time.Sleep(time.Minute)
				wantValues(t, &l, []int{2, 3})
			})
		})
	}
}

// Without a subscriber a drain takes no longer than the patience of a call, and
// leaves nothing unsaid; the events come in the next run.
func TestDrainWithoutASubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		var l ledger
		_, leave := s.subscriber(l.config())
		s.publish(t, 1, 1)
		time.Sleep(time.Second)
		if err := leave(); err != nil {
			t.Fatal(err)
		}
		s.publish(t, 2, 3)
		time.Sleep(time.Minute)
		began := time.Now()
		if err := s.stop(); err != nil {
			t.Errorf("drain: %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the drain took %v, and a call waits for 1 s", took)
		}
		wantValues(t, &l, upTo(1))
	})
}

// What is decided about a subscription is told at the other end.
func TestNoticesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, remote.OwnerConfig{})
		told := make(chan stream.Notice, 1)
		n.subscriber(remote.SubscriberConfig{Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
			return stream.NewConsumer(penstock.JSON[int](), func(context.Context, penstock.Batch[int]) error { return nil },
				stream.OnNotice(func(_ context.Context, n stream.Notice) { told <- n }))
		}})
		time.Sleep(time.Second)
		want := stream.Notice{Kind: stream.NoticeFaulted, Subscription: stream.SubscriptionRecord{Name: "billing"}, Queue: stream.QueueID{Name: "q", Number: 3},
			Token: penstock.Token{Lo: 7}, Events: 2, Err: io.ErrUnexpectedEOF}
		n.owner.Notify(t.Context(), want)
		select {
		case got := <-told:
			if got.Err == nil || got.Err.Error() != want.Err.Error() {
				t.Errorf("error %v, want %v", got.Err, want.Err)
			}
			if got.Err = want.Err; got != want {
				t.Errorf("told %+v, want %+v", got, want)
			}
		default:
			t.Error("Notify has returned, and nothing was told")
		}
	})
}
