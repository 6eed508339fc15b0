package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/penstock/penstock"
)

// RedrivenHeader is the header field that says how often an event was sent
// back by [Redrive], in decimal.
const RedrivenHeader = "penstock-redriven"

const (
	redriveBatch = 100
	// requeueWait is how long Redrive waits for room in the dead-letter topic for
	// what stays there, while another group holds it full.
	requeueWait = time.Second
)

// RedriveConfig says what [Redrive] sends back.
type RedriveConfig[T any] struct {
	// To are the topics that dead letters may go back to: an event goes to the
	// one whose name is in its Origin. Required; not the dead-letter topic.
	To []*Topic[T]
	// Max is how many dead letters are looked at; 0 is all that are there when
	// Redrive is called. A negative number is an error.
	Max int
	// Rate is how many events per second are sent back at most; 0 is no limit. A
	// negative number is an error.
	Rate float64
	// Filter, if set, chooses what is sent back. What it refuses stays. It is
	// called once for each event that has a topic to go to; a call of Redrive
	// that goes on where one ended in an error may ask again.
	Filter func(penstock.Event[T]) bool
	// DryRun counts and moves nothing.
	DryRun bool
	// Progress, if set, is called with the numbers so far, after each batch.
	Progress func(RedriveReport)
}

// RedriveReport counts, in events, what became of the dead letters.
type RedriveReport struct {
	Redriven int // accepted by their topic; with DryRun, those that would be sent and can be decoded
	Skipped  int // refused by Filter; they are still dead letters
	Failed   int // without a topic to go to, or refused by it for good; they are still dead letters
}

func (r RedriveReport) total() int { return r.Redriven + r.Skipped + r.Failed }

// Redrive sends dead letters back to the topic that they came from. from is a
// group of the dead-letter topic, without a Rate, which must not be in use
// otherwise; it goes through what is there when Redrive is called, partition by
// partition. Call it once at a time.
//
// A dead letter is committed in from only after its topic has accepted it, so a
// crash in between sends it twice: at least once. What is skipped, or cannot be
// sent, is appended to the dead-letter topic again before it is committed: it
// stays there, behind the others, and nothing is lost. Other groups of that
// topic see it once more. In a topic with a capacity it takes over the room that
// it has, so that a full one can be redriven too, unless another group holds it
// full: then Redrive waits a second for room, and ends.
//
// The event goes back as it was produced: id, time, key, headers and value. Its
// Attempt is 0, since it is delivered anew; its Origin stays, and
// [RedrivenHeader] counts how often it was sent back. Every group of its topic
// sees it, also those that had handled it: a handler that must not do so twice
// compares Origin.Group with the name of its group and ignores those of others.
//
// A dead letter that could not be decoded ([Undecoded]) is decoded anew by the
// codec of the topic that it goes back to, and stays, as Failed, when that fails
// too; Filter sees it with the zero value. It is the same for one that the
// dead-letter topic itself cannot decode: it stays as one that [Undecoded] knows.
//
// Redrive blocks while a topic is full, and while from is paused. It returns the
// report with an error that matches ctx.Err() and its cause when ctx ends, and
// with the first error of a topic that may pass, such as [penstock.ErrFull] or
// [penstock.ErrDiskFull]; called again, it goes on where it was. The error
// matches [penstock.ErrInvalid] when the configuration is wrong,
// [penstock.ErrExists] when from is used in another way, and
// [penstock.ErrClosed] when it is closed. A Filter or Progress that panics ends
// it with a [*penstock.PanicError].
func Redrive[T any](ctx context.Context, from *Group[T], c RedriveConfig[T]) (RedriveReport, error) {
	if from == nil {
		return RedriveReport{}, fmt.Errorf("redrive: %w", &penstock.FieldError{Field: "from", Reason: "is nil"})
	}
	r := redrive[T]{config: c, from: from, to: make(map[string]*Topic[T])}
	err := r.run(ctx)
	if err != nil {
		err = fmt.Errorf("redrive from topic %q: %w", from.topic.config.Name, err)
	}
	return r.report, err
}

type redrive[T any] struct {
	config RedriveConfig[T]
	from   *Group[T]
	to     map[string]*Topic[T]
	due    time.Time // when Rate allows the next to be sent
	report RedriveReport
	reader *Reader[T] // of the partition that is looked at
}

func (r *redrive[T]) validate() error {
	c := &r.config
	switch {
	case len(c.To) == 0:
		return &penstock.FieldError{Field: "To", Reason: "is empty"}
	case c.Max < 0:
		return &penstock.FieldError{Field: "Max", Reason: fmt.Sprintf("%d is negative", c.Max)}
	case !(c.Rate >= 0) || math.IsInf(c.Rate, 1):
		return &penstock.FieldError{Field: "Rate", Reason: fmt.Sprintf("%v is not a number of at least 0", c.Rate)}
	}
	for _, t := range c.To {
		if t == nil || t == r.from.topic {
			return &penstock.FieldError{Field: "To", Reason: "has a nil topic or the dead-letter topic itself"}
		}
		if r.to[t.config.Name] != nil {
			return &penstock.FieldError{Field: "To", Reason: fmt.Sprintf("has two topics with the name %q, so that it does not say where an event goes", t.config.Name)}
		}
		r.to[t.config.Name] = t
	}
	if c.Max == 0 {
		c.Max = math.MaxInt
	}
	return nil
}

func (r *redrive[T]) run(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}
	cursors := r.from.shares.Load().cursors
	ends := make([]penstock.Offset, len(cursors))
	for i, cur := range cursors { // what is appended again does not count
		ends[i] = cur.source.end()
	}
	for partition, end := range ends {
		if err := r.partition(ctx, partition, end); err != nil {
			return err
		}
	}
	return nil
}

// partition sends back what lies in a partition below end.
func (r *redrive[T]) partition(ctx context.Context, partition int, end penstock.Offset) error {
	reader, err := r.from.Reader(partition)
	if err != nil {
		return err
	}
	defer reader.Close() // returns nil
	r.reader = reader
	for reader.Next() < end && r.report.total() < r.config.Max {
		if err := penstock.ContextError(ctx); err != nil {
			return err
		}
		n := min(redriveBatch, r.config.Max-r.report.total())
		if left := end - reader.Next(); left < penstock.Offset(n) {
			n = int(left)
		}
		b, ok, err := reader.Read(n)
		if bad := asUndecodable(err); bad != nil {
			if err := r.undecodable(ctx, bad); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if !ok { // paused
			if err := reader.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		done, err := r.batch(ctx, b)
		if err := r.finish(b.Offset(0), done, err); err != nil {
			return err
		}
	}
	return nil
}

// finish commits the first done events from an offset on, and tells Progress.
func (r *redrive[T]) finish(first penstock.Offset, done int, err error) error {
	if done > 0 && !r.config.DryRun {
		err = errors.Join(err, r.reader.Commit(first+penstock.Offset(done)))
	}
	return errors.Join(err, r.progress())
}

func (r *redrive[T]) progress() (err error) {
	if r.config.Progress != nil {
		defer r.caught("Progress", &err)
		r.config.Progress(r.report)
	}
	return err
}

// batch deals with the events of a batch and returns for how many of them, from
// the first on, that is finished.
func (r *redrive[T]) batch(ctx context.Context, b penstock.Batch[T]) (int, error) {
	events, targets := make([]penstock.Event[T], b.Len()), make([]*Topic[T], b.Len())
	known := 0 // events whose target was asked for, which happens once
	target := func(i int) (*Topic[T], error) {
		if i < known {
			return targets[i], nil
		}
		events[i] = b.Event(i)
		t, err := r.target(events[i])
		if err == nil {
			targets[i], known = t, i+1
		}
		return t, err
	}
	for i := 0; i < len(events); {
		to, err := target(i)
		if err != nil {
			return i, err
		}
		end := i + 1
		for to != nil && end < len(events) && end-i < r.runMax() {
			if next, err := target(end); err != nil || next != to { // an error comes again
				break
			}
			end++
		}
		n, err := r.send(ctx, to, events[i:end], b.Offset(i))
		i += n
		if err != nil {
			return i, err
		}
	}
	return len(events), nil
}

// target returns where an event goes, nil when it is to stay.
func (r *redrive[T]) target(e penstock.Event[T]) (to *Topic[T], err error) {
	if e.Origin == nil || r.to[e.Origin.Topic] == nil {
		return nil, nil
	}
	if r.config.Filter != nil {
		defer r.caught("Filter", &err)
		if !r.config.Filter(e) {
			return nil, nil
		}
	}
	return r.to[e.Origin.Topic], nil
}

// caught is deferred around a function of the configuration.
func (r *redrive[T]) caught(field string, err *error) {
	if v := recover(); v != nil {
		*err = errors.Join(*err, &penstock.PanicError{Where: field + " of a redrive from topic " + r.from.topic.config.Name, Value: v, Stack: debug.Stack()})
	}
}

// runMax is how many events are sent at once, so that a rate is kept evenly.
func (r *redrive[T]) runMax() int {
	if r.config.Rate == 0 {
		return redriveBatch
	}
	return max(1, min(redriveBatch, int(r.config.Rate/10)))
}

// send sends events, of which the first is the dead letter at an offset, to one
// topic, or leaves the one that has none, and returns how many of them are
// finished.
func (r *redrive[T]) send(ctx context.Context, to *Topic[T], events []penstock.Event[T], at penstock.Offset) (int, error) {
	if to == nil {
		return r.leave(ctx, events[0], at)
	}
	if r.config.DryRun {
		for _, e := range events {
			if _, err := asProduced(to, e); err != nil {
				r.report.Failed++
			} else {
				r.report.Redriven++
			}
		}
		return len(events), nil
	}
	if err := r.pace(ctx); err != nil {
		return 0, err
	}
	again := make([]penstock.Event[T], 0, len(events))
	for _, e := range events {
		e, err := asProduced(to, e)
		if err == nil {
			again = append(again, e)
			continue
		}
		if len(again) == 0 {
			r.from.topic.logger.Warn("a dead letter still cannot be decoded", "offset", uint64(e.Origin.Offset), "topic", to.config.Name, "err", err)
			return r.keep(ctx, e, at, &r.report.Failed)
		}
		events = events[:len(again)] // the rest comes next
		break
	}
	begun := time.Now()
	err := to.ProduceEvents(ctx, again...)
	n := len(events)
	if err != nil {
		n = 0
		if partial, ok := errors.AsType[*penstock.PartialError](err); ok {
			n = partial.Accepted
		}
	}
	r.report.Redriven += n
	r.from.redriven.Add(uint64(n))
	r.paid(begun, n)
	switch {
	case err == nil || n > 0 || !isRefusal(err): // after n > 0 the rest tells by itself
		return n, errIf(n == 0, err)
	case len(events) > 1: // which of them it is
		return r.send(ctx, to, events[:1], at)
	}
	r.from.topic.logger.Warn("a dead letter cannot go back", "offset", uint64(events[0].Origin.Offset), "topic", to.config.Name, "err", err)
	return r.keep(ctx, events[0], at, &r.report.Failed)
}

func errIf(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// isRefusal reports whether an error is about the event and comes every time.
func isRefusal(err error) bool {
	_, panicked := errors.AsType[*penstock.PanicError](err)
	return panicked || errors.Is(err, penstock.ErrTooLarge) || errors.Is(err, penstock.ErrInvalid)
}

// asProduced returns the event as it goes back to a topic: one that could not
// be decoded when it was read is decoded by the codec that the topic has now. On
// error it returns the event as it is.
func asProduced[T any](to *Topic[T], e penstock.Event[T]) (penstock.Event[T], error) {
	if payload, record, ok := Undecoded(e); ok {
		v, err := to.decode(payload, record)
		if err != nil {
			return e, err
		}
		e.Value = v
	}
	e.Attempt = 0
	e.Header = withoutUndecoded(e.Header)
	for i := range e.Header {
		if f := &e.Header[i]; f.Name == RedrivenHeader {
			n, _ := strconv.Atoi(f.Value) // anything else counts as never
			f.Value = strconv.Itoa(n + 1)
			return e, nil
		}
	}
	e.Header = append(e.Header, penstock.Field{Name: RedrivenHeader, Value: "1"})
	return e, nil
}

// pace waits until one more event keeps the rate.
func (r *redrive[T]) pace(ctx context.Context) error {
	wait := time.Until(r.due)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}

// paid notes that n events were sent, from a time on. What the rate would have
// allowed while nothing was sent is not made up for.
func (r *redrive[T]) paid(begun time.Time, n int) {
	if r.config.Rate == 0 {
		return
	}
	nanos := float64(n) / r.config.Rate * float64(time.Second)
	r.due = begun.Add(time.Duration(min(nanos, math.MaxInt64/2)))
}
