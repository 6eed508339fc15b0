package stream

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// refusals are containers that the cache can never keep, and reads of which
// nobody knows what they took. Either makes the end of what was read uncertain:
// no progress is reported until it is certain again. Containers without events
// are finished at once.
//
// Invariants: nothing is read while waiting is not empty, so it is bounded by
// one read; one of them is handed over at a time.
//
// So are at most finishedMax containers of finished, and those of one read:
// nothing is read while there are more.
type refusals struct {
	waiting []refused
	handing bool // a worker hands the first one over
	err     error
	forGood bool // one was refused, and there are no dead letters

	finished []Container // are dead letters, or empty, and to be reported when what was read before them is

	unknown error     // of a read whose outcome is not known; nil when there is none
	since   time.Time // of unknown
}

type refused struct {
	c   Container
	err error
}

func (f *refusals) uncertain() bool { return f.forGood || len(f.waiting) > 0 || f.unknown != nil }

// refuse takes a container that the cache can never keep. It becomes a dead
// letter; when there are none the checkpoint stays where it is, so that the
// next run reads it again.
func (r *run) refuse(c Container, err error) {
	r.stats.Refused++
	r.tell(ContainerRefused, Diagnostic{Stream: c.Stream, Token: c.Token, Events: c.Events.Len(), Err: err})
	fields := r.fields("stream", c.Stream.String(), "token", c.Token.String(), "err", err)
	if r.deadLetter == nil {
		r.refusals.forGood = true
		r.log.Error("container refused by the cache; the checkpoint stays until the agent is started again", fields...)
		return
	}
	r.log.Error("container refused by the cache; it becomes a dead letter", fields...)
	r.refusals.waiting = append(r.refusals.waiting, refused{c, err})
	r.handOver()
}

// handOver makes a dead letter of the first container that waits. A failure is
// tried again at the next poll.
func (r *run) handOver() {
	f := &r.refusals
	if f.handing || len(f.waiting) == 0 || !r.latch.enter() {
		return
	}
	f.handing = true
	first := f.waiting[0]
	r.spawn("dead letter", func(ctx context.Context) error {
		return r.deadLetter(ctx, r.refusedLetters(first)...)
	}, func(err error) {
		defer r.latch.leave()
		f.handing, f.err = false, err
		if err != nil {
			r.log.Error("dead letter not taken; trying again at the next poll", r.fields("token", first.c.Token.String(), "err", err)...)
			return
		}
		r.handedOver(first.c)
	})
}

// handedOver accounts for a container that is a dead letter now: the checkpoint
// may pass it, and the queue gets it back as finished.
func (r *run) handedOver(c Container) {
	f := &r.refusals
	f.waiting[0] = refused{}
	if f.waiting = f.waiting[1:]; len(f.waiting) == 0 {
		f.waiting = nil
	}
	r.stats.DeadLettered += uint64(c.Events.Len())
	r.tell(ContainerDeadLettered, Diagnostic{Stream: c.Stream, Token: c.Token, Events: c.Events.Len()})
	if r.first.IsZero() {
		r.first = c.Time
	}
	if t := containerToken(c.Token); !r.hasRead || t.Compare(r.read) > 0 {
		r.read, r.hasRead, r.taken = t, true, c.Time
	}
	c.Header, c.Events = penstock.Header{}, Events{} // they are with the handler, and may wait here for long
	f.finished = append(f.finished, c)
	if len(f.waiting) > 0 {
		r.handOver()
		return
	}
	r.pumping.force = true
	r.pumping.freed = r.pumping.active // a pump under way looks again when it ends
	r.startPump(nil)
}

// finishedMax bounds the dead letters, and containers without events, that wait to
// be reported, which take no room in the cache.
const finishedMax = 1024

// crowded reports whether reading waits for them. It does not when a read has to
// recover first: before that they cannot be reported.
func (f *refusals) crowded() bool { return len(f.finished) >= finishedMax && f.unknown == nil }

// passed returns those that progress has passed, before their turn: a cache may
// keep what was read before them for long, although nobody needs it.
func (f *refusals) passed(p progress) []Container {
	if !p.certain || !f.crowded() {
		return nil
	}
	slices.SortStableFunc(f.finished, byToken)
	n := 0
	for n < len(f.finished) && containerToken(f.finished[n].Token).Compare(p.at) <= 0 {
		n++
	}
	out := f.finished[:n:n]
	f.finished = f.finished[n:]
	return out
}

// inOrder adds to containers that have left the cache those that it never kept,
// in the order of their tokens: one is reported when everything that was read
// before it has left, or has been passed over.
func (f *refusals) inOrder(done []Container, empty bool) []Container {
	if len(f.finished) == 0 {
		return done
	}
	slices.SortStableFunc(f.finished, byToken)
	n := len(f.finished)
	if !empty {
		n = 0
		for n < len(f.finished) && len(done) > 0 && byToken(f.finished[n], done[len(done)-1]) < 0 {
			n++
		}
	}
	if n == 0 {
		return done
	}
	out := append(slices.Clone(done), f.finished[:n]...)
	if f.finished = f.finished[n:]; len(f.finished) == 0 {
		f.finished = nil
	}
	slices.SortStableFunc(out, byToken)
	return out
}

func byToken(a, b Container) int { return a.Token.Compare(b.Token) }

// refusedLetters makes events of their own of a container: no subscription has
// seen them.
func (r *run) refusedLetters(f refused) []penstock.Envelope {
	items := make([]Item, f.c.Events.Len())
	for i := range items {
		t := f.c.Token
		t.Index = uint32(i)
		items[i] = Item{Token: t, Attempt: f.c.Attempts, From: &f.c, Index: i}
	}
	return r.deadLetters(Failure{
		Subscription: SubscriptionRecord{Stream: r.qualified(f.c.Stream)}, Items: items, Err: f.err,
	}, "the cache can never keep it")
}

// Recoverer is implemented by receivers whose Read may fail in a way that
// leaves open what it took from the queue: the reply was lost, say. Such an
// error matches penstock.ErrUnknownOutcome. From then on the agent reports no
// progress, and before it reads again it calls Recover.
//
// A receiver without this method that returns such an error keeps the
// checkpoint where it is until its agent is started again.
type Recoverer interface {
	// Recover returns nil when it is certain that whatever the failed read took
	// will be returned by a later Read, or was not taken. Any error leaves it
	// open, and is tried again like a failed read. It must return soon after
	// its ctx has ended.
	Recover(ctx context.Context) error
}

// recoverFirst makes the turn of a job recover, if that is due and can be done,
// and then read.
func (r *run) recoverFirst(ctx context.Context) (recovered bool, err error) {
	rec, ok := r.receiver.(Recoverer)
	if !ok {
		return false, nil
	}
	if err := rec.Recover(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// readOutcome notes what a turn with the receiver says of what is certain.
func (r *run) readOutcome(recovered bool, err error) {
	f := &r.refusals
	if recovered && f.unknown != nil {
		f.unknown = nil
		r.log.Warn("receiver has recovered from a read of unknown outcome", r.fields("after", since(time.Now(), f.since))...)
		r.tell(ReadRecovered, Diagnostic{})
	}
	if !errors.Is(err, penstock.ErrUnknownOutcome) {
		return
	}
	if f.unknown == nil {
		f.since = time.Now()
	}
	f.unknown = err
	r.log.Error("outcome of a read is not known; the checkpoint waits until the receiver has recovered", r.fields("err", err)...)
	r.tell(ReadUnknown, Diagnostic{Err: err})
}
