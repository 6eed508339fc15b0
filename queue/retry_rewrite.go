package queue

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// How a retry log on disk stays small.

// grown reports whether the log holds twice what is parked, and so much more
// that a rewrite is worth it.
func (r *fileRetry[T]) grown(events int) bool {
	return r.log != nil && r.next-r.begin >= penstock.Offset(max(2*events, events+retryShrink))
}

// rewrite appends what is parked once more and gives up what lies before it.
// While it is cut short, by a full disk or a crash, the old entries stay, and
// what was appended is there twice. After a failure it waits like append.
func (r *fileRetry[T]) rewrite(parked []settle.Entry) error {
	if time.Now().Before(r.pause) {
		return nil
	}
	if err := r.land(); err != nil || len(r.flights) > 0 || r.handed != r.confirmed {
		return err
	}
	begin := r.next
	for len(parked) > 0 {
		n, err := r.copyFrame(parked)
		if err != nil {
			return r.wrap(err)
		}
		if n == 0 { // the disk is full
			return nil
		}
		parked = parked[n:]
	}
	if err := r.sync(); err != nil { // at level written the copies are not durable yet, and what goes may be
		return err
	}
	r.begin = begin
	if err := r.log.Trim(begin); err != nil && !errors.Is(err, penstock.ErrClosed) {
		r.engine.topic.logger.Warn("old entries of the retry log stay on disk", "group", r.origin.group, "partition", r.origin.partition, "err", err)
	}
	return nil
}

// copyFrame appends a first part of the entries with their events, waits for
// it, and returns how many it was.
func (r *fileRetry[T]) copyFrame(entries []settle.Entry) (int, error) {
	clear(r.raw)
	bytes, some := 0, 0
	for _, e := range entries {
		raw, err := r.readRaw(r.where[e.Offset], e.Offset)
		if err != nil {
			return 0, err
		}
		raw.bytes = slices.Clone(raw.bytes)
		r.raw[e.Offset] = raw
		bytes += len(raw.bytes)
		if some++; some == 256 || bytes >= retryFrame {
			break
		}
	}
	n, err := r.appendFrame(entries[:some])
	clear(r.raw)
	if err != nil {
		return 0, err
	}
	r.drain()
	failed := r.failed.Load()
	if err := r.land(); err != nil || failed {
		return 0, err
	}
	return n, nil
}
