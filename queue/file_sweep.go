package queue

import (
	"errors"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// filePartition is what the engine keeps per partition.
type filePartition[T any] struct {
	topic *Topic[T]
	log   *segfile.Partition
}

func (p *filePartition[T]) end() penstock.Offset      { return p.log.Readable() }
func (p *filePartition[T]) earliest() penstock.Offset { return p.log.Earliest() }

// sweep deletes the segments below low. A failure costs disk space, no data;
// the next sweep tries again.
func (p *filePartition[T]) sweep(low penstock.Offset) {
	if err := p.log.Trim(low); err != nil && !errors.Is(err, penstock.ErrClosed) {
		p.topic.logger.Warn("consumed segments stay on disk", "partition", p.log.ID(), "below", uint64(low), "err", err)
	}
}

// retain keeps the newest n consumed segments: the low-water mark stays behind
// by so many (ADR 0044). It is called before the first hold is made.
func (p *partition[T]) retain(n int) {
	if n > 0 {
		log := p.file.log
		p.marks.Lag(func(low penstock.Offset) penstock.Offset { return log.Newest(n, low) })
	}
}
