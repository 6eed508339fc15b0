package queue

import (
	"errors"
	"io/fs"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// filePartition is what the engine keeps per partition.
type filePartition[T any] struct {
	topic  *Topic[T]
	log    *segfile.Partition
	within atomic.Uint64 // offset below which everything is beyond the topic's limits, as last seen
	stay   atomic.Pointer[stay]
}

// stay is why consumed segments stay on disk, as it was told last.
type stay struct {
	why   string        // the cause alone: how many files stay, and which was tried last, changes
	tries atomic.Uint64 // in vain since
}

func (p *filePartition[T]) end() penstock.Offset      { return p.log.Readable() }
func (p *filePartition[T]) earliest() penstock.Offset { return p.log.Earliest() }

// sweep deletes the segments below low. A failure costs disk space, no data;
// the next sweep tries again, and the log tells it when the reason is another,
// and when it is over.
func (p *filePartition[T]) sweep(low penstock.Offset) {
	err := p.log.Trim(low)
	was := p.stay.Load()
	switch {
	case errors.Is(err, penstock.ErrClosed), err == nil && was == nil:
	case err == nil:
		if p.stay.CompareAndSwap(was, nil) {
			p.topic.logger.Info("consumed segments are deleted again", "partition", p.log.ID(), "below", uint64(low), "tries", was.tries.Load())
		}
	case was != nil && was.why == cause(err):
		was.tries.Add(1)
	default:
		now := &stay{why: cause(err)}
		if was != nil {
			now.tries.Store(was.tries.Load() + 1)
		}
		p.stay.Store(now)
		p.topic.logger.Warn("consumed segments stay on disk", "partition", p.log.ID(), "below", uint64(low), "err", err)
	}
}

// cause returns why a file could not be deleted, without its name.
func cause(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Op + ": " + p.Err.Error()
	}
	return err.Error()
}

// retain keeps what is consumed and within the topic's limits: the low-water
// mark stays behind (ADR 0044, ADR 0079). It is called before the first hold is
// made.
func (p *partition[T]) retain(c *Config[T]) {
	file, n := p.file, c.RetainSegments
	switch {
	case c.limits() != segfile.Limits{}:
		p.marks.Lag(func(low penstock.Offset) penstock.Offset {
			at := penstock.Offset(file.within.Load())
			if n > 0 {
				at = max(at, file.log.Newest(n, low))
			}
			return min(at, low)
		})
	case n > 0:
		p.marks.Lag(func(low penstock.Offset) penstock.Offset { return file.log.Newest(n, low) })
	}
}
