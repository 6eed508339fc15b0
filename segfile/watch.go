package segfile

import (
	"context"
	"time"

	"github.com/penstock/penstock"
)

// watchEvery is how often an open that takes long says so in the log.
const watchEvery = 5 * time.Second

// watch returns what an open asks before each block that it reads of a
// partition, given the size of the file: it ends with ctx, and tells how far it
// is.
func (l *Log) watch(ctx context.Context, id int) func(size int64) func(pos int64) error {
	next := time.Now().Add(watchEvery)
	return func(size int64) func(pos int64) error {
		return ended(ctx, func(pos int64) error {
			at := Progress{
				Topic: l.cfg.Topic, Partition: id, Partitions: l.cfg.Partitions, Done: penstock.Bytes(pos), Total: penstock.Bytes(size),
			}
			if l.cfg.Progress != nil {
				l.cfg.Progress(at)
			}
			if now := time.Now(); !now.Before(next) {
				next = now.Add(watchEvery)
				l.cfg.Logger.Info("an open reads the end of the log, which was not closed cleanly", "topic", at.Topic,
					"partition", at.Partition, "partitions", at.Partitions, "position", int64(at.Done), "size", int64(at.Total))
			}
			return nil
		})
	}
}
