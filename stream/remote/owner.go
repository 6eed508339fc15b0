package remote

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// OwnerConfig describes an [Owner]. Zero fields have the defaults given; a
// negative field is refused with a *penstock.FieldError.
type OwnerConfig struct {
	// History names the history of the queues that tokens count in: the same
	// for as long as the queues keep their events, over restarts too, and
	// another one when they have begun anew. When a subscriber meets another
	// history it forgets its consumers and makes new ones. Empty means a random
	// one, which ends with the Owner: right for queues in memory.
	History string
	// Patience is how long a call waits for a subscriber that is connected and
	// accepts it, 1 s; then it ends with stream.ErrAway, and the agent offers
	// it again at its next poll. It also bounds what an absent subscriber adds
	// to a drain.
	Patience time.Duration
	MaxLine  int          // 4 MiB, at least 64 KiB; the longest line in bytes, read or written
	Logger   *slog.Logger // nil means slog.Default()
}

// Defaults of both ends.
const (
	defaultPatience = time.Second
	defaultMaxLine  = 4 << 20
)

func (c *OwnerConfig) validate() error {
	if c.Patience < 0 {
		return &penstock.FieldError{Field: "Patience", Reason: fmt.Sprintf("%v is negative", c.Patience)}
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.History == "" {
		c.History = random()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return checkMaxLine(&c.MaxLine)
}

func checkMaxLine(n *int) error {
	if *n == 0 {
		*n = defaultMaxLine
	}
	if *n < minLine {
		return &penstock.FieldError{Field: "MaxLine", Reason: fmt.Sprintf("%d is below %d", *n, minLine)}
	}
	return nil
}

// random returns 128 random bits as text.
func random() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Owner is the near end of a consumer across a connection: a [stream.Consumer]
// for [stream.Provider.Attach], in the process that owns the queues. It may be
// attached to several subscriptions. Each connection is given to [Owner.Serve].
// It is safe for concurrent use, holds no goroutine of its own, and needs no
// close.
//
// A call waits until a subscriber is connected and, for a delivery, has demand
// for it; after OwnerConfig.Patience it ends with stream.ErrAway. A delivery
// that was sent and whose connection ends before the answer fails with
// penstock.ErrUnknownOutcome and [ErrLost]: the agent repeats it, and the
// subscriber settles what it knows to be settled.
type Owner struct {
	config OwnerConfig
	id     string

	mu   sync.Mutex
	near *near
	link *link  // the connection in use; nil when there is none
	peer string // id of its subscriber
}

var (
	_ stream.Consumer = (*Owner)(nil)
	_ stream.Listener = (*Owner)(nil)
)

// NewOwner returns an owner that nobody is connected to. The error matches
// penstock.ErrInvalid when a field is wrong.
func NewOwner(c OwnerConfig) (*Owner, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("remote: new owner: %w", err)
	}
	return &Owner{config: c, id: random(), near: newNear()}, nil
}

// Connected reports whether a subscriber is connected.
func (o *Owner) Connected() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.link != nil
}

// Handshake asks the subscriber's consumer.
func (o *Owner) Handshake(ctx context.Context, h stream.Handshake) (stream.Position, error) {
	c := &call{head: frame{Kind: kindHandshake, Subscription: fromRecord(h.Subscription), Queue: fromQueue(h.Queue), Request: h.Request, Placed: h.Placed}}
	f, err := o.call(ctx, c)
	if err != nil {
		return stream.Position{}, fmt.Errorf("handshake over a connection: %w", err)
	}
	if f.Kind == kindError {
		return stream.Position{}, f.err()
	}
	return f.Position.to()
}

// Notify tells the subscriber's consumer, if it listens, and waits until it has
// heard.
func (o *Owner) Notify(ctx context.Context, n stream.Notice) {
	w := &notice{Kind: uint8(n.Kind), Token: n.Token, Events: n.Events}
	if n.Err != nil {
		w.Error = text(cut(n.Err.Error(), maxError))
	}
	c := &call{head: frame{Kind: kindNotice, Subscription: fromRecord(n.Subscription), Queue: fromQueue(n.Queue), Notice: w}}
	f, err := o.call(ctx, c)
	if err == nil && f.Kind == kindError {
		err = f.err()
	}
	if err != nil {
		o.config.Logger.Warn("subscriber could not be told", "subscription", n.Subscription.Name, "stream", n.Subscription.Stream.String(),
			"notice", n.Kind.String(), "err", err)
	}
}

// Deliver hands a delivery to the subscriber's consumer. One that has more
// events or bytes than the subscriber takes at a time goes in several parts,
// each of whole containers; when something of a part fails, what follows it
// comes again behind it, untried (stream.ErrAway), so that order is kept. A container that is too large alone
// fails with penstock.ErrTooLarge.
func (o *Owner) Deliver(ctx context.Context, d *stream.Delivery) (stream.Answer, error) {
	head := frame{Kind: kindDeliver, Subscription: fromRecord(d.Subscription), Queue: fromQueue(d.Queue), Request: d.Request}
	parts, overhead, err := encode(&head, d.Items)
	if err != nil {
		return stream.Answer{}, fmt.Errorf("delivery for a connection: %w", err)
	}
	done := 0 // items that were settled
	for len(parts) > 0 {
		c := &call{head: head, parts: parts, overhead: overhead}
		var a stream.Answer
		f, err := o.call(ctx, c)
		if err != nil {
			err = fmt.Errorf("delivery over a connection: %w", err)
		} else {
			a, err = f.answer()
		}
		switch {
		case err != nil && done == 0:
			return stream.Answer{}, err
		case err != nil:
			return stream.Answer{Failed: failFrom(done, len(d.Items), err)}, nil
		case a.Rewind.Kind != stream.PositionNone:
			return a, nil
		}
		n := c.events()
		if len(a.Failed) > 0 {
			for i := range a.Failed {
				a.Failed[i].Index += done
			}
			a.Failed = append(a.Failed, failFrom(done+n, len(d.Items), errUntried)...)
			return a, nil
		}
		done, parts = done+n, parts[c.taken:]
	}
	return stream.Answer{}, nil
}

var errUntried = fmt.Errorf("not tried: an earlier part of its delivery failed: %w", stream.ErrAway)

func failFrom(first, end int, err error) (out []stream.ItemFailure) {
	for i := first; i < end; i++ {
		out = append(out, stream.ItemFailure{Index: i, Err: err})
	}
	return out
}

// encode makes the containers of a delivery, and counts the bytes of the rest
// of its line.
func encode(head *frame, items []stream.Item) (parts []part, overhead int, err error) {
	b, err := json.Marshal(head)
	if err != nil {
		return nil, 0, err
	}
	for _, c := range fromItems(items) {
		line, err := json.Marshal(&c)
		if err != nil {
			return nil, 0, err
		}
		parts = append(parts, part{line: line, events: len(c.Items)})
	}
	return parts, len(b) + 64, nil // 64: number of the call, and punctuation
}

// call carries one call through the machine.
func (o *Owner) call(ctx context.Context, c *call) (frame, error) {
	o.mu.Lock()
	o.push(o.near.start(c, time.Now()))
	o.mu.Unlock()
	patience := time.NewTimer(o.config.Patience)
	defer patience.Stop()
	for {
		select {
		case r := <-c.reply:
			return r.frame, r.err
		case <-patience.C:
			if why := o.withdraw(c); why != nil {
				return frame{}, why
			}
		case <-ctx.Done():
			o.mu.Lock()
			o.push(o.near.giveUp(c))
			o.mu.Unlock()
			select {
			case r := <-c.reply:
				return r.frame, r.err
			default:
				return frame{}, penstock.ContextError(ctx)
			}
		}
	}
}

// withdraw takes back what was not sent, and says why it was not; nil when it
// was.
func (o *Owner) withdraw(c *call) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.near.withdraw(c):
		return nil
	case !o.near.open:
		return fmt.Errorf("no subscriber is connected: %w", stream.ErrAway)
	case o.near.leaving:
		return fmt.Errorf("the subscriber is leaving: %w", stream.ErrAway)
	case !time.Now().Before(o.near.until):
		return fmt.Errorf("the demand of the subscriber has expired: %w", stream.ErrAway)
	}
	return fmt.Errorf("the subscriber has not asked for more: %w", stream.ErrAway)
}

// push hands frames to the connection in use; the caller holds mu.
func (o *Owner) push(out []outgoing) {
	if o.link != nil {
		o.link.push(out...)
	}
}

// Serve speaks to a subscriber over conn until the connection ends, and closes
// it. Close of conn must end a Read and a Write under way, as those of package
// net do. A new connection takes the place of the one before. It returns nil
// when the subscriber has said goodbye, ctx's error when that ended, and
// otherwise an error that matches [ErrLost], [ErrProtocol] or [ErrReplaced].
func (o *Owner) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	l := newLink(conn)
	s := &served{owner: o, link: l, deadline: time.Now().Add(helloTimeout)}
	wrote, read := make(chan struct{}), make(chan struct{})
	go func() { // writer of the connection: link.end stops it, Serve waits
		defer close(wrote)
		l.carry(l.write)
	}()
	go func() { // reader of the connection: link.end stops it, Serve waits
		defer close(read)
		l.carry(func() { l.read(newDecoder(conn, o.config.MaxLine, false), s.take) })
	}()
	s.watch(ctx)
	<-wrote
	<-read
	o.lost(l)
	return l.err
}

// served is one connection of an owner.
type served struct {
	owner    *Owner
	link     *link
	ready    bool      // the subscriber has said hello; of the reader
	deadline time.Time // for something to be heard; guarded by owner.mu
}

// watch waits for the end of the connection, and brings it about when ctx ends
// or nothing is heard.
func (s *served) watch(ctx context.Context) {
	silence := time.NewTimer(helloTimeout)
	defer silence.Stop()
	done := ctx.Done()
	for {
		select {
		case <-s.link.over:
			return
		case <-done:
			s.link.end(penstock.ContextError(ctx))
		case <-silence.C:
			s.owner.mu.Lock()
			left := time.Until(s.deadline)
			s.owner.mu.Unlock()
			if left <= 0 {
				s.link.end(fmt.Errorf("nothing heard of the subscriber in its time: %w", ErrLost))
				return
			}
			silence.Reset(left)
		}
	}
}

// take takes a frame of the subscriber.
func (s *served) take(f *frame) error {
	o := s.owner
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case f.Kind == kindBye:
		return s.goodbye(f)
	case !s.ready:
		return s.hello(f, now)
	case o.link != s.link:
		return ErrReplaced
	case f.Kind == kindHello:
		return bad("hello, twice")
	}
	if f.Kind == kindDemand {
		s.deadline = now.Add(2 * time.Duration(f.TTL) * time.Millisecond)
	}
	out, err := o.near.received(f, now)
	o.push(out)
	return err
}

func (s *served) goodbye(f *frame) error {
	if f.Error != "" {
		return fmt.Errorf("subscriber: %s: %w", f.Error, ErrLost)
	}
	return errGoodbye
}

// hello begins the use of the connection; the one before is told that it was
// replaced.
func (s *served) hello(f *frame, now time.Time) error {
	o := s.owner
	if f.Kind != kindHello {
		return bad("%s before hello", f.Kind)
	}
	if f.Version != Version {
		why := fmt.Sprintf("version %d of the protocol is not known here, only %d", f.Version, Version)
		s.link.finish(frame{Kind: kindBye, Error: text(why), Final: true}, fmt.Errorf("subscriber: %s: %w: %w", why, penstock.ErrUnsupported, ErrProtocol))
		return errGoodbye
	}
	if old := o.link; old != nil {
		o.near.lost(fmt.Errorf("delivery was under way: %w: %w", penstock.ErrUnknownOutcome, ErrReplaced))
		old.finish(frame{Kind: kindBye, Error: text(ErrReplaced.Error()), Final: o.peer != string(f.ID)}, ErrReplaced)
	}
	s.ready = true
	o.link, o.peer = s.link, string(f.ID)
	s.deadline = now.Add(helloTimeout) // for the first demand
	s.link.push(outgoing{frame: frame{Kind: kindHello, Version: Version, ID: text(o.id), History: text(o.config.History), MaxLine: o.config.MaxLine}})
	o.push(o.near.connected(*f, o.config.MaxLine, now))
	return nil
}

// lost ends the use of a connection.
func (o *Owner) lost(l *link) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.link == l {
		o.link = nil
		o.near.lost(fmt.Errorf("call was under way: %w: %w", penstock.ErrUnknownOutcome, ErrLost))
	}
}

// errGoodbye ends the reading of a connection that ends as it should.
var errGoodbye = errors.New("goodbye")

func isProtocol(err error) bool { return errors.Is(err, ErrProtocol) }
