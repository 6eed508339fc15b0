package queue

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// Start says where a new group begins. On disk it counts only for a group that
// has no stored commit.
type Start uint8

const (
	// Earliest begins at the earliest event that is kept: of a bounded topic,
	// at the first whose capacity was not given back (ADR 0010).
	Earliest Start = iota
	// Latest begins behind everything that was readable when Group was called.
	Latest
)

// Defaults of [GroupConfig].
const (
	defaultBatchMax = 100
	defaultDrain    = 25 * time.Second
	maxSpin         = 1_000_000
)

// GroupConfig of a consumer group. The zero value of a field is its default; a
// negative number is an error that names the field.
type GroupConfig struct {
	// Consumers is how many consumers share the partitions; default 1, at most
	// the number of partitions. [Group.Resize] changes it later.
	Consumers int
	// BatchMax is the largest batch in events; default 100. It is an
	// upper bound: without Linger, what is there is delivered at once.
	BatchMax int
	// BatchBytes is the largest batch in bytes, unless a single event is
	// larger; 0 is no limit. It needs the topic's Config.Size. A pull whose
	// Size panics returns a [penstock.PanicError] and takes nothing; in Run such
	// an event counts no bytes ([Stats].SizePanics). Readers are not limited.
	BatchBytes penstock.Bytes
	// Linger is how long a batch waits for more events after its first one was
	// seen, by Run or by a consumer's Pull; 0 delivers what is there. A batch
	// of BatchMin events waits no longer; default is BatchMax. What comes again
	// does not wait, and TryPull and readers never do. [penstock.Batch.Reason]
	// tells why a batch is as large as it is.
	Linger   time.Duration
	BatchMin int
	// AutoCommit commits a batch before the application sees it: at the pull,
	// or before Run calls the handler. Delivery is then at most once: an event
	// that fails is logged and does not come again, so Retry and ParkAfter are
	// not used.
	AutoCommit bool
	// Start says where the group begins: Earliest, the default, or Latest.
	Start Start
	// Spin is how often a consumer with nothing to do looks again before it
	// parks, in Pull and in Run: each look is a few nanoseconds of a core, and an
	// event that comes meanwhile does not wait for the scheduler. 0, the
	// default, pauses for up to about ten microseconds and parks then, and parks
	// at once, most times, when that has been in vain lately or there is one
	// processor; at most 1,000,000.
	Spin int

	// Rate limits the group to so many events per second, retries and what
	// comes again after a pull without commit included; 0 is no limit. Burst is
	// how many may come at once after a pause; default is Rate, rounded up. A
	// batch waits until Rate allows all of its events, and has at most Burst.
	// What waits longer is served first. A group with a Rate has no readers.
	Rate  float64
	Burst int

	// OnUndecodable says what becomes of an event on disk that cannot be decoded.
	// The default hands it to DeadLetter, with its bytes; where there is none, the
	// partition stops at it. Readers return an error.
	OnUndecodable OnUndecodable

	// OnSkip, if set, is called when limits of the topic have moved the group past
	// events (Config.HardRetention): on a goroutine of its own, one call at a time
	// and with no lock held. It should not block: the limits wait for it, and so
	// does the call that opened the group, and with DropOldest a producer. A panic
	// of it, or a runtime.Goexit, is logged. It must not close the topic, which
	// would wait for it.
	OnSkip func(Skip)

	// The rest is for Run.

	// Workers is how many calls of the handler a consumer makes at a time, on as
	// many goroutines; 0 and 1 are one, at most 4,096. See [Group.Run] for the
	// order that is kept.
	Workers int
	// Retry says how often and when a failed event comes again.
	Retry settle.Policy
	// OnFail says what becomes of an event that fails for long: ParkKey, the
	// default, moves it and the later events of its key out of the way; Block
	// keeps the order of the whole partition.
	OnFail OnFail
	// ParkAfter is for ParkKey: an event whose backoff, without its jitter, is
	// longer is parked instead of waiting in its place; default 1 s.
	ParkAfter time.Duration
	// Drain is how long Run goes on with what it has taken after its context
	// has ended; default 25 s.
	Drain time.Duration
}

func (c *GroupConfig) validate(partitions int, sized bool) error {
	if c.Consumers == 0 {
		c.Consumers = 1
	}
	if c.BatchMax == 0 {
		c.BatchMax = defaultBatchMax
	}
	if err := inRange("Consumers", c.Consumers, partitions); err != nil {
		return err
	}
	if err := inRange("BatchMax", c.BatchMax, 1<<30); err != nil {
		return err
	}
	if err := inRange("Spin", c.Spin, maxSpin); err != nil {
		return err
	}
	if err := c.validateRate(); err != nil {
		return err
	}
	if err := inRange("Workers", c.Workers, settle.WindowMax); err != nil {
		return err
	}
	if c.Start > Latest {
		return &penstock.FieldError{Field: "Start", Reason: fmt.Sprintf("%d is neither Earliest nor Latest", uint8(c.Start))}
	}
	if err := c.validateSize(sized); err != nil {
		return err
	}
	if err := c.validateUndecodable(); err != nil {
		return err
	}
	return c.validatePush()
}

// Ways to use a group. The first use decides.
const (
	unused int32 = iota
	pulled
	pushed
	readAhead
)

var useNames = [...]string{"nobody", "pull consumers", "Run", "readers"}

// Group is a consumer group: every group of a topic sees every event, at its
// own pace, and inside a group each partition belongs to one consumer. A group
// is pulled ([Group.Consumer]), pushed ([Group.Run]) or read ahead
// ([Group.Reader]); the first use decides, and another one returns an error
// that matches [penstock.ErrExists]. So does a use that would never deliver
// what an earlier process has parked on disk: any but Run without AutoCommit.
type Group[T any] struct {
	name     string
	topic    *Topic[T]
	config   GroupConfig
	options  groupOptions[T]
	shares   atomic.Pointer[shares[T]]
	resizes  resizes
	use      atomic.Int32
	closed   atomic.Bool
	control  control
	readers  readers[T]
	push     push[T]
	parking  *parking[T] // nil when failed events wait in their place, and nothing was parked before
	left     leftParked
	redriven atomic.Uint64 // events that Redrive has sent back
	skips    skips
	seen     groupSeen
	feeds    feeds
}

// GroupOption is one further thing about a group whose type depends on T.
type GroupOption[T any] func(*groupOptions[T])

type groupOptions[T any] struct {
	deadLetter func(context.Context, ...penstock.Event[T]) error
}

// DeadLetter names where [Group.Run] sends an event that has failed too often,
// for example the ProduceEvents of another topic. The event carries its origin
// and cause. It is called before the event is committed; an error means that
// the event is not settled. Run and pulls also send events there that cannot be
// decoded, with their bytes: see [GroupConfig.OnUndecodable] and [Undecoded].
func DeadLetter[T any](send func(context.Context, ...penstock.Event[T]) error) GroupOption[T] {
	return func(o *groupOptions[T]) { o.deadLetter = send }
}

// Group adds a consumer group. The error matches [penstock.ErrInvalid] and
// names the field when the configuration is wrong, [penstock.ErrExists] while
// a group with that name is open, and [penstock.ErrClosed] after
// Close. On error nothing of the group is left.
func (t *Topic[T]) Group(name string, c GroupConfig, options ...GroupOption[T]) (*Group[T], error) {
	g, err := t.addGroup(name, c, options)
	if err != nil {
		return nil, fmt.Errorf("topic %q: group %q: %w", t.config.Name, name, err)
	}
	g.tellSkips()
	return g, nil
}

func (t *Topic[T]) addGroup(name string, c GroupConfig, options []GroupOption[T]) (*Group[T], error) {
	if strings.TrimSpace(name) == "" {
		return nil, &penstock.FieldError{Field: "name", Reason: "is blank"}
	}
	if err := c.validate(len(t.parts), t.config.Size != nil); err != nil {
		return nil, err
	}
	g := &Group[T]{name: name, topic: t, config: c}
	g.control.init(len(t.parts), &c)
	g.resizes.one = make(chan struct{}, 1)
	for _, o := range options {
		o(&g.options)
	}
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	if t.groups == nil {
		return nil, penstock.ErrClosed
	}
	if _, taken := t.groups[name]; taken {
		return nil, penstock.ErrExists
	}
	if t.disk != nil {
		err := t.disk.forgetRetry(name)
		if err == nil {
			g.left.some, err = t.config.hasRetry(name)
		}
		if err != nil {
			return nil, err
		}
	}
	var cursors []*cursor[T]
	for _, p := range t.parts {
		cur, err := g.attach(p)
		if err != nil {
			g.detach(cursors)
			return nil, err
		}
		cursors = append(cursors, cur)
	}
	if c.parks() || g.left.some {
		g.parking = newParking(g)
	}
	g.noteOpened(cursors)
	if t.disk != nil {
		t.disk.attached(name)
	}
	g.share(cursors, c.Consumers)
	g.look()
	t.groups[name] = g
	if c.Start == Latest { // without another group, the marks move with its coming
		for _, p := range t.parts {
			p.sweep()
		}
		t.freed()
	}
	return g, nil
}

// attach makes the group's cursor in a partition, with a hold.
func (g *Group[T]) attach(p *partition[T]) (*cursor[T], error) {
	if g.topic.disk != nil {
		s, commit, err := g.topic.disk.source(p.index, g.name, g.config.Start)
		if err != nil {
			return nil, err
		}
		hold := p.marks.Add(func(_, _ penstock.Offset) penstock.Offset { return commit })
		cur := newCursor(g, p, hold, s)
		if file, ok := s.(*fileSource[T]); ok {
			cur.completed = file.completed()
		}
		return cur, nil
	}
	hold := p.marks.Add(func(committed, low penstock.Offset) penstock.Offset {
		switch {
		case g.config.Start == Latest:
			return p.log.End()
		case g.topic.budget != nil:
			return committed // what lies below has given its capacity back (BQ-50)
		}
		return low
	})
	return newCursor(g, p, hold, newMemory(p.log)), nil
}

// detach takes cursors of the group out of the partitions. Capacity and memory
// that only this group held are given back (BQ-52).
func (g *Group[T]) detach(cursors []*cursor[T]) {
	for _, c := range cursors {
		c.part.marks.Remove(c.shown())
		c.part.sweep()
	}
	g.topic.freed()
}

// Name returns the group's name.
func (g *Group[T]) Name() string { return g.name }

// Consumer returns consumer i; the same one at every call, unless
// [Group.Resize] has taken it away in between. It panics when i is not in
// [0, Consumers).
func (g *Group[T]) Consumer(i int) *Consumer[T] {
	all := g.shares.Load().consumers
	if i < 0 || i >= len(all) {
		panic(fmt.Sprintf("queue: Consumer(%d) of a group of %d", i, len(all)))
	}
	return all[i]
}

// claim decides how the group is used, or says that it is used otherwise, or
// that it cannot be used like that.
func (g *Group[T]) claim(use int32) error {
	g.left.mu.Lock()
	defer g.left.mu.Unlock()
	if now := g.use.Load(); g.left.some && (now == unused || now == use) && !g.delivers(use) {
		if err := g.refuseParked(); err != nil {
			return err
		}
	}
	if g.use.CompareAndSwap(unused, use) || g.use.Load() == use {
		return nil
	}
	return fmt.Errorf("group %q is used by %s: %w", g.name, useNames[g.use.Load()], penstock.ErrExists)
}

// Close removes the group and frees its name: consumers that wait and every
// later call return [penstock.ErrClosed], and so does Run, after its drain. In
// memory, what the group had not committed no longer counts against the
// capacity, unless it was the last group: a topic without one gives
// nothing back, and keeps for the next group what this one has not committed.
// On disk the position stays, and what the group has not committed counts and
// is kept for it: it goes on there when it is opened again;
// [Topic.DeleteGroup] forgets it. What is parked stays there too; in memory it is gone
// with the group. A batch in hands stays readable until its
// consumer's next call. A second call does nothing.
func (g *Group[T]) Close() error {
	t := g.topic
	err := g.parking.close() // before the name is free: who takes it next opens the retry log
	t.groupsMu.Lock()
	if t.groups[g.name] == g {
		delete(t.groups, g.name)
	}
	t.groupsMu.Unlock()
	if g.shut() {
		cursors := g.shares.Load().cursors // for good: Resize knows only open groups
		if g.use.Load() != unused {
			for _, c := range cursors {
				c.loan.lend()
			}
		}
		if t.disk != nil {
			t.disk.parkGroup(g)
		}
		g.detach(cursors)
	}
	if err != nil {
		return fmt.Errorf("topic %q: group %q: close: %w", t.config.Name, g.name, err)
	}
	return nil
}

// shut ends the consumers and readers, and wakes those that wait. It reports
// whether it was the first to do so.
func (g *Group[T]) shut() bool {
	if g.closed.Swap(true) {
		return false
	}
	for _, c := range g.shares.Load().consumers {
		s := c.share.Load()
		c.halt()
		s.waker.Close()
		g.stopWaking(s)
	}
	g.readers.shut()
	return true
}

func (t *Topic[T]) hasGroup() bool {
	return t.parts[0].marks.Holds() > 0
}
