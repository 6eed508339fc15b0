package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
	"github.com/penstock/penstock/seglog"
)

// fileEngine is the storage of a topic on disk: a [segfile.Log], the codec
// between it and the values, and the holds of groups that are known on disk
// and not open (BQ-120).
//
// Invariant: a group with a stored position has a hold in every partition,
// its cursor's while it is open and a parked one otherwise. parked is guarded
// by the topic's groupsMu.
type fileEngine[T any] struct {
	topic    *Topic[T]
	codec    penstock.Codec[T]
	log      *segfile.Log
	parked   map[string][]*seglog.Hold
	opening  []*segfile.Cursor // of the group that is being added; guarded by groupsMu
	requests sync.Pool         // of *request
	full     atomic.Bool       // an append has failed on a full disk since the last reclaim
	keeper   keeper[T]
	line     *diskLine     // nil without Config.CapacityDisk
	dropping chan struct{} // has a token while a producer makes room, see drop_oldest.go

	producersMu sync.Mutex
	producers   map[uint32]*Producer[T] // by number
}

func openFileEngine[T any](ctx context.Context, t *Topic[T]) (*fileEngine[T], error) {
	c := &t.config
	router := roundRobinID
	if c.Router != nil {
		router = c.Router.ID()
	}
	log, err := segfile.OpenContext(ctx, segfile.Config{
		FS: c.fs, Dir: c.Dir, Topic: c.Name, Partitions: c.Partitions, Router: router, Codec: c.Codec.ID(),
		SegmentBytes: c.SegmentBytes, SegmentEvents: c.SegmentEvents, Durability: c.Durability, SyncEvery: c.SyncEvery, WritePath: c.WritePath,
		CapacityDisk: c.CapacityDisk, PassOver: c.HardRetention, StampPositions: c.GroupTTL > 0, Logger: c.Logger,
	})
	if err != nil {
		return nil, nameField(c.Name, err)
	}
	c.fs = log.Files()
	e := &fileEngine[T]{topic: t, codec: c.Codec, log: log, parked: make(map[string][]*seglog.Hold), dropping: make(chan struct{}, 1)}
	e.requests.New = func() any { return new(request) }
	if c.CapacityDisk > 0 {
		e.line = newDiskLine()
	}
	for i, p := range t.parts {
		part := log.Partition(i)
		p.file = &filePartition[T]{topic: t, log: part}
		part.OnReadable(p.notify)
		p.retain(&t.config)
		e.parkStored(p, part)
		if p.marks.Holds() > 0 { // a crash may have come between commit and sweep (BQ-126)
			p.sweep()
		}
	}
	if err := e.adopt(ctx); err != nil {
		return nil, fmt.Errorf("open topic %q: %w", c.Name, errors.Join(err, log.Close()))
	}
	return e, nil
}

// parkStored makes holds for the groups with a stored position. The lowest
// comes first: marks never go back.
func (e *fileEngine[T]) parkStored(p *partition[T], part *segfile.Partition) {
	groups := part.Groups()
	slices.SortStableFunc(groups, func(a, b segfile.GroupInfo) int { return cmp.Compare(a.Committed, b.Committed) })
	for _, g := range groups {
		e.park(p, g.Name, g.Committed)
	}
}

// park holds a partition for a group that nobody has open.
func (e *fileEngine[T]) park(p *partition[T], group string, at penstock.Offset) {
	hold := p.marks.Add(func(_, _ penstock.Offset) penstock.Offset { return at })
	if e.parked[group] == nil {
		e.parked[group] = make([]*seglog.Hold, len(e.topic.parts))
	}
	e.parked[group][p.index] = hold
}

// unpark takes the parked holds of a group away.
func (e *fileEngine[T]) unpark(group string, partition int) {
	holds := e.parked[group]
	if holds == nil || holds[partition] == nil {
		return
	}
	e.topic.parts[partition].marks.Remove(holds[partition])
	holds[partition] = nil
}

// parkGroup keeps what a group that is being closed has not committed: its
// position stays on disk, and it goes on there when it is opened again.
func (e *fileEngine[T]) parkGroup(g *Group[T]) {
	t := e.topic
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	if t.groups == nil || t.groups[g.name] != nil || !slices.Contains(e.log.Groups(), g.name) {
		return // the topic is closed, or the group is open again or deleted
	}
	for _, c := range g.shares.Load().cursors {
		e.touch(c)
		e.unpark(g.name, c.part.index)
		e.park(c.part, g.name, c.shown().Committed())
	}
}

// adopt takes the capacity of what the topic holds from before: the events
// that some known group has not committed, all that are kept without a group.
// When that is more than the capacity, the first commits give nothing back.
func (e *fileEngine[T]) adopt(ctx context.Context) error {
	t := e.topic
	if t.budget == nil {
		return nil
	}
	room, total, bytes := t.config.Capacity, 0, penstock.Bytes(0)
	if room == 0 {
		room = maxCapacity // in bytes only
	}
	for _, p := range t.parts {
		from := p.file.earliest()
		if p.marks.Holds() > 0 {
			from = max(from, p.marks.Committed())
		}
		n := p.file.end() - min(from, p.file.end()) // more than an int holds, perhaps
		taken := min(n, penstock.Offset(room))
		room, total = room-int(taken), total+int(taken)
		p.returned = from + n - taken
		if p.ledger != nil {
			bytes += e.adoptBytes(ctx, p, t.config.CapacityBytes-bytes)
		}
	}
	t.budget.TryAcquire(total, bytes)
	return penstock.ContextError(ctx)
}

// DeleteGroup forgets a group of a topic on disk that is not open: its stored
// position goes and so does what is parked, and what only it held is given back. The
// error matches [penstock.ErrExists] while the group is open, and
// [penstock.ErrNotFound] when no such group is known; in memory a group that
// is closed is not known any more.
func (t *Topic[T]) DeleteGroup(name string) error {
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	switch {
	case t.groups == nil:
		return penstock.ErrClosed
	case t.groups[name] != nil:
		return fmt.Errorf("topic %q: group %q is open: %w", t.config.Name, name, penstock.ErrExists)
	case t.disk == nil:
		return fmt.Errorf("topic %q: group %q: %w", t.config.Name, name, penstock.ErrNotFound)
	}
	if err := t.disk.log.DeleteGroup(name); err != nil {
		return fmt.Errorf("topic %q: %w", t.config.Name, err)
	}
	retry := t.disk.removeRetry(name)
	for i, p := range t.parts {
		t.disk.unpark(name, i)
		p.sweep()
	}
	delete(t.disk.parked, name)
	t.freed()
	return retry
}

// source returns the group's source in a partition and its commit. Positions
// of all partitions are made durable at the first call for a group, which is
// for partition 0 (BQ-114). It runs with groupsMu held.
func (e *fileEngine[T]) source(partition int, group string, start Start) (source[T], penstock.Offset, error) {
	if partition == 0 {
		cursors, err := e.log.CursorsAt(group, func(p *segfile.Partition) penstock.Offset { return e.begin(p.ID(), start) })
		if err != nil {
			return nil, 0, err
		}
		e.opening = cursors
	}
	c := e.opening[partition]
	s := &fileSource[T]{engine: e, part: e.log.Partition(partition), cursor: c}
	s.passed = e.passOpened(c, group)
	s.era = c.Era()
	return s, max(c.Committed(), s.passed.To), nil
}

// begin returns where a new group begins in a partition: on a bounded topic
// behind what has given its capacity back (BQ-50), else at the first event
// that is kept for someone.
func (e *fileEngine[T]) begin(partition int, start Start) penstock.Offset {
	p := e.topic.parts[partition]
	switch {
	case start == Latest:
		return p.file.end()
	case e.topic.budget != nil:
		return max(p.file.earliest(), p.marks.Committed())
	}
	return max(p.file.earliest(), p.marks.Low())
}

// attached takes the parked holds away when the group's own stand.
func (e *fileEngine[T]) attached(group string) {
	for i := range e.topic.parts {
		e.unpark(group, i)
	}
	delete(e.parked, group)
	e.opening = nil
}

// failed notes why an append that nobody may wait for did not succeed.
func (e *fileEngine[T]) failed(err error) {
	if errors.Is(err, penstock.ErrDiskFull) {
		e.full.Store(true)
	}
}

// appendOnce is tryAppend that gives back what is consumed before it says that the
// disk is full: a sweep is due only now and then while there is room (QC-66).
func (e *fileEngine[T]) appendOnce(ctx context.Context, values []T, metas []penstock.Meta, m *measured, pl *plan, receipt *Receipt) error {
	if e.full.Load() {
		e.reclaim()
	}
	err := e.tryAppend(ctx, values, metas, m, pl, receipt)
	if err == nil || !errors.Is(err, penstock.ErrDiskFull) {
		return err
	}
	e.full.Store(true)
	if _, kept := errors.AsType[*keptCapacity](err); kept {
		return err
	}
	e.reclaim()
	if err = e.tryAppend(ctx, values, metas, m, pl, receipt); err != nil && errors.Is(err, penstock.ErrDiskFull) {
		e.full.Store(true)
	}
	return err
}

// reclaim deletes what is consumed in every partition: room that one needs
// another may have.
func (e *fileEngine[T]) reclaim() {
	e.full.Store(false)
	for _, p := range e.topic.parts {
		p.sweep()
	}
}

// tryAppend encodes all events, then hands each partition its frame. Nothing is
// appended when one cannot be encoded, is too large, or goes to a partition
// that takes no appends. It blocks while more than 16 MiB of frames wait in one
// of the partitions (segfile.Config.MaxPending), which ends with ctx, since
// nothing is on its way then, and without a receipt until the level is reached,
// which does not (BQ-20).
func (e *fileEngine[T]) tryAppend(ctx context.Context, values []T, metas []penstock.Meta, m *measured, pl *plan, receipt *Receipt) error {
	r := e.requests.Get().(*request)
	defer func() {
		r.reset()
		e.requests.Put(r)
	}()
	if err := e.encode(r, values, metas, m, pl); err != nil {
		r.drop()
		return err
	}
	for i := range r.parts { // of the topic, so any partition can say it
		if err := e.log.Partition(0).Check(r.parts[i].frame); err != nil {
			r.drop()
			return err
		}
	}
	e.place(r, len(values), m, pl)
	for i := range r.parts {
		if err := e.log.Partition(r.parts[i].index).Fault(); err != nil {
			r.drop()
			return err
		}
	}
	if err := e.reserve(ctx, r); err != nil {
		r.drop()
		return err
	}
	if receipt != nil {
		return e.appendAsync(ctx, r, receipt)
	}
	return e.appendSync(ctx, r)
}

// reserve waits for room in every partition before the first frame is handed
// over: afterwards ctx could not end the wait for the next without tearing the
// request. A single frame waits when it is handed over. The parts are in the
// order of their partitions, so requests do not wait for each other in a
// circle.
func (e *fileEngine[T]) reserve(ctx context.Context, r *request) error {
	if len(r.parts) < 2 {
		return nil
	}
	for i := range r.parts {
		p := &r.parts[i]
		if err := e.log.Partition(p.index).Reserve(ctx, p.frame); err != nil {
			return err
		}
	}
	return nil
}

// handOver gives part i its partition. ctx can refuse the first part only;
// none of several waits for room, which is reserved.
func (e *fileEngine[T]) handOver(ctx context.Context, i int, p *part) {
	if i > 0 {
		ctx = context.WithoutCancel(ctx)
	}
	p.receipt, p.err = e.log.Partition(p.index).Append(ctx, p.frame)
	p.frame = nil
}

func (e *fileEngine[T]) appendSync(ctx context.Context, r *request) error {
	for i := range r.parts {
		e.handOver(ctx, i, &r.parts[i])
		if r.parts[0].err != nil {
			r.drop()
			return r.parts[0].err
		}
	}
	var first error
	kept, bytes := 0, penstock.Bytes(0)
	for i := range r.parts {
		p := &r.parts[i]
		if p.err == nil {
			_, p.err = p.receipt.Wait(context.Background())
		}
		if p.err == nil {
			kept, bytes = kept+p.count, bytes+p.bytes
		} else if first == nil {
			first = p.err
		}
	}
	if first != nil && kept > 0 {
		return &keptCapacity{n: kept, bytes: bytes, err: first}
	}
	return first
}

// appendAsync lets the receipt wait. What fails later gives its capacity back
// by itself.
func (e *fileEngine[T]) appendAsync(ctx context.Context, r *request, receipt *Receipt) error {
	a := &asyncAppend{receipt: receipt, before: receipt.wait, parts: slices.Clone(r.parts)}
	kept, bytes := 0, penstock.Bytes(0)
	var first error
	for i := range a.parts {
		p := &a.parts[i]
		if budget := e.topic.budget; budget != nil {
			n, bytes := p.count, p.bytes
			p.frame.OnFailure(func(err error) {
				e.failed(err)
				budget.Release(n, bytes)
			})
		} else {
			p.frame.OnFailure(e.failed)
		}
		e.handOver(ctx, i, p)
		if a.parts[0].err != nil {
			r.parts = append(r.parts[:0], a.parts...)
			r.drop()
			return a.parts[0].err
		}
		if p.err == nil {
			kept, bytes = kept+p.count, bytes+p.bytes
		} else if first == nil {
			first = p.err
		}
	}
	r.parts = r.parts[:0]
	if first != nil && kept > 0 {
		return &keptCapacity{n: kept, bytes: bytes, err: first}
	}
	if first == nil {
		receipt.wait = a.wait
	}
	return first
}
