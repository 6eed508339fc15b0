package stage

import (
	"context"
	"math"
)

// OnMessage has the source or gate from handle the messages of box: f is called
// with one at a time, serially with the stage's callbacks, and emits to out.
// What it emits goes out behind what the stage holds; in a source's buffer the
// overflow policy applies to it. ctx is that of the callbacks, and what f
// returns or panics with counts as theirs: [Done] ends the stage normally.
//
// A stage has one mailbox, and a mailbox one stage: a second one is an error at
// Start, for a mailbox one that matches [ErrNameTaken]. Call it before the stage
// starts. Messages may be sent from then on.
//
// Messages that have been sent when the stage begins to end are handled before
// its end, unless it failed or was aborted: then they are counted as lost, and
// so are those that a stage leaves behind whose drain deadline has passed.
func OnMessage[M, T any](from Outleter[T], box *Mailbox[M], f func(ctx context.Context, message M, out *Output[T]) error) {
	o := from.Out().o // not of a name: the stage is still to be built
	if o == nil {
		panic("stage: OnMessage: not a source or a gate")
	}
	r := newReceiver(o.base, box, f != nil)
	emitter, _ := o.self.(interface {
		answer(ctx context.Context, f func(out *Output[T]) error)
	})
	step := func(out *Output[T]) error { return f(r.b.ctx, r.now, out) }
	r.call = func(ctx context.Context) { emitter.answer(ctx, step) }
	r.holds, _ = o.self.(holder)
	r.attach(box)
}

// OnSinkMessage has a sink handle the messages of box; it is [OnMessage] for
// sinks.
func OnSinkMessage[M, T any](to *Sink[T], box *Mailbox[M], f func(ctx context.Context, message M) error) {
	r := newReceiver(to.in.base, box, f != nil)
	step := func() error { return f(r.b.ctx, r.now) }
	r.call = func(ctx context.Context) { to.answer(ctx, step) }
	r.attach(box)
}

// A mail is a receiver of any type, as its stage sees it. All but the methods
// that say otherwise are for the stage's goroutine.
type mail interface {
	graph() *Graph // any goroutine
	invalid() error
	// serve handles messages that are due, up to a bound.
	serve(ctx context.Context) (progress bool)
	// close lets no more in, and stops the timers.
	close()
	// rest says that nothing is buffered any more, and reports whether messages
	// are left to be handled.
	rest() bool
	// end drops what is left and sets the mailbox free.
	end()
	// renew stops the timers of a stage that begins anew.
	renew()
}

// A holder is a stage that holds events.
type holder interface {
	// place returns where the buffer ends now, as others fill it. Any goroutine.
	place() int64
	// passed reports whether the buffer was emptied up to there.
	passed(place int64) bool
	// emitted returns where the output ends that has left the buffer, and gone
	// up to where it has gone out.
	emitted() int64
	gone() int64
	// crowded says that so much output waits that no message may add to it.
	crowded() bool
}

// A letter is a message that waits. Behind says where the buffer ended when it
// was sent, and out, once that has passed, where the output did.
type letter[M any] struct {
	message     M
	from        *clockwork[M] // the timer that it is of
	behind, out int64
}

// A receiver is what a stage has of a mailbox.
//
// Invariants: queues, closed and timers are guarded by box.mu. room holds a
// token for every letter that no timer sent, and for every timer. gone is closed
// when nothing will be taken in any more.
type receiver[M any] struct {
	b     *base
	box   *Mailbox[M]
	call  func(ctx context.Context) // handles now
	holds holder                    // nil: a sink
	now   M                         // the message in hands
	empty bool                      // nothing is buffered, and nothing will be

	gone    chan struct{}
	err     error
	queue   deque[letter[M]]
	waiting deque[letter[M]] // behind what is buffered
	timers  map[*clockwork[M]]struct{}
	closed  bool
}

func newReceiver[M any](b *base, box *Mailbox[M], given bool) *receiver[M] {
	if !given || box == nil {
		b.invalid("OnMessage", "mailbox or function is nil")
	}
	clears := holdsPointers[letter[M]]()
	return &receiver[M]{
		b: b, box: box, gone: make(chan struct{}), timers: map[*clockwork[M]]struct{}{},
		queue: deque[letter[M]]{clears: clears}, waiting: deque[letter[M]]{clears: clears},
	}
}

// attach gives the mailbox to the stage.
func (r *receiver[M]) attach(box *Mailbox[M]) {
	if box == nil {
		return
	}
	if r.b.mail != nil {
		r.b.invalid("OnMessage", "the stage has a mailbox already")
		return
	}
	r.b.mail = r
	box.mu.Lock()
	defer box.mu.Unlock()
	switch {
	case box.err != nil:
		r.err = box.err
	case box.owner != nil:
		r.err = errTaken("mailbox", box.name)
	default:
		box.owner = r
	}
}

func (r *receiver[M]) graph() *Graph  { return r.box.g }
func (r *receiver[M]) invalid() error { return r.err }

// add puts a letter at the end of its queue. The lock is held.
func (r *receiver[M]) add(l letter[M], behind bool) {
	l.out = math.MaxInt64
	if behind {
		if r.holds != nil {
			l.behind = r.holds.place()
		}
		r.waiting.pushBack([]letter[M]{l})
	} else {
		r.queue.pushBack([]letter[M]{l})
	}
	r.b.stats.letters.Store(int64(r.queue.len() + r.waiting.len()))
}

func (r *receiver[M]) serve(ctx context.Context) (progress bool) {
	if r.holds != nil && r.holds.crowded() {
		return false // the bit stays: it looks again when output has gone out
	}
	for range maxErrands {
		r.b.ctl.And(^uint32(ctlMail)) // before the look: a later message sets it again
		if !r.next() {
			return progress
		}
		r.b.ctl.Or(ctlMail) // also for the case that the handler never returns
		r.b.cameBy(nil)
		add(&r.b.stats.messages, 1)
		r.call(ctx)
		var none M
		r.now = none
		progress = true
		if r.b.phase != running && r.b.own || r.b.paused != 0 {
			break
		}
	}
	return progress
}

// next takes the message that is due. While others wait behind the buffer, the
// stage looks again in every turn.
func (r *receiver[M]) next() bool {
	r.box.mu.Lock()
	defer r.box.mu.Unlock()
	q := &r.queue
	if r.due() {
		q = &r.waiting
	} else if q.len() == 0 {
		if r.waiting.len() > 0 {
			r.b.ctl.Or(ctlMail)
		}
		return false
	}
	l := q.pop()
	r.now = l.message
	if c := l.from; c == nil {
		<-r.box.room
	} else if c.waits = false; c.every == 0 {
		r.endTimer(c)
	}
	r.b.stats.letters.Store(int64(r.queue.len() + r.waiting.len()))
	return true
}

// due reports whether what was buffered before the first letter that waits for
// it has gone.
func (r *receiver[M]) due() bool {
	if r.waiting.len() == 0 || r.holds == nil || r.empty {
		return r.waiting.len() > 0
	}
	l := r.waiting.front()
	if l.out == math.MaxInt64 && r.holds.passed(l.behind) {
		l.out = r.holds.emitted()
	}
	return r.holds.gone() >= l.out
}

// endTimer stops a timer, and takes its message back. The lock is held.
func (r *receiver[M]) endTimer(c *clockwork[M]) {
	c.timer.Stop()
	delete(r.timers, c)
	if c.waits {
		kept := r.queue.popFront(nil, r.queue.len())
		for i := range kept {
			if kept[i].from != c {
				r.queue.pushBack(kept[i : i+1])
			}
		}
		r.b.stats.letters.Store(int64(r.queue.len() + r.waiting.len()))
	}
	<-r.box.room
}

func (r *receiver[M]) close() {
	r.box.mu.Lock()
	defer r.box.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	close(r.gone)
	for c := range r.timers {
		if !c.waits { // else its last message is still to be handled
			r.endTimer(c)
			continue
		}
		c.timer.Stop()
		c.every = 0
	}
}

func (r *receiver[M]) rest() bool {
	r.close()
	r.empty = true
	r.box.mu.Lock() // a timer may be stopped at this moment
	defer r.box.mu.Unlock()
	return r.queue.len()+r.waiting.len() > 0
}

func (r *receiver[M]) end() {
	r.close()
	r.box.mu.Lock()
	defer r.box.mu.Unlock()
	left := r.queue.len() + r.waiting.len()
	for range left - len(r.timers) { // those of timers go with them
		<-r.box.room
	}
	for c := range r.timers {
		c.waits = false
		r.endTimer(c)
	}
	r.queue, r.waiting = deque[letter[M]]{}, deque[letter[M]]{}
	r.b.stats.letters.Store(0)
	add(&r.b.stats.messagesLost, left)
	if r.box.owner == r {
		r.box.owner = nil
	}
}

func (r *receiver[M]) renew() {
	r.box.mu.Lock()
	defer r.box.mu.Unlock()
	for c := range r.timers {
		r.endTimer(c)
	}
}
