package segfile

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// Room is what a partition has for frames that wait for its committer:
// MaxPending bytes, or one frame however large. A frame takes its room before
// it is queued and gives it back when the committer takes it, or when it is
// released without an append. A request over several partitions reserves its
// room in all of them before it hands anything over, so that its context can
// end every wait: once a part is on its way, nothing waits for room.
//
// Nobody waits in a circle when everybody reserves in the order of the
// partitions' numbers.

// Reserve takes room for the frame, so that its Append does not wait for any.
// It blocks while there is none, until ctx ends. No record may be added to the
// frame afterwards; [Partition.Append] uses the room, and [Frame.Release] gives
// it back. Whoever reserves in several partitions does so in the order of their
// numbers. Errors are those of Append, and the frame is still the caller's.
func (p *Partition) Reserve(ctx context.Context, f *Frame) error {
	err := p.Check(f)
	if err == nil {
		err = penstock.ContextError(ctx)
	}
	if err == nil {
		err = p.reserve(ctx, f)
	}
	if err != nil {
		return fmt.Errorf("append partition %d: %w", p.id, err)
	}
	return nil
}

func (p *Partition) reserve(ctx context.Context, f *Frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reserveLocked(ctx, f)
}

// reserveLocked takes room unless the frame has it already. It runs with mu
// held and gives it up while it blocks.
func (p *Partition) reserveLocked(ctx context.Context, f *Frame) error {
	if f.roomIn == p {
		return p.refusalLocked()
	}
	size := int64(f.Size())
	if err := p.waitLocked(ctx, size); err != nil {
		return err
	}
	if p.log.disk.limit > 0 {
		if err := p.claimLocked(); err != nil {
			return err
		}
	}
	p.pending += size
	f.roomIn, f.room = p, size
	return nil
}

// waitLocked returns when size more bytes may wait. It runs with mu held and
// gives it up while it blocks.
func (p *Partition) waitLocked(ctx context.Context, size int64) error {
	for {
		if err := p.refusalLocked(); err != nil {
			return err
		}
		if p.pending == 0 || p.pending+size <= int64(p.cfg.MaxPending) {
			return nil
		}
		if p.freed == nil {
			p.freed = make(chan struct{})
		}
		freed := p.freed
		p.mu.Unlock()
		select {
		case <-freed:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return penstock.ContextError(ctx)
		}
	}
}

// refusalLocked returns why the partition takes no frames, nil when it does.
func (p *Partition) refusalLocked() error {
	switch {
	case p.closing:
		return penstock.ErrClosed
	case p.fault != nil:
		return p.fault
	}
	return p.broken // may be nil
}

// giveRoomLocked gives room back and wakes those that wait for some.
func (p *Partition) giveRoomLocked(size int64) {
	p.pending -= size
	p.wakeRoomLocked()
}

func (p *Partition) wakeRoomLocked() {
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
}

// leaveRoom gives the room of a frame back that is not queued.
func (f *Frame) leaveRoom() {
	p := f.roomIn
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveRoomLocked(f.room)
	f.roomIn, f.room = nil, 0
}
