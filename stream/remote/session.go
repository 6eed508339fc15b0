package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
	"github.com/penstock/penstock/stream"
)

// session is one connection of a subscriber.
type session struct {
	*Subscriber
	link      *link
	questions context.Context // ends with the connection
	cancel    context.CancelFunc
	calls     map[uint64]context.CancelFunc // questions by number; guarded by mu

	greeted  bool      // the owner has said hello; guarded by mu
	deadline time.Time // for something to be heard; guarded by mu
}

func newSession(s *Subscriber, conn io.ReadWriteCloser) *session {
	c := &session{Subscriber: s, link: newLink(conn), calls: map[uint64]context.CancelFunc{}, deadline: time.Now().Add(helloTimeout)}
	c.questions, c.cancel = context.WithCancel(s.ctx)
	return c
}

// serve carries the connection until it ends.
func (c *session) serve(ctx context.Context) (greeted bool, err error) {
	wrote, read := make(chan struct{}), make(chan struct{})
	c.link.push(outgoing{frame: frame{Kind: kindHello, Version: Version, ID: text(c.id), Demand: c.config.Demand, MaxLine: c.config.MaxLine}})
	go func() { // writer of the connection: link.end stops it, serve waits
		defer close(wrote)
		c.link.carry(c.link.write)
	}()
	go func() { // reader of the connection: link.end stops it, serve waits
		defer close(read)
		c.link.carry(func() { c.link.read(newDecoder(c.link.conn, c.config.MaxLine, true), c.take) })
	}()
	c.watch(ctx)
	<-wrote
	<-read
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Subscriber.link == c.link {
		c.Subscriber.link = nil
		c.far.lost()
	}
	return c.greeted, c.link.err
}

// watch renews the demand, begins the drain when ctx ends, and waits for the
// end of the connection.
func (c *session) watch(ctx context.Context) {
	renew := time.NewTicker(max(c.config.Expiry/3, time.Millisecond/2))
	defer renew.Stop()
	done := ctx.Done()
	var overdue <-chan time.Time
	for {
		select {
		case <-c.link.over:
			return
		case <-renew.C:
			c.mu.Lock()
			silent := time.Until(c.deadline) <= 0
			c.tell(true)
			c.mu.Unlock()
			if silent {
				c.link.end(fmt.Errorf("nothing heard of the owner in its time: %w", ErrLost))
			}
		case <-done:
			done = nil
			drain := time.NewTimer(c.drainTime())
			defer drain.Stop()
			overdue = drain.C
			if !c.leave() {
				c.link.end(penstock.ContextError(ctx)) // the owner has not said hello
			}
		case <-overdue:
			c.link.end(fmt.Errorf("drain: %w", context.DeadlineExceeded))
		case <-c.ping:
			if c.over() {
				c.link.finish(frame{Kind: kindBye}, nil)
			}
		}
	}
}

// leave tells the owner to deliver no more; false when there is none.
func (c *session) leave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.far.leaving = true
	if c.Subscriber.link != c.link {
		return false
	}
	c.link.push(outgoing{frame: frame{Kind: kindLeave}})
	return true
}

// over reports whether a drain is complete.
func (c *session) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.far.leaving && c.far.left && c.far.idle()
}

// tell tells the owner how much is accepted, when there is something to tell,
// or when it is due; the caller holds mu.
func (c *session) tell(due bool) {
	if c.Subscriber.link == c.link {
		c.Subscriber.tell(due)
	}
}

func (s *Subscriber) tell(due bool) {
	if limit, tell := s.far.demand(due); tell && s.link != nil {
		s.link.push(outgoing{frame: frame{Kind: kindDemand, Limit: limit, TTL: s.config.Expiry.Milliseconds()}})
	}
}

// reply sends answers over the connection in use; the caller holds mu.
func (s *Subscriber) reply(replies ...frame) {
	if s.link != nil {
		for _, f := range replies {
			s.link.push(outgoing{frame: f})
		}
	}
}

// pinged says that something has ended.
func (s *Subscriber) pinged() {
	select {
	case s.ping <- struct{}{}:
	default: // said already
	}
}

// take takes a frame of the owner.
func (c *session) take(f *frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.Kind == kindBye:
		return goodbyeOfOwner(f)
	case !c.greeted:
		return c.hello(f)
	case f.Kind == kindHello:
		return bad("hello, twice")
	}
	c.deadline = time.Now().Add(2 * c.config.Expiry)
	switch f.Kind {
	case kindLeft:
		c.far.left = true
		c.pinged()
	case kindHandshake, kindNotice:
		c.ask(f)
	case kindDeliver:
		run, reply, err := c.far.delivered(f.Call, f.delivery())
		if err != nil {
			return err
		}
		if reply != nil {
			c.reply(*reply)
		}
		if run != nil {
			c.start(run)
		}
		c.tell(false)
	case kindCancel:
		if stop := c.calls[f.Call]; stop != nil {
			stop()
			break
		}
		run, reply := c.far.cancelled(f.Call)
		if run != nil {
			run.cancel()
		}
		if reply != nil {
			c.reply(*reply)
			c.tell(false)
		}
	}
	return nil
}

func goodbyeOfOwner(f *frame) error {
	err := fmt.Errorf("owner: %s: %w", f.Error, ErrLost)
	switch {
	case f.Final && string(f.Error) == ErrReplaced.Error():
		return &finalError{ErrReplaced}
	case f.Final:
		return &finalError{fmt.Errorf("owner: %s: %w", f.Error, penstock.ErrUnsupported)}
	}
	return err
}

func (c *session) hello(f *frame) error {
	if f.Kind != kindHello {
		return bad("%s before hello", f.Kind)
	}
	if f.Version != Version {
		return &finalError{fmt.Errorf("the owner speaks version %d of the protocol, and only %d is known here: %w", f.Version, Version, penstock.ErrUnsupported)}
	}
	c.greeted = true
	c.deadline = time.Now().Add(2 * c.config.Expiry)
	c.conns++
	c.far.connected(c.conns, min(c.config.MaxLine, f.MaxLine), c.owner == string(f.ID), c.history == string(f.History))
	c.owner, c.history = string(f.ID), string(f.History)
	c.Subscriber.link = c.link
	c.tell(true)
	if c.far.leaving {
		c.link.push(outgoing{frame: frame{Kind: kindLeave}})
	}
	return nil
}

// ask runs a question; the caller holds mu.
func (c *session) ask(f *frame) {
	l, reply := c.far.asked(f.Call, f.Subscription.to())
	if reply != nil {
		c.reply(*reply)
		return
	}
	ctx, stop := context.WithCancel(c.questions)
	c.calls[f.Call] = stop
	go func() { // one question: its answer, or the end of the connection, ends its context; drain waits
		answer := c.question(ctx, l.maker, f)
		stop()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, f.Call)
		c.far.answered(l)
		if c.Subscriber.link == c.link {
			c.reply(answer)
		}
		c.pinged()
	}()
}

func (c *session) question(ctx context.Context, m *maker, f *frame) (answer frame) {
	rec := f.Subscription.to()
	err := guard.Call("consumer "+rec.Name, func() error {
		consumer, err := c.consumer(ctx, m, rec)
		if err != nil {
			return err
		}
		if f.Kind == kindNotice {
			if l, ok := consumer.(stream.Listener); ok {
				l.Notify(ctx, stream.Notice{Kind: stream.NoticeKind(f.Notice.Kind), Subscription: rec, Queue: f.Queue.to(),
					Token: f.Notice.Token, Events: f.Notice.Events, Err: &Error{Text: string(f.Notice.Error)}})
			}
			answer = frame{Kind: kindAnswer, Call: f.Call}
			return nil
		}
		at, err := consumer.Handshake(ctx, stream.Handshake{Subscription: rec, Queue: f.Queue.to(), Request: f.Request, Placed: f.Placed})
		if err != nil {
			return err
		}
		p, err := fromPosition(at)
		answer = frame{Kind: kindPosition, Call: f.Call, Position: p}
		return err
	})
	if err != nil {
		return errorFrame(f.Call, plain("consumer "+rec.Name, err))
	}
	return answer
}

// consumer returns the one of a subscription, and makes it when there is none.
func (s *Subscriber) consumer(ctx context.Context, m *maker, r stream.SubscriptionRecord) (stream.Consumer, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, penstock.ContextError(ctx)
	}
	if m.made != nil {
		return m.made, nil
	}
	c, err := s.config.Consumer(r)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errors.New("no consumer was made")
	}
	m.made = c
	return c, nil
}

// start runs deliveries of one lane until none waits; the caller holds mu.
func (s *Subscriber) start(j *job) {
	s.prepare(j)
	go func() { // handler of one subscription: a cancel, or the end of the drain, ends its context; drain waits
		for j != nil {
			a, err := s.handle(j)
			j = s.handled(j, a, err)
		}
	}()
}

// prepare gives a job its context; the caller holds mu.
func (s *Subscriber) prepare(j *job) {
	j.ctx, j.cancel = context.WithCancel(s.ctx)
	j.maker = j.lane.maker
}

func (s *Subscriber) handle(j *job) (a stream.Answer, err error) {
	defer j.cancel()
	where := "consumer " + j.whole.Subscription.Name
	err = guard.Call(where, func() error {
		consumer, err := s.consumer(j.ctx, j.maker, j.whole.Subscription)
		if err == nil {
			a, err = consumer.Deliver(j.ctx, j.rest)
		}
		return err
	})
	if err != nil {
		return stream.Answer{}, plain(where, err)
	}
	a.Failed = plainFailures(where, a.Failed)
	return a, nil
}

// handled takes the outcome of a job and returns the next one of its lane.
func (s *Subscriber) handled(j *job, a stream.Answer, err error) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, replies := s.far.handled(j, a, err)
	s.reply(replies...)
	s.tell(false)
	if next != nil {
		s.prepare(next)
	}
	s.pinged()
	return next
}
