package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
	"github.com/penstock/penstock/segfile"
)

// Events on disk that cannot be decoded (ADR 0042).

// OnUndecodable says what becomes of an event on disk that cannot be decoded:
// its codec returns an error or panics, or its envelope is malformed. Damage of
// the log itself is another thing: it stops the partition in any case.
type OnUndecodable uint8

const (
	// DeadLetterUndecodable hands the event to the group's [DeadLetter], with
	// the bytes that could not be decoded (see [Undecoded]), and goes on when it
	// was taken. In a group without DeadLetter it is as StopAtUndecodable.
	DeadLetterUndecodable OnUndecodable = iota
	// StopAtUndecodable stops the partition for the group at the event: Run goes
	// on with other partitions, and a pull returns an [*UndecodableError] each
	// time the turn comes to that partition.
	StopAtUndecodable
	// DropUndecodable passes the event over: it is counted and logged.
	DropUndecodable
)

// String returns the policy as it stands in configuration: dead_letter, stop or
// drop.
func (o OnUndecodable) String() string {
	switch o {
	case DeadLetterUndecodable:
		return "dead_letter"
	case StopAtUndecodable:
		return "stop"
	case DropUndecodable:
		return "drop"
	}
	return fmt.Sprintf("on_undecodable(%d)", uint8(o))
}

// Names of the header fields that hold the bytes of an event that could not be
// decoded: what the codec was given, or, when the envelope is malformed, the
// whole record. Bytes that are longer than a field stand in several, in order.
const (
	UndecodedHeader       = "penstock-undecoded"
	UndecodedRecordHeader = "penstock-undecoded-record"
)

// UndecodableError is an event on disk that cannot be decoded. A reader that
// wants to go on seeks past Offset. It unwraps to what the codec returned, or
// to a [*penstock.PanicError].
type UndecodableError struct {
	Offset penstock.Offset
	Meta   penstock.Meta // as it was produced; the zero Meta when it had none, or with Record
	// Payload is what the codec was given or, with Record set, the whole record,
	// whose envelope is malformed. It belongs to the error.
	Payload []byte
	Record  bool
	Err     error

	epoch    uint32
	unixNano int64 // of the append
}

func (e *UndecodableError) Error() string {
	return fmt.Sprintf("event %d cannot be decoded: %v", e.Offset, e.Err)
}

// Unwrap returns why it cannot be decoded.
func (e *UndecodableError) Unwrap() error { return e.Err }

// newUndecodable describes record i of rec.
func newUndecodable(rec segfile.Records, i int, cause error) *UndecodableError {
	e := &UndecodableError{Offset: rec.First + penstock.Offset(i), Err: cause, epoch: rec.Epoch, unixNano: rec.Time}
	e.take(rec.At(i), rec.Enveloped())
	return e
}

// take keeps a copy of a record.
func (e *UndecodableError) take(record []byte, enveloped bool) {
	e.Payload = slices.Clone(record)
	if !enveloped {
		return
	}
	m, payload, err := penstock.DecodeEnvelope(e.Payload)
	if err != nil {
		e.Record = true
		return
	}
	e.Meta, e.Payload = m, payload
}

// asUndecodable returns the [*UndecodableError] in an error, nil when there is
// none.
func asUndecodable(err error) *UndecodableError {
	e, _ := errors.AsType[*UndecodableError](err)
	return e
}

// Undecoded returns the bytes of a dead letter that could not be decoded, and
// true; false for any other event. The value of such an event is the zero T.
// record says that they are the whole record with its malformed envelope, not
// what the codec was given.
func Undecoded[T any](e penstock.Event[T]) (payload []byte, record, ok bool) {
	for _, f := range e.Header {
		if f.Name == UndecodedHeader || f.Name == UndecodedRecordHeader {
			payload, ok = append(payload, f.Value...), true
			record = f.Name == UndecodedRecordHeader
		}
	}
	return payload, record, ok
}

// header returns an event's header with the bytes that could not be decoded.
func (e *UndecodableError) header(h penstock.Header) penstock.Header {
	name := UndecodedHeader
	if e.Record {
		name = UndecodedRecordHeader
	}
	h = slices.Clone(h)
	for rest, first := e.Payload, true; first || len(rest) > 0; first = false {
		n := min(len(rest), penstock.MaxFieldBytes)
		h = append(h, penstock.Field{Name: name, Value: string(rest[:n])})
		rest = rest[n:]
	}
	return h
}

// withoutUndecoded returns a header without what header added.
func withoutUndecoded(h penstock.Header) penstock.Header {
	return slices.DeleteFunc(slices.Clone(h), func(f penstock.Field) bool {
		return f.Name == UndecodedHeader || f.Name == UndecodedRecordHeader
	})
}

// setsAside reports whether the group hands events that cannot be decoded to
// its dead letters.
func (g *Group[T]) setsAside() bool {
	return g.config.OnUndecodable == DeadLetterUndecodable && g.options.deadLetter != nil
}

// passes reports whether the group goes on behind an event that cannot be
// decoded.
func (g *Group[T]) passes() bool {
	return g.config.OnUndecodable == DropUndecodable || g.setsAside()
}

// dropUndecodable is what becomes of an event under DropUndecodable. It is
// counted when it is settled.
func (g *Group[T]) dropUndecodable(partition int, e *UndecodableError) {
	g.topic.logger.Warn("an event that cannot be decoded was dropped", slog.String("group", g.name),
		slog.Int("partition", partition), slog.Uint64("offset", uint64(e.Offset)), slog.String("cause", debugpage.ErrorText(e.Err)))
}

// substitute makes the window one event, the zero T, that stands for one that
// cannot be decoded.
func (c *cursor[T]) substitute(e *UndecodableError) {
	w := window[T]{First: e.Offset, Values: make([]T, 1), Epoch: e.epoch, bad: e}
	w.Times = []penstock.TimeRun{{N: 1, UnixNano: e.unixNano}}
	if !e.Meta.IsBare() {
		w.Metas = []penstock.Meta{e.Meta}
	}
	c.win, c.limit, c.runsUntil, c.smooth = w, w.end(), 0, 0
}

// commitsFirst reports whether a job is committed before its call. What is not
// given to the handler is not: it is settled by what becomes of it.
func (l *lane[T]) commitsFirst(j *job[T]) bool {
	return l.group.config.AutoCommit && !j.span.DeadLetter && j.bad == nil
}

// deadUndecodable is the dead letter of an event that cannot be decoded, of a
// pull.
func (g *Group[T]) deadUndecodable(partition int, e *UndecodableError) penstock.Event[T] {
	d := penstock.Delivery{Topic: g.topic.config.Name, Partition: partition, First: e.Offset, Epoch: e.epoch, Times: []penstock.TimeRun{{N: 1, UnixNano: e.unixNano}}}
	d.Metas = []penstock.Meta{e.Meta}
	return g.deadEvents(nil, 1, e, e, penstock.NewBatch(make([]T, 1), &d))[0]
}

// fill is refill of cursor i, in a pull, that deals with events that cannot be
// decoded. The cursor stands at the commit: what was pulled before is committed
// or comes again.
func (c *Consumer[T]) fill(ctx context.Context, i int, cur *cursor[T], max int) error {
	for {
		end, least := c.end(cur), max
		if !c.shaped {
			least = cur.least(end, max)
		}
		err := c.refill(i, cur, end, least)
		if err == nil {
			return nil
		}
		g, bad := c.group, asUndecodable(err)
		if bad == nil || !g.passes() {
			g.noteUnreadable(cur.part.index, cur.read, err)
			return err
		}
		if g.setsAside() {
			if failed := g.handOver(ctx, cur.part.index, bad); failed != nil {
				g.noteError(KindDeadLetter, cur.part.index, bad.Offset, failed)
				return errors.Join(err, fmt.Errorf("dead letter: %w", failed))
			}
		} else {
			g.dropUndecodable(cur.part.index, bad)
		}
		g.noteError(KindDecode, cur.part.index, bad.Offset, bad)
		cur.seek(bad.Offset + 1)
		if err := cur.settle(cur.read); err != nil {
			return err
		}
		g.seen.undecodable.Add(1)
		c.mark(i)
	}
}

// handOver calls DeadLetter for an event that cannot be decoded.
func (g *Group[T]) handOver(ctx context.Context, partition int, e *UndecodableError) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &penstock.PanicError{Where: "DeadLetter of group " + g.name, Value: v, Stack: debug.Stack()}
		}
	}()
	return g.options.deadLetter(ctx, g.deadUndecodable(partition, e))
}

// validateUndecodable names the bad field.
func (c *GroupConfig) validateUndecodable() error {
	if c.OnUndecodable > DropUndecodable {
		return &penstock.FieldError{Field: "OnUndecodable", Reason: fmt.Sprintf("%d is none of DeadLetterUndecodable, StopAtUndecodable and DropUndecodable", uint8(c.OnUndecodable))}
	}
	return nil
}

var errNoCodec = errors.New("the topic has no codec")

// decode decodes what could not be decoded when it was read.
func (t *Topic[T]) decode(payload []byte, record bool) (v T, err error) {
	switch {
	case record:
		return v, fmt.Errorf("%w: its envelope is malformed", penstock.ErrCorrupt)
	case t.config.Codec == nil:
		return v, errNoCodec
	}
	defer func() {
		if r := recover(); r != nil {
			err = &penstock.PanicError{Where: "codec of topic " + t.config.Name, Value: r, Stack: debug.Stack()}
		}
	}()
	err = t.config.Codec.Decode(payload, &v)
	return v, err
}
