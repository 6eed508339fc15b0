package stage

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

// Subscription is the connection of one consumer to one producer, or to one
// partition of it. It ends when the producer ends, when the consumer does, or
// by [Subscription.Cancel]. All methods are safe for concurrent use.
type Subscription struct {
	subscription
	names    [2]string   // of the producer and the consumer, as the call knew them
	ready    atomic.Bool // from, to and edge are set: false while a name has no owner yet
	from, to *base
	graph    *Graph // the consumer's, which lists it
	edge     subscribed
	seq      int          // of declared ones, in order
	admit    func() error // by the producer, of a declared one before the graph starts
	adopt    func()       // by the consumer, thereafter
	standing atomic.Uint32
	life     atomic.Pointer[life]
}

// subscribed is an edge of any type, seen from its subscription.
type subscribed interface {
	wire(producer, consumer *doorbell)
	askMore(n int)
	cancel()
	part() int
	shown() (processed, sent, asked int64, cancelled bool)
}

// How a subscription that is made while the graph runs stands with its producer.
// SubscribeWait withdraws it, or the producer accepts it: who is first.
const (
	requested = iota
	accepted
	withdrawn
)

// subscription is what the options say.
type subscription struct {
	window   demand.Window
	demand   bool // Demand or Max was given
	mode     Mode
	manual   bool
	async    bool
	hasty    bool // FailFast was given
	feedback bool // made by Feedback
	rank     int  // Priority
	timeout  time.Duration
	err      error
}

// Producer returns the name of the producer.
func (s *Subscription) Producer() string {
	if !s.ready.Load() {
		return s.names[0]
	}
	return s.from.name
}

// Consumer returns the name of the consumer.
func (s *Subscription) Consumer() string {
	if !s.ready.Load() {
		return s.names[1]
	}
	return s.to.name
}

// Ask asks for n more events, on a subscription made with [Manual]. It never
// blocks, and may be called from inside a callback, which it never calls. The
// producer gets no more than the largest int64 as demand; more counts as that.
// The error matches [penstock.ErrInvalid] when n is not positive, and
// [ErrAutomatic] when the subscription asks by itself; then nothing is asked
// for. After the end of the subscription Ask changes nothing and returns nil, and
// neither does it while a name by which it was declared has no owner yet.
func (s *Subscription) Ask(n int) error {
	if n <= 0 {
		return &penstock.FieldError{Field: "Ask", Reason: fmt.Sprintf("%d events", n)}
	}
	if !s.manual {
		return fmt.Errorf("ask %q for more for %q: %w", s.Producer(), s.Consumer(), ErrAutomatic)
	}
	if s.ready.Load() {
		s.edge.askMore(n)
	}
	return nil
}

// Cancel ends the subscription in order: what the producer has sent before is
// processed, nothing is sent after, and then the cancel mode applies as at a
// normal end of the producer. It returns at once, also while a callback of
// either side blocks; [Subscription.Done] tells when the last event was
// processed. A second Cancel, or one after the end, changes nothing, and neither
// does one while a name by which it was declared has no owner yet.
func (s *Subscription) Cancel() {
	if s.ready.Load() {
		s.edge.cancel()
	}
}

// Done returns a channel that is closed when the subscription has ended and the
// consumer has processed the last of its events. From then on the same pair may
// subscribe again. A declared subscription is done, too, when [Graph.Start]
// fails; after a later one that is successful Done returns another channel.
func (s *Subscription) Done() <-chan struct{} { return s.life.Load().over }

// Err returns nil until the subscription has ended, then why it has: nil for a
// normal end and a cancel, the producer's failure, the dispatcher's refusal,
// what ended the consumer, or why the graph could not be started.
func (s *Subscription) Err() error {
	if l := s.life.Load(); l.isOver() {
		return l.err
	}
	return nil
}

// over ends the subscription for those who look at it, once.
func (s *Subscription) over(err error) {
	l := s.life.Load()
	if !l.claim() {
		return
	}
	s.graph.unlist(s)
	l.close(err)
}

func (e *edge[T]) wire(producer, consumer *doorbell) { e.producer, e.consumer = producer, consumer }

func (e *edge[T]) part() int { return e.partition }
