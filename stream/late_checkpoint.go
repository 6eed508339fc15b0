package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// errUnloaded: whether a place can be had is not known before the checkpoint is.
var errUnloaded = errors.New("the checkpoint could not be loaded; it is tried again")

// begunAt is how far the runs before have come, as a checkpointer has said.
type begunAt struct {
	pos   penstock.Token
	ok    bool          // there is one
	asked bool          // the receiver's Init has succeeded
	took  time.Duration // Load did
}

// unloaded is the state of a run whose checkpoint could not be loaded, so that
// nothing is known of what lies before the first container read.
type unloaded struct {
	is    bool
	from  time.Time // Load is not called again before
	marks time.Time // nor Update: it would take the place of what Load is to return
}

// markHeld bounds how long no checkpoint is stored while the one of the runs before
// is not known. The checkpointers of this package store one as rarely.
const markHeld = time.Minute

// lateShare bounds what a Load that hangs takes of the receiver's time: one part of
// so many.
const lateShare = 10

// load asks the checkpointer, on a worker.
func (r *run) load(ctx context.Context) (b begunAt, err error) {
	b.asked = true
	began := time.Now()
	b.pos, b.ok, err = r.marks.Load(ctx)
	if b.took = time.Since(began); err != nil {
		return begunAt{asked: true, took: b.took}, fmt.Errorf("load checkpoint: %w", err)
	}
	return b, nil
}

// notBegun is told that the checkpoint of the runs before is not known.
func (r *run) notBegun(b begunAt) {
	now := time.Now()
	if !r.unloaded.is {
		r.unloaded.is, r.unloaded.marks = true, now.Add(markHeld)
	}
	r.unloaded.from = now.Add((lateShare - 1) * b.took)
}

// loadDue reports whether the next turn with the receiver loads the checkpoint. A
// receiver whose Init has failed must have read before. The turn reads nothing, so
// that a full cache does not keep it away and a Load that hangs holds nothing back
// that was read.
func (r *run) loadDue() bool {
	return r.unloaded.is && r.opened && !time.Now().Before(r.unloaded.from)
}

// loadLate asks again, on a worker.
func (r *run) loadLate(ctx context.Context) (b begunAt, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.initTimeout)
	defer cancel()
	err = guard.Call("checkpointer", func() (err error) {
		b, err = r.load(ctx)
		return err
	})
	return b, err
}

// begun takes over what the checkpointer has said. This run may have come further
// meanwhile.
func (r *run) begun(b begunAt) {
	r.unloaded = unloaded{}
	if !b.ok {
		return
	}
	r.raiseFloor(b.pos)
	r.loaded = true
	if pos := containerToken(b.pos); r.marks != nil && (!r.hasMarked || pos.Compare(r.marked) > 0) {
		r.marked, r.hasMarked = pos, true
	}
}

// begunLate takes what loadLate came to. Who has waited for it is asked at once:
// it may be what fills the cache.
func (r *run) begunLate(b begunAt, err error) {
	if err != nil {
		r.notBegun(b)
		r.log.Warn("checkpoint not loaded; trying again at a later poll", r.fields("err", err)...)
		return
	}
	r.log.Info("checkpoint loaded late", r.fields("token", b.pos.String(), "stored", b.ok)...)
	r.begun(b)
	for sub := range r.retained {
		if sub.again && errors.Is(sub.refused, errUnloaded) {
			r.requestHandshake(sub)
		}
	}
}

// rewindWaits keeps a group whose consumer wants a place that nothing can be said of
// yet. It is offered again at the next poll, and this was no attempt.
func (r *run) rewindWaits(d *delivery, err error) bool {
	if !errors.Is(err, errUnloaded) {
		return false
	}
	d.untry()
	r.keep(d)
	return true
}

// askAgain asks a consumer anew at the next poll: it is away, or nothing can be
// said yet of the place that it wants.
func (r *run) askAgain(h *handshake, err error) {
	h.sub.again, h.sub.refused = true, err
	r.retained[h.sub] = struct{}{}
	r.endHandshake(h)
}
