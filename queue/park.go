package queue

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
	"github.com/penstock/penstock/settle"
)

// parking is what a group has parked, over all partitions (ADR 0029).
type parking[T any] struct {
	budget *demand.Budget // bounds the retry log of the group
	lanes  []*parkedLane[T]

	short     atomic.Int32  // partitions that wait for room in the retry log
	discarded atomic.Uint64 // events given up by DiscardParked
}

// parkedLane is what a group has parked in one partition. It outlives runs, and
// belongs to the owner of the partition in the group but for what its comments
// say is read by others.
//
// The owner calls look before the machine decides, and record after it has
// decided; collect when it has been woken; next to get something to deliver.
// While nothing is parked all of them are a look at a flag.
type parkedLane[T any] struct {
	group   *Group[T]
	part    *partition[T]
	log     retryLog[T]
	machine *settle.Machine // of the last run; nil before the first
	busy    bool            // something is parked, or an entry is not confirmed
	more    bool            // the last look at the partition parked all that it saw
	view    view[T]
	err     error  // of the log, where the machine could not be told
	seq     uint64 // confirmed to the machine

	shown shownParking           // read by others, and holds their orders
	owner atomic.Pointer[func()] // wakes the owner; called by others
	waits atomic.Bool            // an event waits for room in the retry log

	ordering sync.Mutex // held while an order is given or orders are taken up, also during I/O
	stored   *orderFile // of the orders; nil in memory
	known    bool       // what stored said at first is known
	closed   bool       // files are another one's
}

func newParking[T any](g *Group[T]) *parking[T] {
	budget, err := demand.NewBudget(demand.BudgetConfig{Events: settle.ParkedEventsMax, Bytes: settle.ParkedBytesMax})
	if err != nil {
		panic(fmt.Sprintf("queue: budget of the retry log: %v", err)) // the bounds are constants
	}
	p := &parking[T]{budget: budget}
	for _, part := range g.topic.parts {
		k := &parkedLane[T]{group: g, part: part}
		k.shown.events = make(map[penstock.Offset]shownEvent)
		if g.topic.disk != nil {
			k.log = newFileRetry(g, part.index, k.wake)
			k.stored = newOrderFile(&g.topic.config, g.name, part.index)
		} else {
			k.log = newMemoryRetry(g.topic)
		}
		p.lanes = append(p.lanes, k)
	}
	return p
}

// lane returns what is parked in a partition, nil when nothing ever is.
func (p *parking[T]) lane(partition int) *parkedLane[T] {
	if p == nil || p.lanes[partition].group.config.AutoCommit {
		return nil
	}
	return p.lanes[partition]
}

// close gives the files of the retry logs back.
func (p *parking[T]) close() error {
	if p == nil {
		return nil
	}
	var first error
	for _, k := range p.lanes {
		k.ordering.Lock()
		k.closed = true
		k.ordering.Unlock()
		first = cmp.Or(first, k.log.close())
	}
	return first
}

// wake tells the owner to look again. Any goroutine may call it.
func (k *parkedLane[T]) wake() {
	if f := k.owner.Load(); f != nil {
		(*f)()
	}
}

// begin returns the parking of a new machine, which continues from what the
// retry log holds. wake tells the owner to look at this partition again.
func (k *parkedLane[T]) begin(wake func()) (*settle.Parking, error) {
	k.owner.Store(&wake)
	if k.machine != nil {
		k.machine.LeaveBudget()
		k.machine = nil
	}
	k.err, k.seq, k.view = nil, 0, view[T]{}
	k.noRoom(false)
	entries, err := k.log.load()
	if err != nil {
		return nil, err
	}
	entries = k.restored(entries)
	k.busy = len(entries) > 0
	if err := k.standing(entries); err != nil {
		return nil, err
	}
	log := make([]settle.Entry, len(entries))
	for i := range entries {
		log[i] = entries[i].Entry
	}
	after := k.group.config.ParkAfter
	if !k.group.config.parks() {
		after = -1 // nothing new is parked but followers of what is
	}
	return &settle.Parking{
		After: after, Budget: k.group.parking.budget, Log: log, Key: k.keyAt, Size: k.sizeAt,
	}, nil
}

// keyAt returns the key of an event in view, for the machine.
func (k *parkedLane[T]) keyAt(o penstock.Offset) string {
	if bad := k.view.of(o).bad; bad != nil {
		return parkedKey(bad.Meta.Key)
	}
	value, meta, ok := k.view.at(o)
	if !ok {
		k.err = cmp.Or(k.err, fmt.Errorf("offset %d is not in view", o))
		return ""
	}
	return parkedKey(k.group.topic.keyOf(*value, meta))
}

// sizeAt returns the size of an event that is about to be parked, for the
// machine.
func (k *parkedLane[T]) sizeAt(o penstock.Offset) penstock.Bytes {
	size, err := k.log.size(o, &k.view)
	k.err = cmp.Or(k.err, err)
	return size
}

// look shows the machine, for its next decision, the events that it may ask
// about.
func (k *parkedLane[T]) look(v view[T]) { k.view = v }

// record hands what the machine has decided to the retry log. It returns
// whether the commit may have moved.
func (k *parkedLane[T]) record() (bool, error) {
	entries := k.machine.Unlogged()
	if len(entries) == 0 && k.err == nil {
		k.view = view[T]{}
		return false, nil
	}
	k.busy = true
	if k.err == nil {
		k.shown.note(entries, time.Now())
		k.err = k.log.append(entries, &k.view)
	}
	k.view = view[T]{}
	if k.err != nil {
		return false, k.err
	}
	return k.collect()
}

// collect tells the machine what the retry log holds by now, and appends what
// could not be appended before. It returns whether the commit may have moved.
func (k *parkedLane[T]) collect() (bool, error) {
	moved, err := k.confirm()
	if err != nil {
		return moved, err
	}
	if entries := k.machine.Unlogged(); len(entries) > 0 {
		return moved, k.log.append(entries, &k.view)
	}
	parked := k.machine.Parked()
	if k.log.grown(parked.Events) {
		k.log.drain()
		err = k.log.rewrite(k.machine.AppendParked(nil))
	}
	if parked == (settle.Parked{}) {
		k.busy = false
		k.log.rest()
	}
	return moved, err
}

func (k *parkedLane[T]) confirm() (bool, error) {
	seq, err := k.log.logged()
	if err != nil || seq == k.seq {
		return false, err
	}
	k.seq = seq
	k.machine.Logged(seq)
	k.fulfilled()
	k.group.parking.madeRoom()
	return true, nil
}

// next makes j the call for a parked event to deliver or to hand over now, with
// a delivery of its own, and reports false when there is none.
func (k *parkedLane[T]) next(now time.Time, j *job[T]) (bool, error) {
	k.obey()
	span, ok := k.machine.NextParked(now)
	if !ok {
		return false, nil
	}
	e, err := k.log.read(span.From)
	if err != nil {
		return false, err
	}
	d := &penstock.Delivery{
		Topic: k.group.topic.config.Name, Partition: k.part.index, First: span.From, Epoch: e.epoch, Attempt: span.Attempt,
	}
	if e.unixNano != 0 {
		d.Times = []penstock.TimeRun{{N: 1, UnixNano: e.unixNano}}
	}
	if !e.meta.IsBare() {
		d.Metas = []penstock.Meta{e.meta}
	}
	d.Reason = penstock.FlushRetry
	j.span, j.values, j.delivery, j.bad = span, []T{e.value}, d, e.bad
	return true, nil
}

// due returns when there is something to do: a parked event to deliver, unless
// the run is stopping, or a failed append to repeat.
func (k *parkedLane[T]) due(stopping bool) (due time.Time, ok bool) {
	if !stopping {
		due, ok = k.machine.ParkedDue()
	}
	if at := k.log.retryAt(); !at.IsZero() && len(k.machine.Unlogged()) > 0 && (!ok || at.Before(due)) {
		return at, true
	}
	return due, ok
}

// noRoom notes that an event of the partition waits for room in the retry log,
// or does not. It returns true when that is new: the caller then looks again,
// because room may have been made before it was noted.
func (k *parkedLane[T]) noRoom(waits bool) (isNew bool) {
	if k.waits.Swap(waits) == waits {
		return false
	}
	if waits {
		k.group.parking.short.Add(1)
	} else {
		k.group.parking.short.Add(-1)
	}
	return waits
}

// madeRoom wakes the partitions that wait for room in the retry log. It costs
// one load while none does.
func (p *parking[T]) madeRoom() {
	if p.short.Load() == 0 {
		return
	}
	for _, k := range p.lanes {
		if k.waits.CompareAndSwap(true, false) {
			p.short.Add(-1)
			k.wake()
		}
	}
}

// forsake empties the retry log of a partition that was sought. A seek is
// refused while anything is parked, so what is there was parked after it had
// looked, and belongs to what the seek abandons. The owner calls it.
func (k *parkedLane[T]) forsake() error {
	if !k.busy {
		return nil
	}
	if err := k.end(); err != nil {
		return err
	}
	entries, err := k.log.load()
	if err != nil {
		return err
	}
	gone := make([]settle.Entry, len(entries))
	for i := range entries {
		gone[i] = settle.Entry{Seq: uint64(i + 1), Offset: entries[i].Offset, Key: entries[i].Key, Gone: true}
	}
	if err := k.log.append(gone, nil); err != nil { // on a full disk they stay, and come again
		return err
	}
	k.log.drain()
	_, err = k.log.logged()
	return err
}

// end waits for the retry log at the end of a run.
func (k *parkedLane[T]) end() error {
	if !k.busy {
		return nil
	}
	k.log.drain()
	_, err := k.confirm()
	k.log.rest()
	return err
}
