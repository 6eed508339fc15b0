package remote

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
	"github.com/penstock/penstock/stream"
)

// unspeakable stands for the text of an error that panics when it is asked.
const unspeakable = "an error that cannot be asked for its text"

// maxError bounds the text of an error on the wire, in bytes.
const maxError = 4 << 10

func fromRecord(r stream.SubscriptionRecord) *subscription {
	return &subscription{
		Provider: text(r.Stream.Provider), Namespace: text(r.Stream.Namespace), Key: text(r.Stream.Key), Name: text(r.Name),
		Filter: text(r.Filter), Implicit: r.Implicit, Incarnation: r.Incarnation, Attached: r.Attached,
	}
}

func (s *subscription) to() stream.SubscriptionRecord {
	return stream.SubscriptionRecord{
		Stream: stream.QualifiedStreamID{Provider: string(s.Provider), StreamID: penstock.StreamID{Namespace: string(s.Namespace), Key: string(s.Key)}},
		Name:   string(s.Name), Filter: string(s.Filter), Implicit: s.Implicit, Incarnation: s.Incarnation, Attached: s.Attached,
	}
}

func fromQueue(q stream.QueueID) *queueID {
	return &queueID{Name: text(q.Name), Number: q.Number, Ring: q.Ring}
}

func (q *queueID) to() stream.QueueID {
	return stream.QueueID{Name: string(q.Name), Number: q.Number, Ring: q.Ring}
}

func fromHeader(h penstock.Header) header {
	if len(h) == 0 {
		return nil
	}
	out := make(header, len(h))
	for i, f := range h {
		out[i] = [2]text{text(f.Name), text(f.Value)}
	}
	return out
}

func (h header) to() penstock.Header {
	if len(h) == 0 {
		return nil
	}
	out := make(penstock.Header, len(h))
	for i, f := range h {
		out[i] = penstock.Field{Name: string(f[0]), Value: string(f[1])}
	}
	return out
}

// fromItems makes containers of items that follow each other, one for each
// that they came in.
func fromItems(items []stream.Item) []container {
	var out []container
	for i := range items {
		it := &items[i]
		if i == 0 || it.From != items[i-1].From {
			c := it.From
			out = append(out, container{
				Namespace: text(c.Stream.Namespace), Key: text(c.Stream.Key), Token: c.Token, Time: c.Time,
				Header: fromHeader(c.Header), Attempts: c.Attempts,
			})
		}
		last := &out[len(out)-1]
		last.Items = append(last.Items, fromItem(it))
	}
	return out
}

func fromItem(it *stream.Item) item {
	e := it.Event()
	m := &e.Meta
	out := item{
		Index: it.Token.Index, Attempt: it.Attempt, ID: text(m.ID), Time: m.Time, Key: text(m.Key), Header: fromHeader(m.Header),
		ContentType: text(m.ContentType), Schema: text(m.Schema), Namespace: text(m.Stream.Namespace), StreamKey: text(m.Stream.Key),
		Producer: uint64(m.Producer), Failed: m.Attempt, Value: e.Value,
	}
	if o := m.Origin; o != nil {
		out.Origin = &origin{Topic: text(o.Topic), Partition: o.Partition, Offset: o.Offset, Group: text(o.Group), Cause: text(o.Cause), Time: o.Time}
	}
	return out
}

func (it *item) to() penstock.Envelope {
	e := penstock.Envelope{
		Meta: penstock.Meta{
			ID: string(it.ID), Time: it.Time, Key: string(it.Key), Header: it.Header.to(), ContentType: string(it.ContentType), Schema: string(it.Schema),
			Stream: penstock.StreamID{Namespace: string(it.Namespace), Key: string(it.StreamKey)}, Producer: penstock.ProducerTag(it.Producer), Attempt: it.Failed,
		},
		Value: it.Value,
	}
	if o := it.Origin; o != nil {
		e.Origin = &penstock.Origin{Topic: string(o.Topic), Partition: o.Partition, Offset: o.Offset, Group: string(o.Group), Cause: string(o.Cause), Time: o.Time}
	}
	return e
}

// delivery makes the delivery of a frame that has been checked.
func (f *frame) delivery() *stream.Delivery {
	d := &stream.Delivery{Subscription: f.Subscription.to(), Queue: f.Queue.to(), Request: f.Request}
	n := 0
	for i := range f.Containers {
		n += len(f.Containers[i].Items)
	}
	d.Items = make([]stream.Item, 0, n)
	for i := range f.Containers {
		from := &f.Containers[i]
		c := &stream.Container{
			Stream: penstock.StreamID{Namespace: string(from.Namespace), Key: string(from.Key)}, Token: from.Token, Time: from.Time,
			Header: from.Header.to(), Attempts: from.Attempts,
		}
		events := make([]penstock.Envelope, len(from.Items))
		for j := range from.Items {
			events[j] = from.Items[j].to()
			t := c.Token
			t.Index = from.Items[j].Index
			d.Items = append(d.Items, stream.Item{Token: t, Attempt: from.Items[j].Attempt, From: c, Index: j})
		}
		c.Events = stream.EventsOf(events...)
	}
	return d
}

// answerFrame makes the answer to a delivery. Texts of errors are bounded, all
// of them together by a sixteenth of the longest line: in JSON a character may
// take six bytes, and a failure without a text takes less than its item did, so
// the line of the answer fits whenever that of the delivery has. Texts that
// would have to be cut to a few characters are left out.
func answerFrame(call uint64, a stream.Answer, err error, lineMax int) frame {
	if err != nil {
		return errorFrame(call, err)
	}
	f := frame{Kind: kindAnswer, Call: call}
	if a.Rewind.Kind != stream.PositionNone {
		p, err := fromPosition(a.Rewind)
		if err != nil {
			return errorFrame(call, err)
		}
		f.Position = p
		return f
	}
	for _, x := range a.Failed {
		e := failure{Index: x.Index}
		if room := lineMax / 16 / len(a.Failed); x.Err != nil && room >= 16 {
			e.Error = text(cut(tellable(x.Err), min(maxError, room)))
		}
		f.Failed = append(f.Failed, e)
	}
	return f
}

func errorFrame(call uint64, err error) (f frame) {
	f = frame{Kind: kindError, Call: call, Error: text(cut(tellable(err), maxError))}
	defer func() { recover() }() // an error that panics when it is asked what it is: it is neither
	f.Gone = errors.Is(err, stream.ErrConsumerGone)
	f.Away = errors.Is(err, stream.ErrAway)
	return f
}

// plain is an error that holds its text and nothing of the user's: it can be
// asked under a lock. One that leaves its goroutine when it is asked is told as
// such.
func plain(where string, err error) error {
	out := &Error{Text: unspeakable}
	if bad := guard.Call(where+": its error", func() error {
		f := errorFrame(0, err)
		out = &Error{Text: string(f.Error), Gone: f.Gone, Away: f.Away}
		return nil
	}); bad != nil {
		return out
	}
	return out
}

// plainFailures is plain for each failure of an answer.
func plainFailures(where string, failed []stream.ItemFailure) []stream.ItemFailure {
	out := slices.Clone(failed)
	for next := 0; next < len(out); next++ {
		_ = guard.Call(where+": its error", func() error {
			for ; next < len(out); next++ {
				if err := out[next].Err; err != nil {
					out[next].Err = &Error{Text: unspeakable}
					out[next].Err = &Error{Text: cut(tellable(err), maxError)}
				}
			}
			return nil
		})
	}
	return out
}

// tellable returns the text of an error, which is user code: a nil pointer in
// an error panics.
func tellable(err error) (s string) {
	defer func() {
		if v := recover(); v != nil {
			s = fmt.Sprintf("an error that panics when it is asked for its text: %v", v)
		}
	}()
	return err.Error()
}

// Error is an error of the other end: its text, and whether its consumer is
// gone or away. It matches stream.ErrConsumerGone or stream.ErrAway then.
type Error struct {
	Text       string // at most 4 KiB
	Gone, Away bool
}

func (e *Error) Error() string { return e.Text }

// Is reports whether target is what the other end said about its consumer.
func (e *Error) Is(target error) bool {
	return e.Gone && target == stream.ErrConsumerGone || e.Away && target == stream.ErrAway
}

func (f *frame) err() error {
	return &Error{Text: string(f.Error), Gone: f.Gone, Away: f.Away}
}

// answer is what a checked answer says.
func (f *frame) answer() (stream.Answer, error) {
	if f.Kind == kindError {
		return stream.Answer{}, f.err()
	}
	var a stream.Answer
	if f.Position != nil {
		p, err := f.Position.to()
		return stream.Answer{Rewind: p}, err
	}
	for _, x := range f.Failed {
		a.Failed = append(a.Failed, stream.ItemFailure{Index: x.Index, Err: &Error{Text: string(x.Error)}})
	}
	return a, nil
}
