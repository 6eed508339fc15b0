package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
)

// errUnloaded: whether a place can be had is not known before the checkpoint is.
var errUnloaded = errors.New("the checkpoint could not be loaded; it is tried again")

// begunAt is how far the runs before have come, as a checkpointer has said.
type begunAt struct {
	pos penstock.Token
	ok  bool // there is one
}

// load asks the checkpointer, on a worker.
func (r *run) load(ctx context.Context) (b begunAt, err error) {
	if b.pos, b.ok, err = r.marks.Load(ctx); err != nil {
		return begunAt{}, fmt.Errorf("load checkpoint: %w", err)
	}
	return b, nil
}

// loadLate asks again in a turn with the receiver that has read, so that it is open.
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
	r.unloaded = false
	if !b.ok {
		return
	}
	r.raiseFloor(b.pos)
	r.loaded = true
	if pos := containerToken(b.pos); r.marks != nil && (!r.hasMarked || pos.Compare(r.marked) > 0) {
		r.marked, r.hasMarked = pos, true
	}
}

// begunLate takes what loadLate came to. Who has waited for it is asked at the
// next poll.
func (r *run) begunLate(b begunAt, err error) {
	if err != nil {
		r.log.Warn("checkpoint not loaded; trying again at the next poll", r.fields("err", err)...)
		return
	}
	r.log.Info("checkpoint loaded late", r.fields("token", b.pos.String(), "stored", b.ok)...)
	r.begun(b)
}

// askAgain asks a consumer anew at the next poll: it is away, or nothing can be
// said yet of the place that it wants.
func (r *run) askAgain(h *handshake, err error) {
	h.sub.again, h.sub.refused = true, err
	r.retained[h.sub] = struct{}{}
	r.endHandshake(h)
}
