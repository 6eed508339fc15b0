package queue

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
	"github.com/penstock/penstock/settle"
)

// What Run does about a partition that it cannot read (ADR 0042): it tries again
// after what may pass, and stops that partition alone after what does not.

// readBackoff is between the attempts to read a partition.
var readBackoff = settle.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.2}

// UnreadablePartition is a partition that [Group.Run] cannot read on from an
// offset. Events before it are handled, and so are other partitions.
type UnreadablePartition struct {
	Partition int
	Offset    penstock.Offset
	Since     time.Time // the first failure
	Attempts  int       // to read, that failed
	Next      time.Time // of the next attempt; zero when there is none before a seek or the next Run
	Reason    string    // in words; at most 512 bytes
}

// readTrouble is the trouble that a lane has with its source. It is replaced, never
// changed: others read it.
type readTrouble struct {
	err      error
	at       penstock.Offset
	since    time.Time
	attempts int
	next     time.Time // zero: never
}

// stopped reports whether the partition is not read again in this run.
func (r *readTrouble) stopped() bool { return r.next.IsZero() }

// mayRead reports whether the lane reads on: while it has no trouble, and when
// it is time to try again.
func (l *lane[T]) mayRead() bool {
	r := l.trouble.Load()
	return r == nil || !r.stopped() && !time.Now().Before(r.next)
}

// refill brings events into view. After an error that does not end the run there
// are none, or one that stands for one that cannot be decoded.
func (l *lane[T]) refill(max int) error {
	at := l.cur.read
	if err := l.consumer.refill(l.index, l.cur, l.cur.source.end(), max); err != nil {
		return l.unreadable(at, err)
	}
	if l.trouble.Load() != nil {
		l.trouble.Store(nil)
	}
	return nil
}

// unreadable deals with an error of reading at an offset. It returns nil when
// the lane goes on: with an event that stands for one that cannot be decoded,
// without this partition, or later; and the error when the run ends by it.
func (l *lane[T]) unreadable(at penstock.Offset, err error) error {
	if errors.Is(err, penstock.ErrClosed) {
		return err
	}
	l.cur.seek(at)
	l.cur.win, l.cur.limit = window[T]{First: at}, at // what was in the window may be overwritten
	if bad := asUndecodable(err); bad != nil && bad.Offset == at && l.group.passes() {
		l.cur.substitute(bad)
		return nil
	}
	if l.cur.wasPassed(err) {
		return nil // it goes on where it was moved to
	}
	now := time.Now()
	r := &readTrouble{err: err, at: at, since: now, attempts: 1}
	if was := l.trouble.Load(); was != nil {
		r.since, r.attempts = was.since, was.attempts+1
	}
	logger := l.group.topic.logger.With(slog.String("group", l.group.name), slog.Int("partition", l.cur.part.index), slog.Uint64("offset", uint64(at)))
	if l.cur.lasting(err) {
		logger.Error("a partition cannot be read and is stopped", slog.Any("error", err))
	} else {
		r.next = now.Add(readBackoff.Delay(r.attempts, rand.Float64()))
		logger.Warn("a partition cannot be read; it is tried again", slog.Any("error", err), slog.Int("attempt", r.attempts))
	}
	l.group.noteUnreadable(l.cur.part.index, at, err)
	l.trouble.Store(r)
	return nil
}

// lasting reports whether an error of reading comes every time.
func (c *cursor[T]) lasting(err error) bool {
	for _, target := range []error{penstock.ErrCorrupt, penstock.ErrOffsetOutOfRange, penstock.ErrUnsupported} {
		if errors.Is(err, target) {
			return true
		}
	}
	return asUndecodable(err) != nil || c.part.file != nil && c.part.file.log.Fault() != nil
}

// endsInDamage reports whether what is readable ends where the log is damaged:
// the next fill there says so, and nobody else will.
func (c *cursor[T]) endsInDamage() bool {
	if c.part.file == nil {
		return false
	}
	_, damage := c.part.file.log.Fault().(*penstock.CorruptError)
	return damage
}

// troubleDue returns when a lane that cannot be read has something to do, given
// when its machine has. One worker reads what it tries again, several have it
// in view.
func (l *lane[T]) troubleDue(r *readTrouble, due time.Time, ok bool) (time.Time, bool) {
	switch {
	case l.fan == nil && r.stopped():
		return time.Time{}, false
	case l.fan == nil || !r.stopped() && (!ok || r.next.Before(due)):
		return r.next, true
	}
	return due, ok
}

// lose takes a lane that is stopped, and has settled what came before, out of
// those that the run goes on with.
func (p *pusher[T]) lose(l *lane[T]) {
	if r := l.trouble.Load(); !l.lost && r.stopped() && l.machine.Unsettled() == 0 {
		l.lost = true
		p.run.lose(r.err)
	}
}

// adopt begins a lane again where it was sought.
func (p *pusher[T]) adopt(l *lane[T]) error {
	if l.lost {
		p.run.sound.Add(1)
	}
	return l.adopt()
}

// lose counts a partition that the run cannot go on with, and ends the run with
// the last one.
func (r *run[T]) lose(err error) {
	r.note(err)
	if r.sound.Add(-1) == 0 {
		r.fail(err)
	}
}

// noteUnreadable counts an error of reading.
func (g *Group[T]) noteUnreadable(partition int, at penstock.Offset, err error) {
	if matches(err, penstock.ErrClosed) {
		return
	}
	g.seen.readErrors.Add(1)
	g.noteError(KindRead, partition, at, err)
}

// unreadablePartitions appends what cannot be read now.
func (p *pusher[T]) unreadablePartitions(out []UnreadablePartition) []UnreadablePartition {
	for _, l := range p.lanes {
		if r := l.trouble.Load(); r != nil {
			out = append(out, UnreadablePartition{Partition: l.cur.part.index, Offset: r.at, Since: r.since, Attempts: r.attempts, Next: r.next, Reason: debugpage.ErrorText(r.err)})
		}
	}
	return out
}
