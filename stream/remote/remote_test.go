package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// shop is a provider in a bubble whose subscription "billing" of stream
// orders/7 is across a network.
type shop struct {
	*network
	provider *stream.Provider
	orders   *stream.Stream[int]
	stop     func() error
}

func newShop(t *testing.T, change ...func(c *stream.Config)) *shop {
	t.Helper()
	topic, err := stream.OpenTopic(queue.Config[stream.Container]{Name: "shop", Partitions: 1, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{network: newNetwork(t, remote.OwnerConfig{})}
	c := stream.Config{Name: "shop", Factory: topic, Queues: 1, Logger: quiet, DeliveryBackoff: stream.Fixed(10 * time.Millisecond)}
	for _, f := range change {
		f(&c)
	}
	s.provider, err = stream.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	s.orders = stream.Of[int](s.provider, "orders", "7")
	if _, err := s.provider.Attach(t.Context(), s.orders.ID(), "billing", s.owner); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.provider.Run(ctx) }() // ended by stop
	s.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		s.stop()
		if err := s.provider.Close(); err != nil {
			t.Error(err)
		}
		if err := topic.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *shop) publish(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if err := s.orders.Publish(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
}

// ledger is a handler that records.
type ledger struct {
	mu  sync.Mutex
	got []int
	do  func(ctx context.Context, b penstock.Batch[int]) error
}

func (l *ledger) handle(ctx context.Context, b penstock.Batch[int]) error {
	l.mu.Lock()
	l.got = append(l.got, b.Values()...)
	do := l.do
	l.mu.Unlock()
	if do != nil {
		return do(ctx, b)
	}
	return nil
}

func (l *ledger) values() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

func (l *ledger) config() remote.SubscriberConfig {
	return remote.SubscriberConfig{Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
		return stream.NewConsumer(penstock.JSON[int](), l.handle)
	}}
}

func upTo(n int) (out []int) {
	for i := range n {
		out = append(out, i+1)
	}
	return out
}

func wantValues(t *testing.T, l *ledger, want []int) {
	t.Helper()
	if got := l.values(); !slices.Equal(got, want) {
		t.Errorf("handled %v, want %v", got, want)
	}
}

// Over a connection that is slow, breaks with answers on their way and is gone
// for minutes, each event is handled once and in order, and the provider drains
// with nothing left.
func TestStreamAcrossABadConnection_ORC62(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		s.delay = 30 * time.Millisecond
		answers := 0
		s.cut = func(_ int, line string) bool {
			if isAnswer(line) {
				answers++
				return answers%3 == 0
			}
			return false
		}
		var l ledger
		_, stop := s.subscriber(l.config())
		time.Sleep(time.Minute)
		s.publish(t, 1, 20)
		time.Sleep(time.Minute)
		s.set(func(n *network) { n.down = true })
		s.breakAll()
		s.publish(t, 21, 25)
		time.Sleep(20 * time.Minute) // longer than any time for attempts
		wantValues(t, &l, upTo(20))
		s.set(func(n *network) { n.down = false })
		time.Sleep(time.Minute)
		wantValues(t, &l, upTo(25))
		if s.dialled() < 5 {
			t.Errorf("%d connections: the test has lost no answers", s.dialled())
		}
		if err := stop(); err != nil {
			t.Errorf("subscriber: %v", err)
		}
		if err := s.stop(); err != nil {
			t.Errorf("provider: %v", err)
		}
	})
}

// A network that swallows everything, so that neither end is told: both give
// the connection up after twice the expiry, and nothing is sent meanwhile once
// the demand has expired.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		var l ledger
		c := l.config()
		c.Expiry = 3 * time.Second
		s.subscriber(c)
		time.Sleep(time.Second)
		s.publish(t, 1, 1)
		time.Sleep(time.Second)
		wantValues(t, &l, upTo(1))
		s.set(func(n *network) { n.delay = time.Hour })
		s.publish(t, 2, 2)
		time.Sleep(10 * time.Second)
		wantValues(t, &l, upTo(1))
		if got := s.served(); len(got) == 0 || !errors.Is(got[0], remote.ErrLost) {
			t.Errorf("the owner has ended %v, want ErrLost", got)
		}
		s.set(func(n *network) { n.delay = 0 })
		time.Sleep(time.Minute)
		wantValues(t, &l, upTo(2))
	})
}

// A drain of the subscriber lets the handler end, answers, and takes nothing
// new; the next subscriber goes on behind it.
func TestSubscriberDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		var l ledger
		l.do = func(ctx context.Context, _ penstock.Batch[int]) error {
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		_, stop := s.subscriber(l.config())
		time.Sleep(time.Second)
		s.publish(t, 1, 3)
		time.Sleep(time.Second)
		began := time.Now()
		if err := stop(); err != nil {
			t.Errorf("drain: %v", err)
		}
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the drain took %v, and the handler was due in 4 s", took)
		}
		wantValues(t, &l, upTo(1))
		l.do = nil
		time.Sleep(time.Second) // else the next one may take the place before the answer is there
		s.subscriber(l.config())
		time.Sleep(time.Minute)
		wantValues(t, &l, upTo(3))
	})
}

// A handler that does not end in time is cancelled, and one that does not heed
// that is left behind; both are told.
func TestSubscriberDrainIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		release := make(chan struct{})
		var l ledger
		l.do = func(context.Context, penstock.Batch[int]) error { <-release; return nil }
		c := l.config()
		c.Drain = 2 * time.Second
		sub, stop := s.subscriber(c)
		time.Sleep(time.Second)
		s.publish(t, 1, 1)
		time.Sleep(time.Second)
		began := time.Now()
		err := stop()
		var left *penstock.DrainError
		if !errors.As(err, &left) || left.Left != 1 {
			t.Errorf("%v, want a DrainError with 1 left", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the drain took %v, want 2 s and 1 s for the cancelled", took)
		}
		if err := sub.Run(t.Context()); !errors.Is(err, penstock.ErrExists) {
			t.Errorf("run again with a handler left behind: %v", err)
		}
		close(release)
	})
}

// The newest subscriber has the owner; the one before ends and does not fight
// for the place.
func TestSecondSubscriberTakesThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		var first, second ledger
		_, stopFirst := s.subscriber(first.config())
		time.Sleep(time.Second)
		s.publish(t, 1, 1)
		time.Sleep(time.Second)
		s.subscriber(second.config())
		time.Sleep(time.Minute)
		s.publish(t, 2, 2)
		time.Sleep(time.Minute)
		if err := stopFirst(); !errors.Is(err, remote.ErrReplaced) {
			t.Errorf("the first one: %v, want ErrReplaced", err)
		}
		wantValues(t, &first, upTo(1))
		wantValues(t, &second, []int{2})
	})
}

// A consumer that panics, ends its goroutine or is not made fails its call, and
// the subscriber goes on.
func TestUserCodeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, remote.OwnerConfig{})
		makes := 0
		far := &scripted{}
		n.subscriber(remote.SubscriberConfig{Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) {
			switch makes++; makes {
			case 1:
				panic("no consumer")
			case 2:
				return nil, errors.New("not yet")
			case 3:
				return nil, nil
			}
			return far, nil
		}})
		time.Sleep(time.Second)
		for _, want := range []string{"no consumer", "not yet", "no consumer was made", "handshake broke"} {
			if _, err := n.owner.Handshake(t.Context(), stream.Handshake{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want one that says %q", err, want)
			}
		}
		if _, err := n.owner.Handshake(t.Context(), stream.Handshake{}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		if makes != 4 {
			t.Errorf("%d consumers made, want 4", makes)
		}
	})
}

type scripted struct{ calls int }

func (s *scripted) Handshake(context.Context, stream.Handshake) (stream.Position, error) {
	if s.calls++; s.calls == 1 {
		panic("handshake broke")
	}
	return stream.Position{}, nil
}

func (s *scripted) Deliver(context.Context, *stream.Delivery) (stream.Answer, error) {
	return stream.Answer{}, nil
}

// Each of these ends the connection with an error that says why, at the owner,
// and with a last line to whoever still reads.
func TestWhatEndsAConnectionOfAnOwner(t *testing.T) {
	hello := `{"type":"hello","version":1,"id":"x","demand":10,"max_line":65536}` + "\n"
	for name, c := range map[string]struct {
		lines string
		close bool
		want  error
		says  string
		bye   bool
	}{
		"closed at once":        {"", true, remote.ErrLost, "EOF", false},
		"closed inside a line":  {`{"type":`, true, io.ErrUnexpectedEOF, "cut short", false},
		"closed behind hello":   {hello, true, remote.ErrLost, "connection lost", false}, // seen by the reader or by the writer
		"silent from the start": {"", false, remote.ErrLost, "nothing heard", false},
		"silent behind hello":   {hello, false, remote.ErrLost, "nothing heard", false},
		"a bad line":            {hello + "nonsense\n", false, remote.ErrProtocol, "not an object", true},
		"a line without an end": {strings.Repeat("x", 1<<17), false, penstock.ErrTooLarge, "longer than", true},
		"no hello":              {`{"type":"leave"}` + "\n", false, remote.ErrProtocol, "before hello", true},
		"hello, twice":          {hello + hello, false, remote.ErrProtocol, "twice", true},
		"another version":       {`{"type":"hello","version":2}` + "\n", false, penstock.ErrUnsupported, "version 2", true},
		"goodbye":               {hello + `{"type":"bye"}` + "\n", false, nil, "", false},
		"goodbye with a reason": {hello + `{"type":"bye","error":"tired"}` + "\n", false, remote.ErrLost, "tired", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, err := remote.NewOwner(remote.OwnerConfig{Logger: quiet, MaxLine: 1 << 16})
				if err != nil {
					t.Fatal(err)
				}
				near, far := net.Pipe()
				heard := make(chan string, 1)
				go func() { // ends with the pipe
					b, _ := io.ReadAll(far)
					heard <- string(b)
				}()
				go func() { // ends with the pipe
					io.WriteString(far, c.lines)
					if c.close {
						far.Close()
					}
				}()
				err = o.Serve(t.Context(), near)
				if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %v that says %q", err, c.want, c.says)
				}
				if bye := strings.Contains(<-heard, `"type":"bye"`); bye != c.bye {
					t.Errorf("told why: %v, want %v", bye, c.bye)
				}
			})
		})
	}
}

// A subscriber goes on after all of these but the two that cannot get better.
func TestWhatEndsASubscriber(t *testing.T) {
	hello := `{"type":"hello","version":1,"id":"o","history":"h","max_line":65536}` + "\n"
	for name, c := range map[string]struct {
		lines string
		want  error // of Run; nil when it connects again
	}{
		"closed at once":         {"", nil},
		"nonsense":               {"nonsense\n", nil},
		"no hello":               {`{"type":"alive"}` + "\n", nil},
		"delivery beyond demand": {hello + delivery(11), nil},
		"goodbye":                {hello + `{"type":"bye","error":"restarting"}` + "\n", nil},
		"another version":        {`{"type":"hello","version":7}` + "\n", penstock.ErrUnsupported},
		"refused for good":       {`{"type":"bye","error":"version 1 is too old","final":true}` + "\n", penstock.ErrUnsupported},
		"replaced":               {hello + `{"type":"bye","error":"another subscriber has taken the place","final":true}` + "\n", remote.ErrReplaced},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l ledger
				config := l.config()
				config.Logger, config.Demand = quiet, 10
				dials := 0
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				config.Dial = func(context.Context) (io.ReadWriteCloser, error) {
					if dials++; dials == 3 {
						cancel()
					}
					near, far := net.Pipe()
					go io.Copy(io.Discard, near) // ends with the pipe
					go func() {                  // ends with the pipe
						io.WriteString(near, c.lines)
						if c.lines == "" {
							near.Close()
						}
					}()
					return far, nil
				}
				s, err := remote.NewSubscriber(config)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Run(ctx); !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("Run: %v, want %v", err, c.want)
				}
				if want := map[bool]int{true: 3, false: 1}[c.want == nil]; dials != want {
					t.Errorf("%d connections, want %d", dials, want)
				}
				if got := l.values(); len(got) > 0 {
					t.Errorf("handled %v", got)
				}
			})
		})
	}
}

func delivery(n int) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(`{"index":%d,"attempt":1,"value":"MQ=="}`, i)
	}
	return fmt.Sprintf(`{"type":"deliver","call":1,"subscription":{"provider":"p","namespace":"n","name":"x"},"queue":{"name":"q","number":0},"request":1,"containers":[{"namespace":"n","token":"t1:0:1:0","items":[%s]}]}`+"\n", strings.Join(items, ","))
}

// A delivery that is larger than what the subscriber takes at a time goes in
// parts; when one fails, what follows was not tried and fails too.
func TestDeliveryInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, remote.OwnerConfig{})
		far := &sized{}
		n.subscriber(remote.SubscriberConfig{Demand: 2, Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return far, nil }})
		time.Sleep(time.Second)
		d := &stream.Delivery{Request: 1}
		for i := range 5 {
			c := &stream.Container{Token: penstock.Token{Lo: uint64(i)}, Events: stream.EventsOf(penstock.Envelope{})}
			d.Items = append(d.Items, stream.Item{Token: c.Token, Attempt: 1, From: c})
		}
		if a, err := n.owner.Deliver(t.Context(), d); err != nil || len(a.Failed) > 0 {
			t.Errorf("%+v, %v; want all settled", a, err)
		}
		if !slices.Equal(far.sizes, []int{2, 2, 1}) {
			t.Errorf("parts of %v, want 2 2 1", far.sizes)
		}
		far.fail, d.Request = 3, 2
		a, err := n.owner.Deliver(t.Context(), d)
		if err != nil || len(a.Failed) != 2 || a.Failed[0].Index != 3 || a.Failed[1].Index != 4 {
			t.Errorf("%+v, %v; want 3 failed and 4 untried", a, err)
		}
		c := d.Items[0].From
		c.Events = stream.EventsOf(make([]penstock.Envelope, 3)...)
		whole := &stream.Delivery{Request: 3}
		for i := range c.Events.Len() {
			whole.Items = append(whole.Items, stream.Item{Token: penstock.Token{Index: uint32(i)}, Attempt: 1, From: c, Index: i})
		}
		if _, err := n.owner.Deliver(t.Context(), whole); !errors.Is(err, penstock.ErrTooLarge) {
			t.Errorf("a container of 3 for a demand of 2: %v, want ErrTooLarge", err)
		}
	})
}

type sized struct {
	sizes []int
	fail  uint64 // token
}

func (*sized) Handshake(context.Context, stream.Handshake) (stream.Position, error) {
	return stream.Position{}, nil
}

func (s *sized) Deliver(_ context.Context, d *stream.Delivery) (a stream.Answer, _ error) {
	s.sizes = append(s.sizes, len(d.Items))
	for i := range d.Items {
		if s.fail > 0 && d.Items[i].Token.Lo == s.fail {
			a.Failed = append(a.Failed, stream.ItemFailure{Index: i, Err: errors.New("broke")})
		}
	}
	return a, nil
}

// Without a subscriber a call ends when its patience has, and as away.
func TestNobodyIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := remote.NewOwner(remote.OwnerConfig{Logger: quiet, Patience: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := o.Handshake(t.Context(), stream.Handshake{}); !errors.Is(err, stream.ErrAway) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v, want ErrAway after 3 s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.Handshake(ctx, stream.Handshake{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the context's", err)
		}
	})
}

func TestConfigurationsNameTheBadField(t *testing.T) {
	dial := func(context.Context) (io.ReadWriteCloser, error) { return nil, nil }
	consumer := func(stream.SubscriptionRecord) (stream.Consumer, error) { return nil, nil }
	for field, c := range map[string]remote.SubscriberConfig{
		"Dial":          {Consumer: consumer},
		"Consumer":      {Dial: dial},
		"Demand":        {Dial: dial, Consumer: consumer, Demand: -1},
		"Expiry":        {Dial: dial, Consumer: consumer, Expiry: 6 * time.Minute},
		"Remember":      {Dial: dial, Consumer: consumer, Demand: 10, Remember: 9},
		"Subscriptions": {Dial: dial, Consumer: consumer, Subscriptions: -1},
		"MaxLine":       {Dial: dial, Consumer: consumer, MaxLine: 1000},
		"Drain":         {Dial: dial, Consumer: consumer, Drain: -1},
	} {
		_, err := remote.NewSubscriber(c)
		var f *penstock.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for field, c := range map[string]remote.OwnerConfig{"Patience": {Patience: -1}, "MaxLine": {MaxLine: -1}} {
		_, err := remote.NewOwner(c)
		var f *penstock.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
