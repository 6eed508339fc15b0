package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

// visible is a visibility queue with one queue, read without an agent.
type visible struct {
	t       *testing.T
	queue   *VisibilityQueue
	adapter Adapter
}

func newVisible(t *testing.T, c VisibilityConfig) *visible {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	q, err := OpenVisibilityQueue(c)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewRingMapper("v", 1)
	if err != nil {
		t.Fatal(err)
	}
	a, err := q.NewAdapter(t.Context(), Environment{Provider: "v", Mapper: m})
	if err != nil {
		t.Fatal(err)
	}
	return &visible{t, q, a}
}

func (v *visible) put(values ...string) {
	v.t.Helper()
	for _, s := range values {
		if err := v.adapter.Enqueue(v.t.Context(), boxOf("s", 0, s)); err != nil {
			v.t.Fatal(err)
		}
	}
}

func (v *visible) receiver() Receiver {
	v.t.Helper()
	r, err := v.adapter.NewReceiver(QueueID{Name: "v"})
	if err != nil {
		v.t.Fatal(err)
	}
	if err := r.Init(v.t.Context()); err != nil {
		v.t.Fatal(err)
	}
	return r
}

func (v *visible) read(r Receiver, limit int) []Container {
	v.t.Helper()
	got, err := r.Read(v.t.Context(), limit)
	if err != nil {
		v.t.Fatal(err)
	}
	return got
}

func (v *visible) shutdown(r Receiver) {
	v.t.Helper()
	if err := r.Shutdown(v.t.Context()); err != nil {
		v.t.Error(err)
	}
}

// inWords is "value@token+attempts" of each container.
func inWords(cs []Container) string {
	var out []string
	for _, c := range cs {
		s := fmt.Sprintf("%s@%d", c.Events.Value(0), c.Token.Lo)
		if c.Attempts > 0 {
			s += fmt.Sprintf("+%d", c.Attempts)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestVisibilityConfigNamesTheBadField(t *testing.T) {
	for field, c := range map[string]VisibilityConfig{
		"Visibility": {Visibility: -1}, "Renew": {Renew: -1}, "Hold": {Hold: -1}, "Capacity": {Capacity: -1},
		"MaxReceives": {MaxReceives: -1}, "DeadLetter": {MaxReceives: 1},
	} {
		var f *penstock.FieldError
		if _, err := OpenVisibilityQueue(c); !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	var f *penstock.FieldError
	if _, err := OpenVisibilityQueue(VisibilityConfig{Visibility: time.Second, Renew: time.Second}); !errors.As(err, &f) || f.Field != "Renew" {
		t.Error(err)
	}
}

func TestFullVisibilityQueueRefuses(t *testing.T) {
	v := newVisible(t, VisibilityConfig{Capacity: 3})
	v.put("1", "2")
	if err := v.adapter.Enqueue(t.Context(), boxOf("s", 0, "3", "4")); !errors.Is(err, penstock.ErrFull) {
		t.Errorf("two events into room for one: %v, want ErrFull", err)
	}
	v.put("3")
	r := v.receiver()
	got := v.read(r, 10)
	if err := v.adapter.Enqueue(t.Context(), boxOf("s", 0, "4")); !errors.Is(err, penstock.ErrFull) {
		t.Errorf("hidden events count: %v, want ErrFull", err)
	}
	if err := r.Delivered(t.Context(), got[:1]); err != nil {
		t.Error(err)
	}
	v.put("4")
	want(t, "then", inWords(v.read(r, 10)), "4@4")
	v.shutdown(r)
}

// A container that nobody acknowledges in time comes again, with another token
// and one attempt more; nothing but that one.
func TestUnacknowledgedComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: 30 * time.Second, Hold: 1})
		v.put("a", "b", "c")
		r := v.receiver()
		got := v.read(r, 10)
		want(t, "first", inWords(got), "a@1 b@2 c@3")
		want(t, "hidden", inWords(v.read(r, 10)), "")
		if err := r.Delivered(t.Context(), got[1:2]); err != nil {
			t.Error(err)
		}
		time.Sleep(30*time.Second - 1)
		want(t, "before the time", inWords(v.read(r, 10)), "")
		waited := make(chan error, 1)
		go func() { waited <- r.(Waiter).Wait(t.Context()) }() // ends when the time is over
		time.Sleep(time.Nanosecond)
		if err := <-waited; err != nil {
			t.Error(err)
		}
		again := v.read(r, 10)
		want(t, "after it", inWords(again), "a@4+1 c@5+1")
		// The old receipts are late, the new ones count.
		if err := r.Delivered(t.Context(), []Container{got[0], again[1]}); !errors.Is(err, ErrReceiptExpired) {
			t.Errorf("a late acknowledgement: %v, want ErrReceiptExpired", err)
		}
		s := v.queue.Stats()[0]
		want(t, "state", fmt.Sprintf("%+v", s), "{Ready:0 Hidden:1 Events:1 Acknowledged:2 Repeated:2 LateReceipts:1 DeadLettered:0}")
		v.shutdown(r)
	})
}

// What a receiver holds is renewed, so that a slow delivery does not make it
// come again; not longer than Hold.
func TestReceiverRenewsWhatItHolds_FM46(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: 30 * time.Second, Hold: 2 * time.Minute})
		v.put("a", "b")
		r := v.receiver()
		got := v.read(r, 10)
		time.Sleep(2 * time.Minute)
		want(t, "while it is held", inWords(v.read(r, 10)), "")
		if err := r.Delivered(t.Context(), got[:1]); err != nil {
			t.Errorf("acknowledged after two minutes: %v", err)
		}
		time.Sleep(30 * time.Second)
		want(t, "held for too long", inWords(v.read(r, 10)), "b@3+1")
		v.shutdown(r)
	})
}

// A container that a failed delivery passed is not acknowledged and not
// renewed: it comes again when its time is over.
func TestPassedContainerComesAgain_OR109(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: 30 * time.Second})
		v.put("a", "b", "c")
		r := v.receiver()
		got := v.read(r, 10)
		if err := r.Delivered(t.Context(), []Container{got[0], got[2]}); err != nil {
			t.Error(err)
		}
		time.Sleep(31 * time.Second)
		want(t, "again", inWords(v.read(r, 10)), "b@4+1")
		v.shutdown(r)
	})
}

// A dead letter that the cache refused may be reported before what was read
// before it: that is held on, and acknowledged when its own turn comes.
func TestRefusedThatComeEarlyLeaveTheOthersHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: 30 * time.Second, Hold: time.Hour})
		v.put("a", "b", "c")
		r := v.receiver()
		got := v.read(r, 10)
		early := got[1]
		early.Events = Events{}
		if err := r.Delivered(t.Context(), []Container{early}); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Minute)
		want(t, "again", inWords(v.read(r, 10)), "")
		if err := r.Delivered(t.Context(), []Container{got[0], got[2]}); err != nil {
			t.Error(err)
		}
		want(t, "left", v.queue.Stats()[0].Events, 0)
		v.shutdown(r)
	})
}

// A receiver that ends gives back at once what it holds; one that dies leaves
// it hidden for its time. Either way it comes in the order of enqueueing.
func TestReceiverGivesBack_OR153(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: 30 * time.Second, Hold: time.Second})
		v.put("a", "b", "c")
		r := v.receiver()
		v.read(r, 2)
		v.shutdown(r)
		dead := v.receiver()
		want(t, "given back", inWords(v.read(dead, 2)), "a@3+1 b@4+1")
		r = v.receiver()
		want(t, "the rest", inWords(v.read(r, 10)), "c@5")
		v.shutdown(r)
		time.Sleep(31 * time.Second)
		r = v.receiver()
		want(t, "after the death", inWords(v.read(r, 10)), "a@6+2 b@7+2 c@8+1")
		v.shutdown(r)
		v.shutdown(dead)
	})
}

func TestPoisonousContainerIsADeadLetter_ORC39(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dead []Container
		refuse := true
		v := newVisible(t, VisibilityConfig{Visibility: time.Second, MaxReceives: 2, Hold: 1, DeadLetter: func(_ context.Context, c Container) error {
			if refuse {
				return errors.New("not now")
			}
			dead = append(dead, c)
			return nil
		}})
		v.put("bad")
		r := v.receiver()
		for i := range 2 {
			want(t, "handed out", len(v.read(r, 10)), 1)
			want(t, "dead letters", len(dead), 0)
			time.Sleep(time.Second)
			_ = i
		}
		v.put("good")
		got, err := r.Read(t.Context(), 10)
		want(t, "while the handler refuses", inWords(got), "good@3")
		if err != nil {
			t.Error(err)
		}
		if err := r.Delivered(t.Context(), got); err != nil {
			t.Error(err)
		}
		refuse = false
		time.Sleep(time.Second)
		want(t, "then", inWords(v.read(r, 10)), "")
		want(t, "dead letters", inWords(dead), "bad@0+2")
		want(t, "left", v.queue.Stats()[0].Events, 0)
		v.shutdown(r)
	})
}

func TestPanickingDeadLetterHandlerKeepsTheContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisible(t, VisibilityConfig{Visibility: time.Second, MaxReceives: 1, Hold: 1, DeadLetter: func(context.Context, Container) error { panic("no") }})
		v.put("bad")
		r := v.receiver()
		v.read(r, 10)
		time.Sleep(time.Second)
		var p *penstock.PanicError
		if _, err := r.Read(t.Context(), 10); !errors.As(err, &p) {
			t.Errorf("read: %v, want a *PanicError", err)
		}
		want(t, "left", v.queue.Stats()[0].Events, 1)
		v.shutdown(r)
	})
}

// Positions are refused: the queue has none. (ORC-140 for every adapter that
// cannot rewind.)
func TestVisibilityQueueCannotRewind_ORC140(t *testing.T) {
	v, err := OpenVisibilityQueue(VisibilityConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p := openProvider(t, v)
	defer p.Close()
	s := OfCodec(p, "n", "k", penstock.String())
	none := func(context.Context, penstock.Batch[string]) error { return nil }
	for _, where := range []Start{At(penstock.Token{Lo: 1}), After(penstock.Token{Lo: 1})} {
		if _, err := s.Subscribe(t.Context(), "x", none, From(where)); !errors.Is(err, penstock.ErrUnsupported) {
			t.Errorf("subscribe at a token: %v, want ErrUnsupported", err)
		}
	}
	subs, err := s.Subscriptions(t.Context())
	if err != nil || len(subs) > 0 {
		t.Errorf("registered: %v, %v", subs, err)
	}
	other := openErr(t, v, 3)
	if !errors.Is(other, penstock.ErrInvalid) {
		t.Errorf("a provider with another mapper: %v, want ErrInvalid", other)
	}
}

func openErr(t *testing.T, f Factory, queues int) error {
	t.Helper()
	p, err := Open(Config{Name: "other", Factory: f, Queues: queues})
	if err == nil {
		p.Close()
	}
	return err
}

// Over a provider: everything settled is acknowledged, a skipped event stays
// and comes again, and the attempts of the queue count on.
func TestProviderOverAVisibilityQueue_ORC77(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, err := OpenVisibilityQueue(VisibilityConfig{Visibility: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		p := openProvider(t, v, func(c *Config) { c.Queues = 2; c.MaxDeliveryTime = time.Second })
		s := OfCodec(p, "n", "k", penstock.String())
		var mu sync.Mutex
		var got []string
		start, again := time.Now(), 0
		if _, err := s.Subscribe(t.Context(), "x", func(_ context.Context, b penstock.Batch[string]) error {
			mu.Lock()
			defer mu.Unlock()
			if b.Value(0) == "7" {
				if time.Since(start) < 5*time.Second {
					return errors.New("not yet")
				}
				again = b.Attempt(0)
			}
			got = append(got, b.Value(0))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		stop := running(p)
		for i := range 20 {
			publish(t, s, fmt.Sprint(i))
		}
		time.Sleep(5 * time.Minute)
		mu.Lock()
		n := len(got)
		last := got[n-1]
		mu.Unlock()
		want(t, "delivered", n, 20)
		want(t, "last, when it came again", last, "7")
		want(t, "its attempt, after those of the queue", again, 2)
		if err := stop(); err != nil {
			t.Error(err)
		}
		events, acked := 0, uint64(0)
		for _, q := range v.Stats() {
			events += q.Events
			acked += q.Acknowledged
		}
		want(t, "left", events, 0)
		want(t, "acknowledged", acked, 20)
		p.Close()
	})
}

// A drain that is cut gives back what was not settled; the next run gets it in
// order.
func TestCutDrainGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, err := OpenVisibilityQueue(VisibilityConfig{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		stuck := true
		var got []string
		life := func() error {
			p := openProvider(t, v, func(c *Config) { c.Queues = 1; c.Drain = time.Second })
			defer p.Close()
			s := OfCodec(p, "n", "k", penstock.String())
			if _, err := s.Subscribe(t.Context(), "x", func(ctx context.Context, b penstock.Batch[string]) error {
				if stuck && b.Value(0) == "3" {
					<-ctx.Done()
					return ctx.Err()
				}
				got = append(got, b.Value(0))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			stop := running(p)
			if stuck {
				publish(t, s, "1")
				publish(t, s, "2")
				publish(t, s, "3")
				publish(t, s, "4")
			}
			time.Sleep(time.Minute)
			return stop()
		}
		var d *penstock.DrainError
		if err := life(); !errors.As(err, &d) || d.Left != 1 {
			t.Errorf("first run: %v, want one event left", err)
		}
		stuck = false
		if err := life(); err != nil {
			t.Error(err)
		}
		if i := slices.Index(got, "3"); i < 0 || got[len(got)-1] != "4" || got[len(got)-2] != "3" {
			t.Errorf("settled %v", got)
		}
		want(t, "left", v.Stats()[0].Events, 0)
	})
}

// A renewal beside the acknowledgement of the same receipts counted them as late,
// and said that the containers come again.
func TestAcknowledgedReceiptIsNotRenewed(t *testing.T) {
	v := newVisible(t, VisibilityConfig{Visibility: time.Hour})
	r := v.receiver().(*visibilityReceiver)
	for range 5 {
		for range 1000 {
			v.put("a")
		}
		got := v.read(r, 1000)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { // renews until it is stopped below, and is waited for
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					r.renewHeld(time.Now())
				}
			}
		}()
		err := r.Delivered(t.Context(), got)
		close(stop)
		<-done
		if err != nil {
			t.Error(err)
		}
	}
	want(t, "late", v.queue.Stats()[0].LateReceipts, 0)
	want(t, "acknowledged", v.queue.Stats()[0].Acknowledged, 5000)
	v.shutdown(r)
}
