package queue

import (
	"errors"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// Kinds of a [GroupError].
const (
	KindHandler    = "handler"     // the handler failed events
	KindDeadLetter = "dead letter" // the hook did not take them
	KindCommit     = "commit"      // a commit could not be stored
	KindRun        = "run"         // Run ended by it
	KindRead       = "read"        // a partition could not be read
	KindDecode     = "decode"      // an event could not be decoded
)

// GroupError is a failure that befell a group.
type GroupError struct {
	Kind string // KindHandler and so on
	// Partition is where it happened, -1 when no single one can be named.
	Partition int
	// Offset of the first event that it concerns; of a commit, where it should
	// have gone.
	Offset   penstock.Offset
	Text     string // at most 512 bytes
	DiskFull bool   // it matches penstock.ErrDiskFull
	Time     time.Time
}

// noteError keeps an error as the group's last one. It is safe for concurrent
// use, and not for hot paths.
func (g *Group[T]) noteError(kind string, partition int, at penstock.Offset, err error) {
	g.seen.lastError.Store(&GroupError{
		Kind: kind, Partition: partition, Offset: at,
		Text: debugpage.ErrorText(err), DiskFull: matches(err, penstock.ErrDiskFull), Time: time.Now(),
	})
}

// matches is errors.Is with a user's error, whose methods may panic.
func matches(err, target error) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	return errors.Is(err, target)
}
