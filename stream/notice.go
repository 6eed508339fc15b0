package stream

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// Listener is implemented by consumers that want to hear what is decided about
// their subscription. The agent tells before it acts, and waits: first that a
// delivery, or the attaching, has failed for good; then, when the decision is
// to give the subscription up, that it is faulted. What Notify does cannot
// change the decision, and its failure is logged and ignored. It may be told
// again, as with deliveries.
type Listener interface {
	Notify(ctx context.Context, n Notice)
}

// NoticeKind says what happened.
type NoticeKind uint8

// Kinds of notices.
const (
	// NoticeDeliveryFailed: events could not be delivered in their time, or in
	// the number of attempts that they have.
	NoticeDeliveryFailed NoticeKind = iota
	// NoticeAttachFailed: the consumer could not be asked, or asked for a
	// position that cannot be had.
	NoticeAttachFailed
	// NoticeFaulted: the subscription is given up.
	NoticeFaulted
)

var noticeNames = [...]string{"delivery failed", "attaching failed", "faulted"}

// String returns the kind in words.
func (k NoticeKind) String() string {
	if int(k) < len(noticeNames) {
		return noticeNames[k]
	}
	return fmt.Sprintf("notice(%d)", uint8(k))
}

// Notice is what a [Listener] is told.
type Notice struct {
	Kind         NoticeKind
	Subscription SubscriptionRecord
	Queue        QueueID
	Token        penstock.Token // of the first event that failed; zero when it is not about events
	Events       int            // that failed
	Err          error          // why
}

// notify tells the consumer, if it listens, and then goes on.
func (r *run) notify(sub *subscription, n Notice, then func()) {
	n.Subscription, n.Queue = sub.rec, r.queue
	r.spawn("listener "+sub.rec.Name, func(ctx context.Context) error {
		c, err := r.resolve(ctx, n.Subscription)
		if err != nil {
			return err
		}
		if l, ok := c.(Listener); ok {
			l.Notify(ctx, n)
		}
		return nil
	}, func(err error) {
		if err != nil {
			r.log.Warn("consumer could not be told", r.about(sub, "notice", n.Kind.String(), "err", err)...)
		}
		then()
	})
}
