package queue

import (
	"context"

	"github.com/penstock/penstock/stage"
)

// Settle returns a sink of package stage at the end of a graph that begins with
// [Group.Source]. f gets the messages in batches as the function of
// [stage.NewSink] does, which also says what ctx is; when it returns nil, all of
// them are settled. When it returns an error, none is, and the sink fails with it;
// [stage.Done] settles none either. f may settle single messages itself before
// it fails.
func Settle[T any](name string, f func(ctx context.Context, in []Message[T]) error, opts ...stage.Option) *stage.Sink[Message[T]] {
	if f == nil {
		return stage.NewSink[Message[T]](name, nil, opts...)
	}
	return stage.NewSink(name, func(ctx context.Context, in []Message[T]) error {
		if err := f(ctx, in); err != nil {
			return err
		}
		return settleAll(in)
	}, opts...)
}

func settleAll[T any](in []Message[T]) error {
	for i := range in {
		if err := in[i].Done(); err != nil {
			return err
		}
	}
	return nil
}

// Sink returns a sink of package stage that produces what comes to it into the
// topic, a batch as one request, as [Topic.Produce] does: while the topic is full it waits,
// and so do the stages before it. It fails when Produce does; what the topic
// had accepted of that batch by then is in it, and how many is in the error, a
// [*penstock.PartialError].
func (t *Topic[T]) Sink(name string, opts ...stage.Option) *stage.Sink[T] {
	return stage.NewSink(name, func(ctx context.Context, in []T) error {
		return t.Produce(ctx, in...)
	}, opts...)
}

// ProduceTo returns a sink that produces the values of messages into the topic t
// and then settles them: from one topic to another, at least once. An event that
// was produced and not settled, because the process or the graph ended in
// between, is produced again.
func ProduceTo[T any](name string, t *Topic[T], opts ...stage.Option) *stage.Sink[Message[T]] {
	var values []T // one call at a time
	return Settle(name, func(ctx context.Context, in []Message[T]) error {
		values = values[:0]
		for i := range in {
			values = append(values, in[i].Value)
		}
		err := t.Produce(ctx, values...)
		clear(values)
		return err
	}, opts...)
}
