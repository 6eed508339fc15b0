package stream

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// Complete marks the stream as complete, in its place among the events: the
// subscriptions that asked for it with [OnEnd] are told, at least once. Nothing
// else happens: the stream can be published to again. The errors are those of
// [Stream.Publish].
func (s *Stream[T]) Complete(ctx context.Context) error { return s.mark(ctx, End{}) }

// Fail marks the stream as failed; the text of cause, at most 4 KiB of it,
// reaches the subscriptions. See [Stream.Complete].
func (s *Stream[T]) Fail(ctx context.Context, cause error) error {
	text := "no cause given"
	if cause != nil && cause.Error() != "" {
		text = cause.Error()
	}
	return s.mark(ctx, End{Cause: text[:min(len(text), maxCause)]})
}

func (s *Stream[T]) mark(ctx context.Context, e End) error {
	err := s.id.Validate()
	if err == nil {
		err = s.provider.enqueue(ctx, Container{Stream: s.id, Header: endMark(e), Events: EventsOf(penstock.Envelope{})})
	}
	if err != nil {
		return fmt.Errorf("mark the end of stream %s: %w", s.id, err)
	}
	return nil
}

// End says how a stream has ended, as its producer told.
type End struct {
	// Cause is empty for a stream that is complete; otherwise it says why it
	// has failed.
	Cause string
}

// Err returns nil for a stream that is complete, and otherwise an
// *[EndedError].
func (e End) Err() error {
	if e.Cause == "" {
		return nil
	}
	return &EndedError{Cause: e.Cause}
}

// EndedError says why a stream has ended.
type EndedError struct{ Cause string }

func (e *EndedError) Error() string { return "stream ended: " + e.Cause }

// Names of the header that marks an end. A container that has it as its first
// field is a mark and carries no event of its producer.
const (
	endHeader   = "penstock-stream-end"
	endComplete = "complete"
	endFailed   = "failed: "
)

// End reports whether the container marks the end of its stream, and which.
// Consumers of other kinds than handlers ask it; see [Stream.Complete].
func (c *Container) End() (End, bool) {
	if len(c.Header) == 0 || c.Header[0].Name != endHeader {
		return End{}, false
	}
	v := c.Header[0].Value
	if len(v) > len(endFailed) && v[:len(endFailed)] == endFailed {
		return End{Cause: v[len(endFailed):]}, true
	}
	return End{}, true
}

func endMark(e End) penstock.Header {
	v := endComplete
	if e.Cause != "" {
		v = endFailed + e.Cause
	}
	return penstock.Header{{Name: endHeader, Value: v}}
}
