package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/segfile"
	"github.com/penstock/penstock/settle"
)

const (
	retryFrame    = 1 << 20     // bytes of entries in one append, unless one entry is larger
	retryInFlight = 4 << 20     // bytes under way; more wait
	retryPause    = time.Second // after a failed append
	retryShrink   = 1000        // how many entries more than needed make a rewrite worth it
)

// fileRetry is the retry log of a topic on disk: a log of its own, made when
// something is parked for the first time (ADR 0030).
//
// It is the only writer of that log, so it knows where each record goes: the
// flights are the appends under way, oldest first, and they end in that order.
// An append that fails on a full disk takes all behind it with it: they are
// appended again, in their order, and an entry that is there twice does no
// harm.
type fileRetry[T any] struct {
	engine    *fileEngine[T]
	origin    retryOrigin
	part      *segfile.Partition
	written   bool // level written: a commit needs a sync first
	files     *retryFiles
	log       *segfile.Partition // nil until something is parked
	reader    *segfile.Reader    // of log
	source    *segfile.Reader    // of part
	raw       map[penstock.Offset]*rawRecord
	where     map[penstock.Offset]penstock.Offset // parked event -> its record in log
	since     map[penstock.Offset]time.Time       // parked event -> when
	begin     penstock.Offset                     // of what the log has to be kept for
	next      penstock.Offset                     // of the next record
	flights   []flight
	handed    uint64 // sequence number of the last entry that was handed over
	confirmed uint64
	loose     bool        // something was confirmed and not synced
	failed    atomic.Bool // an append failed; set by the log's committer
	pause     time.Time   // no append before
	wake      func()      // tells the owner to look again
}

// flight is one append under way.
type flight struct {
	receipt segfile.Receipt
	end     penstock.Offset // of its records
	seq     uint64          // of its last entry
	bytes   int
	placed  []placed
}

// placed says where the event of a New entry is.
type placed struct{ event, record penstock.Offset }

func newFileRetry[T any](g *Group[T], partition int, wake func()) *fileRetry[T] {
	t := g.topic
	return &fileRetry[T]{
		engine: t.disk, part: t.disk.log.Partition(partition), wake: wake,
		origin:  retryOrigin{topic: t.config.Name, partition: partition, group: g.name},
		files:   newRetryFiles(&t.config, g.name, partition),
		written: t.config.Durability == penstock.Written,
		raw:     make(map[penstock.Offset]*rawRecord),
	}
}

// open opens the log; with create set it is made when there is none.
func (r *fileRetry[T]) open(create bool) error {
	if r.log != nil {
		return nil
	}
	log, err := r.files.open(create)
	if err != nil || log == nil {
		return err
	}
	r.log = log.Partition(0)
	r.log.OnReadable(r.wake)
	r.begin, r.next = r.log.Earliest(), r.log.Readable()
	return nil
}

func (r *fileRetry[T]) load() ([]parkedEntry, error) {
	r.drain()
	r.flights, r.handed, r.confirmed, r.pause = nil, 0, 0, time.Time{}
	r.failed.Store(false)
	r.where, r.since = make(map[penstock.Offset]penstock.Offset), make(map[penstock.Offset]time.Time)
	if err := r.open(false); err != nil || r.log == nil {
		return nil, r.wrap(err)
	}
	if err := r.log.Fault(); err != nil {
		return nil, r.wrap(err)
	}
	r.next = r.log.Readable()
	r.loose = true // an earlier process may have written, and not synced, what is there
	last, err := r.readAll()
	if err != nil {
		return nil, r.wrap(err)
	}
	all := make([]parkedEntry, 0, len(last))
	for o, e := range last {
		if _, ok := r.where[o]; !ok {
			return nil, r.wrap(fmt.Errorf("%w: offset %d is parked and its event is not there", penstock.ErrCorrupt, o))
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b parkedEntry) int { return cmp.Compare(a.Offset, b.Offset) })
	return all, nil
}

func (r *fileRetry[T]) append(entries []settle.Entry, _ *view[T]) error {
	defer r.dropRaw(entries)
	if err := r.land(); err != nil {
		return err
	}
	for {
		for len(entries) > 0 && entries[0].Seq <= r.handed {
			entries = entries[1:]
		}
		if len(entries) == 0 || r.inFlight() >= retryInFlight || time.Now().Before(r.pause) {
			return nil
		}
		r.pause = time.Time{} // or it would seem to be time for ever
		if err := r.open(true); err != nil {
			if !errors.Is(err, penstock.ErrDiskFull) && !errors.Is(err, vfs.ErrMoved) {
				return r.wrap(err)
			}
			r.putOff(err)
			return nil
		}
		n, err := r.appendFrame(entries)
		if err != nil {
			return r.wrap(err)
		}
		entries = entries[n:]
	}
}

// dropRaw forgets the records that were read for their size and are not parked,
// or have been handed over.
func (r *fileRetry[T]) dropRaw(entries []settle.Entry) {
	if len(r.raw) == 0 {
		return
	}
	waiting := make(map[penstock.Offset]*rawRecord)
	for _, e := range entries {
		if raw := r.raw[e.Offset]; raw != nil && e.New && e.Seq > r.handed {
			waiting[e.Offset] = raw
		}
	}
	r.raw = waiting
}

func (r *fileRetry[T]) inFlight() (bytes int) {
	for _, f := range r.flights {
		bytes += f.bytes
	}
	return bytes
}

// appendFrame hands a first part of the entries over, and returns how many it
// was: none when that failed in a way that may pass.
func (r *fileRetry[T]) appendFrame(entries []settle.Entry) (int, error) {
	now := time.Now()
	frame := segfile.NewFrame(min(len(entries), 64))
	frame.SetEnveloped(true)
	fl := flight{end: r.next}
	most := min(retryFrame, int(r.files.config.MaxFrame-retryRoom/2)) // in a topic with small segments it is less
	for i, e := range entries {
		if i > 0 && frame.Size() >= most {
			break
		}
		var raw *rawRecord
		if e.New {
			var err error
			if raw, err = r.fetch(e.Offset); err != nil {
				frame.Release()
				return 0, err
			}
			if i > 0 && frame.Size()+len(raw.bytes) > most {
				break
			}
			if _, again := r.since[e.Offset]; !again {
				r.since[e.Offset] = now
			}
			fl.placed = append(fl.placed, placed{e.Offset, fl.end})
		}
		buf, err := r.origin.appendEntry(frame.Buffer(), parkedEntry{e, r.since[e.Offset]}, raw)
		if e.Gone {
			delete(r.where, e.Offset)
			delete(r.since, e.Offset)
		}
		if err != nil {
			frame.Release()
			return 0, err
		}
		frame.End(buf)
		fl.end++
		fl.seq = e.Seq
	}
	n := frame.Len()
	fl.bytes = frame.Size()
	return n, r.handOver(frame, fl)
}

// handOver appends a frame.
func (r *fileRetry[T]) handOver(frame *segfile.Frame, fl flight) error {
	frame.OnFailure(func(error) {
		r.failed.Store(true)
		r.wake()
	})
	receipt, err := r.log.Append(context.Background(), frame) // there is room: see retryInFlight
	if err != nil {
		return err
	}
	fl.receipt = receipt
	r.flights = append(r.flights, fl)
	r.next, r.handed = fl.end, max(r.handed, fl.seq)
	return nil
}

func (r *fileRetry[T]) logged() (uint64, error) {
	if err := r.land(); err != nil {
		return r.confirmed, err
	}
	return r.confirmed, nil
}

// land takes the appends that have ended off the list.
func (r *fileRetry[T]) land() error {
	if len(r.flights) == 0 {
		return nil
	}
	if r.failed.Load() {
		return r.wrap(r.landFailed())
	}
	readable := r.log.Readable()
	for len(r.flights) > 0 && r.flights[0].end <= readable {
		r.confirm(r.flights[0])
		r.flights = r.flights[1:]
	}
	return nil
}

func (r *fileRetry[T]) confirm(f flight) {
	for _, p := range f.placed {
		r.where[p.event] = p.record
	}
	r.confirmed = max(r.confirmed, f.seq)
	r.loose = true
}

// landFailed deals with an append that failed: those before it count, it and
// those behind it are done again after a pause, unless the log takes no more.
func (r *fileRetry[T]) landFailed() error {
	r.drain()
	good, first := true, error(nil)
	for _, f := range r.flights {
		if _, err := f.receipt.Wait(context.Background()); err != nil {
			good = false
			first = cmp.Or(first, err)
		}
		if good {
			r.confirm(f)
		}
	}
	r.flights, r.handed, r.next = nil, r.confirmed, r.log.Readable()
	r.failed.Store(false)
	if err := r.log.Fault(); err != nil {
		return err
	}
	if errors.Is(first, penstock.ErrClosed) {
		return first
	}
	r.putOff(first)
	return nil
}

// putOff has what could not be appended tried again later.
func (r *fileRetry[T]) putOff(err error) {
	r.pause = time.Now().Add(retryPause)
	r.engine.topic.logger.Warn("the retry log could not be written; parked events hold the commit until it can",
		"group", r.origin.group, "partition", r.origin.partition, "err", err)
}

func (r *fileRetry[T]) retryAt() time.Time { return r.pause }

// drain waits until no append is under way.
func (r *fileRetry[T]) drain() {
	for _, f := range r.flights {
		_, _ = f.receipt.Wait(context.Background()) // land looks at the error
	}
}

// sync is for level written, where the log and the commit that relies on it
// become durable apart: a power loss must not keep the second and lose the
// first.
func (r *fileRetry[T]) sync() error {
	if !r.loose || !r.written {
		return nil
	}
	if err := r.log.Sync(); err != nil {
		return r.wrap(err)
	}
	r.loose = false
	return nil
}

// close closes the log. The readers then hold no file either.
func (r *fileRetry[T]) close() error { return r.files.close() }

// wrap says whose retry log an error is about.
func (r *fileRetry[T]) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("retry log of partition %d: %w", r.origin.partition, err)
}
