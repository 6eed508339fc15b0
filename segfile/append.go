package segfile

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
)

// maxGroupBytes bounds what one group commit writes with one call.
const maxGroupBytes = 4 << 20

// group is the frames that are written and synced together.
//
// Invariants: frames is not touched after the committer took the group; firsts,
// failed and err are written before done is closed and not afterwards. The
// frames [0, failed) are appended, the others failed with err.
type group struct {
	frames []*Frame
	bytes  int64
	firsts []penstock.Offset
	failed int
	err    error
	done   chan struct{}

	// What frames and firsts begin in.
	someFrames [4]*Frame
	someFirsts [4]penstock.Offset
}

// Receipt is an append that may still be under way. The zero Receipt belongs
// to nothing. It is safe for concurrent use.
type Receipt struct {
	g     *group
	i     int
	first penstock.Offset
	err   error
	n     int
	level penstock.Durability

	repeats bool
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done returns a channel that is closed when Wait would not block.
func (r Receipt) Done() <-chan struct{} {
	if r.g == nil {
		return closedChannel
	}
	return r.g.done
}

// Level returns the level that the append has reached when Wait returns nil.
func (r Receipt) Level() penstock.Durability { return r.level }

// Len returns the number of records of the append.
func (r Receipt) Len() int { return r.n }

// Repeats reports whether the append repeats one that had been made before
// ([Frame.SetTag]): nothing was appended, and Wait tells where that one is.
func (r Receipt) Repeats() bool { return r.repeats }

// Wait blocks until the append reached its level or failed, or ctx ends; the
// append goes on in the last case. It returns the offset of the first record.
// Errors: [penstock.ErrDiskFull], nothing was kept and the partition works
// again when there is room; [penstock.ErrUnknownOutcome], a write or sync
// failed and the records may or may not be found when the topic is opened
// again; otherwise why the partition takes no appends.
func (r Receipt) Wait(ctx context.Context) (penstock.Offset, error) {
	if r.g == nil {
		return r.first, r.err
	}
	select {
	case <-r.g.done:
	default:
		select {
		case <-r.g.done:
		case <-ctx.Done():
			return 0, penstock.ContextError(ctx)
		}
	}
	if r.i >= r.g.failed {
		return 0, r.g.err
	}
	return r.g.firsts[r.i], nil
}

// Check returns an error that matches [penstock.ErrTooLarge] when the frame is
// larger than the configuration allows. Nothing is moved: check all frames of
// a batch before the first is appended.
func (p *Partition) Check(f *Frame) error {
	if len(f.ends) == 0 {
		return &penstock.FieldError{Field: "frame", Reason: "has no records"}
	}
	if penstock.Bytes(f.Size()) > p.cfg.MaxFrame {
		return fmt.Errorf("%d records in a frame of %d bytes, at most %d: %w", len(f.ends), f.Size(), int64(p.cfg.MaxFrame), penstock.ErrTooLarge)
	}
	return nil
}

// Append hands the frame to the partition: all of its records become readable
// or none. It takes the frame over in every case. Frames appended one after
// the other keep that order. Append blocks only while more than MaxPending
// bytes wait, until there is room or ctx ends, and not for a frame whose room
// was reserved ([Partition.Reserve]); at level written it writes the
// frame itself when nobody else is writing. An error means that nothing was
// appended: it matches that of ctx, [penstock.ErrTooLarge], [penstock.ErrClosed],
// or says why the partition takes no appends; see [Receipt.Wait] for the rest.
func (p *Partition) Append(ctx context.Context, f *Frame) (Receipt, error) {
	err := p.Check(f)
	if err == nil && ctx.Err() != nil {
		err = penstock.ContextError(ctx)
	}
	if err != nil {
		f.Release()
		return Receipt{}, fmt.Errorf("append partition %d: %w", p.id, err)
	}
	r := Receipt{n: f.Len(), level: p.cfg.Durability}
	p.mu.Lock()
	if err := p.reserveLocked(ctx, f); err != nil {
		p.mu.Unlock()
		f.Release()
		return Receipt{}, fmt.Errorf("append partition %d: %w", p.id, err)
	}
	if f.numbered() {
		before, repeats, err := p.admitTagLocked(ctx, f)
		if err != nil || repeats {
			p.mu.Unlock()
			f.Release()
			if err != nil {
				err = fmt.Errorf("append partition %d: %w", p.id, err)
			}
			return before, err
		}
	}
	if !p.busy && p.cfg.Durability == penstock.Written {
		p.busy = true
		size := f.room
		p.roomEndsLocked(size, false) // it does not wait
		f.roomIn, f.room = nil, 0
		p.mu.Unlock()
		r.first, r.err = p.commitOne(f)
		p.handOn(size)
		return r, nil
	}
	r.g, r.i = p.collectLocked(f)
	start := !p.busy
	p.busy = true
	p.mu.Unlock()
	if start {
		// The committer: ends by itself when nothing is left to write; Close waits for it.
		go p.work()
	}
	return r, nil
}

// collectLocked adds the frame, and the room that it has, to the group that is
// being collected.
func (p *Partition) collectLocked(f *Frame) (*group, int) {
	var g *group
	size := f.room
	f.roomIn, f.room = nil, 0
	if n := len(p.queue); n > 0 && p.queue[n-1].bytes+size <= maxGroupBytes {
		g = p.queue[n-1]
	} else {
		g = &group{done: make(chan struct{})}
		g.frames = g.someFrames[:0]
		p.queue = append(p.queue, g)
	}
	g.frames = append(g.frames, f)
	g.bytes += size
	return g, len(g.frames) - 1
}

// handOn gives the baton to a committer when there is work, else back; and the
// room of a frame that was written without one.
func (p *Partition) handOn(room int64) {
	p.mu.Lock()
	if room > 0 {
		p.roomEndsLocked(room, true)
	}
	if len(p.queue) == 0 && len(p.tasks) == 0 {
		p.busy = false
		p.armLocked()
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	// The committer: ends by itself when nothing is left to write; Close waits for it.
	go p.work()
}
