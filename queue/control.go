package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// control is what holds a group's intake back: pauses and the rate. Owners of
// partitions ask it before they take events; nothing else of them changes, so
// what is in hand is finished and committed as ever.
//
// Invariant: busy is set while anything may hold events back, so a group that
// is neither paused nor limited pays one load. Changes are made one at a time:
// a late sum of an earlier one would clear busy under a pause.
type control struct {
	mu      sync.Mutex // held by whoever changes what stands below
	busy    atomic.Bool
	all     atomic.Bool
	parts   []atomic.Bool // by partition
	paused  atomic.Int32  // of parts
	bucket  *bucket       // nil without a rate
	limited atomic.Int32  // owners that wait for its tokens
}

func (c *control) init(partitions int, g *GroupConfig) {
	c.parts = make([]atomic.Bool, partitions)
	if g.Rate > 0 {
		c.bucket = newBucket(g.Rate, g.Burst)
	}
	c.look()
}

// look sums up what holds events back. The caller holds mu, or is alone.
func (c *control) look() {
	c.busy.Store(c.all.Load() || c.paused.Load() > 0 || c.bucket != nil)
}

// held reports whether a partition is paused.
func (c *control) held(partition int) bool {
	return c.busy.Load() && (c.all.Load() || c.parts[partition].Load())
}

// Pause stops the intake of the group: pulls find nothing and wait, and Run
// hands nothing more to its handler, retries included, until [Group.Resume].
// What is in hand goes on, and so do commits. A pull, a read or a handler call
// that begins at the same moment may still get events. Readers find nothing and
// wait too. A Run whose context ends
// while its group is paused does not wait for retries; they come again. Pause
// does not wait, and may be called at any time, also before Run. A second call
// does nothing; neither survives Close.
func (g *Group[T]) Pause() {
	g.control.pause(true)
	g.recontrol()
}

// Resume ends [Group.Pause]. Partitions paused by [Group.PausePartition] stay
// so. Without a pause it does nothing.
func (g *Group[T]) Resume() {
	g.control.pause(false)
	g.recontrol()
}

// PausePartition is [Group.Pause] for one partition; the others go on. The
// error matches [penstock.ErrInvalid] when there is no such partition.
func (g *Group[T]) PausePartition(partition int) error { return g.setPaused(partition, true) }

// ResumePartition ends [Group.PausePartition]. The group's own pause stays.
func (g *Group[T]) ResumePartition(partition int) error { return g.setPaused(partition, false) }

func (g *Group[T]) setPaused(partition int, paused bool) error {
	if err := g.checkPartition(partition); err != nil {
		return err
	}
	g.control.pausePartition(partition, paused)
	g.recontrol()
	return nil
}

func (c *control) pause(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.Store(paused)
	c.look()
}

func (c *control) pausePartition(partition int, paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parts[partition].Swap(paused) != paused {
		if paused {
			c.paused.Add(1)
		} else {
			c.paused.Add(-1)
		}
	}
	c.look()
}

func (g *Group[T]) checkPartition(partition int) error {
	return g.named(inPartitions(partition, len(g.topic.parts)))
}

func inPartitions(partition, partitions int) error {
	if partition < 0 || partition >= partitions {
		return &penstock.FieldError{Field: "partition", Reason: fmt.Sprintf("%d is outside [0, %d)", partition, partitions)}
	}
	return nil
}

// recontrol makes the owners look again.
func (g *Group[T]) recontrol() {
	for _, c := range g.shares.Load().consumers {
		c.halt()
		c.share.Load().waker.Ring()
	}
	g.readers.ring()
}

// pausedPartitions returns those of PausePartition.
func (c *control) pausedPartitions() (all []int) {
	for i := range c.parts {
		if c.parts[i].Load() {
			all = append(all, i)
		}
	}
	return all
}

// waitHeld waits where some partitions are held back: only what the others have
// ends the wait, or the moment when the rate allows more, or a change.
func (c *Consumer[T]) waitHeld(ctx context.Context) error {
	c.collect()
	var alarm <-chan time.Time
	if c.ticket.limited && !c.group.control.all.Load() {
		timer := time.NewTimer(time.Until(c.ticket.at))
		defer timer.Stop()
		alarm = timer.C
	} else {
		for i, cur := range c.cursors {
			if c.isPending(i) && !c.group.control.held(cur.part.index) {
				return nil
			}
		}
	}
	return c.waker.Wait(ctx, alarm)
}

// allow returns how many of the next max events of a cursor the rate allows
// now, and takes their tokens.
func (c *Consumer[T]) allow(cur *cursor[T], max int) int {
	control := &c.group.control
	n := min(int(cur.limit-cur.read), max)
	if n > 0 {
		n = c.ticket.allow(control, n)
	}
	if n > 0 {
		c.ticket.paid(control, n)
	}
	return n
}

// held reports whether the lane's partition is paused.
func (l *lane[T]) held() bool { return l.group.control.held(l.cur.part.index) }

// allow returns how many of the next n events the rate allows now. The caller
// says with l.ticket.paid how many it took.
func (l *lane[T]) allow(n int, again bool) int {
	if l.group.control.bucket == nil {
		return n
	}
	if again { // what is reserved for more may be lost
		n = min(n, max(1, l.machine.Unsettled()-l.machine.InHand()))
	}
	return l.ticket.allow(&l.group.control, n)
}

// unlessLimited gives a reservation back that the batch that was looked for
// does not wait for.
func (l *lane[T]) unlessLimited() {
	if l.ticket.n > 0 && !l.ticket.limited {
		l.ticket.paid(&l.group.control, 0)
	}
}

// allowParked reports whether the rate allows a parked event now. The caller
// says with parkTaken whether there was one.
func (l *lane[T]) allowParked() bool {
	if l.group.control.bucket == nil {
		return true
	}
	l.parkTicket.wait(&l.group.control, false)
	if due, ok := l.park.due(false); !ok || time.Now().Before(due) {
		l.parkTaken(false)
		return true
	}
	return l.parkTicket.allow(&l.group.control, 1) > 0
}

func (l *lane[T]) parkTaken(yes bool) {
	if l.parkTicket.n == 0 {
		return
	}
	n := 0
	if yes {
		n = 1
	}
	l.parkTicket.paid(&l.group.control, n)
}
