package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// topicRouterID names the rule by which a topic of containers is routed. A
// topic on disk records it.
const topicRouterID = "stream-ring/1"

// Topic is a topic of containers, in memory or on disk, and the [Factory] of
// providers over it: each partition is a queue, each provider reads as the
// consumer group of its name. It can be rewound as far as the provider's
// checkpoint, which is the group's commit.
//
// Enqueue returns when the topic has accepted the container at its durability
// level. A container comes again after a failure unless the checkpoint had
// passed it; the checkpoint follows the slowest subscription within a poll
// period. The group, and with it the checkpoint, outlives the provider: one
// that is opened again over the same Topic, or over the same directory, goes
// on where the checkpoint stands. In memory it ends with the Topic, and so do
// its tokens. A token is the offset of its container; one that the partition
// has not reached is refused.
//
// A Topic is safe for concurrent use.
type Topic struct {
	DefaultParts
	topic  *queue.Topic[Container]
	urgent penstock.Offset // see topicReceiver

	mu     sync.Mutex
	groups map[string]*queue.Group[Container]
}

// OpenTopic opens a topic for streams. Partitions is the number of queues, 8
// by default; Codec, Key, Router and Size are set by OpenTopic and must be
// nil. Everything else is as with [queue.Open]. Capacity counts containers; a
// full topic makes Publish wait or fail as WhenFull says.
func OpenTopic(c queue.Config[Container]) (*Topic, error) {
	for _, f := range []struct {
		name string
		set  bool
	}{{"Codec", c.Codec != nil}, {"Key", c.Key != nil}, {"Router", c.Router != nil}, {"Size", c.Size != nil}} {
		if f.set {
			return nil, fmt.Errorf("stream: open topic %q: %w", c.Name, &penstock.FieldError{Field: f.name, Reason: "is set by OpenTopic"})
		}
	}
	if c.Partitions == 0 {
		c.Partitions = 8
	}
	if c.Partitions > 0 {
		ring, err := NewRingMapper("ring", c.Partitions)
		if err != nil {
			return nil, fmt.Errorf("stream: open topic %q: %w", c.Name, err)
		}
		c.Router = queue.RouterFunc(topicRouterID, func(c Container, _ int) int { return ring.QueueFor(c.Stream).Number })
	}
	if c.Dir != "" {
		c.Codec = ContainerCodec()
	}
	t, err := queue.Open(c)
	if err != nil {
		return nil, fmt.Errorf("stream: open topic %q: %w", c.Name, err)
	}
	return &Topic{topic: t, urgent: urgency(c), groups: map[string]*queue.Group[Container]{}}, nil
}

// urgency returns how many settled containers of a queue make it commit at
// once: in memory one; on disk, where a commit may be a flush, a share of the
// capacity, so that producers do not wait for the interval.
func urgency(c queue.Config[Container]) penstock.Offset {
	switch {
	case c.Dir == "":
		return 1
	case c.Capacity == 0:
		return 1 << 16
	}
	return penstock.Offset(max(c.Capacity/(4*c.Partitions), 1))
}

// Queue returns the topic itself, for its statistics and for consumer groups
// that look at the containers of all streams.
func (t *Topic) Queue() *queue.Topic[Container] { return t.topic }

// Close closes the topic. Providers over it must have been closed.
func (t *Topic) Close() error { return t.topic.Close() }

// NewAdapter opens the consumer group of the provider, unless it is open. The
// error matches penstock.ErrInvalid when the provider's number of queues is
// not the number of partitions.
func (t *Topic) NewAdapter(_ context.Context, e Environment) (Adapter, error) {
	if n := len(e.Mapper.Queues()); n != t.topic.Partitions() {
		return nil, &penstock.FieldError{Field: "Queues", Reason: fmt.Sprintf("%d, but topic %q has %d partitions", n, t.topic.Name(), t.topic.Partitions())}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[e.Provider]
	if g == nil {
		var err error
		if g, err = t.topic.Group(e.Provider, queue.GroupConfig{}); err != nil {
			return nil, err
		}
		t.groups[e.Provider] = g
	}
	return &topicAdapter{topic: t.topic, group: g, urgent: t.urgent}, nil
}

type topicAdapter struct {
	topic  *queue.Topic[Container]
	group  *queue.Group[Container]
	urgent penstock.Offset
}

func (a *topicAdapter) Rewindable() bool     { return true }
func (a *topicAdapter) Direction() Direction { return ReadWrite }
func (a *topicAdapter) Close() error         { return nil } // topic and group belong to Topic

func (a *topicAdapter) Enqueue(ctx context.Context, c Container) error {
	return a.topic.Produce(ctx, c)
}

// CheckToken implements [TokenChecker]: Lo is an offset below the partition's
// end, Hi is 0.
func (a *topicAdapter) CheckToken(q QueueID, t penstock.Token) error {
	if t.Hi != 0 {
		return &penstock.FieldError{Field: "Token", Reason: fmt.Sprintf("%s is not of topic %q", t, a.topic.Name())}
	}
	if end := a.topic.Stats().Partitions[q.Number].End; t.Lo >= uint64(end) {
		return fmt.Errorf("token %s of topic %q, partition %d: the partition ends before offset %d: %w", t, a.topic.Name(), q.Number, end, penstock.ErrOffsetOutOfRange)
	}
	return nil
}

func (a *topicAdapter) NewReceiver(q QueueID) (Receiver, error) {
	return &topicReceiver{group: a.group, partition: q.Number, urgent: a.urgent}, nil
}

// topicReceiver reads one partition ahead of the group's commit; the
// checkpoint is the commit. It is its own checkpointer: it commits every 100
// ms, at shutdown, and as soon as urgent containers or more can be committed.
type topicReceiver struct {
	group     *queue.Group[Container]
	partition int
	urgent    penstock.Offset
	reader    *queue.Reader[Container] // nil until a reader could be opened
	next      penstock.Offset          // to commit up to
	committed time.Time

	again bool        // who reads is done with what was read before it reads again
	kept  []Container // memory of Read, for the next one
}

// commitEvery is the longest time that a commit is held back.
const commitEvery = 100 * time.Millisecond

// readLimit bounds one read where the agent names no limit.
const readLimit = 1024

func (r *topicReceiver) Init(context.Context) error { return r.open() }

func (r *topicReceiver) open() error {
	if r.reader != nil {
		return nil
	}
	reader, err := r.group.Reader(r.partition)
	if err == nil {
		r.reader = reader
	}
	return err
}

func (r *topicReceiver) Read(_ context.Context, limit int) ([]Container, error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	if limit < 0 {
		limit = readLimit
	}
	b, ok, err := r.reader.Read(limit)
	if err != nil || !ok {
		return nil, err
	}
	out := r.memory(b.Len())
	for i, c := range b.All() {
		c.Token, c.Time = b.Token(i), b.Time(i)
		out[i] = c
	}
	return out, nil
}

// memory is room for so many containers.
func (r *topicReceiver) memory(n int) []Container {
	if !r.again {
		return make([]Container, n)
	}
	if cap(r.kept) < n {
		r.kept = make([]Container, n)
	}
	r.kept = r.kept[:n]
	return r.kept
}

func (r *topicReceiver) Wait(ctx context.Context) error {
	if r.reader == nil {
		<-ctx.Done()
		return penstock.ContextError(ctx)
	}
	return r.reader.Wait(ctx)
}

func (r *topicReceiver) Delivered(context.Context, []Container) error { return nil }

func (r *topicReceiver) Checkpointer() Checkpointer { return r }

// Load returns the token of the last committed container.
func (r *topicReceiver) Load(context.Context) (penstock.Token, bool, error) {
	if err := r.open(); err != nil {
		return penstock.Token{}, false, err
	}
	next := r.reader.Committed()
	if next == 0 {
		return penstock.Token{}, false, nil
	}
	return penstock.Token{Lo: uint64(next) - 1}, true, nil
}

func (r *topicReceiver) Update(ctx context.Context, pos penstock.Token, now time.Time) error {
	if r.reader == nil {
		return nil // nothing was read
	}
	r.next = max(r.next, penstock.Offset(pos.Lo)+1)
	if r.next < r.reader.Committed()+r.urgent && now.Sub(r.committed) < commitEvery {
		return nil
	}
	r.committed = now
	return r.Flush(ctx)
}

func (r *topicReceiver) Flush(context.Context) error {
	if r.reader == nil || r.next <= r.reader.Committed() {
		return nil
	}
	return r.reader.Commit(r.next)
}

func (r *topicReceiver) Shutdown(ctx context.Context) error {
	if r.reader == nil {
		return nil
	}
	return errors.Join(r.Flush(ctx), r.reader.Close())
}
