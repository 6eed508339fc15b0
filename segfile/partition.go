package segfile

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
)

// mark is a place at the end of a run of frames.
type mark struct {
	seg     *segment // nil before the first segment was made
	pos     int64    // behind the last frame
	end     penstock.Offset
	rolling uint32
	sealed  bool // the last frame is a seal
}

// Partition is one partition of a topic on disk. It is safe for concurrent
// use.
//
// Invariants: earliest <= durable <= readable's bound <= written end; at level
// synced readable equals the durable end, at level written the written end.
// At any moment at most one goroutine, the holder of the baton (busy), writes
// to the active segment, to state.slot or to the directory; w is its alone.
// mu is never held during I/O or a callback. A partition with a broken or
// fault error takes no appends any more.
type Partition struct {
	log *Log
	cfg *Config
	id  int
	dir string

	readable atomic.Uint64
	durable  atomic.Uint64
	earliest atomic.Uint64
	notify   atomic.Pointer[func()]
	sealed   atomic.Pointer[func()]

	w writer // of the baton's holder

	bg sync.WaitGroup // background sync, spare, barrier: waited for by Close

	syncs chan struct{} // holds a value while a segment is synced; see syncing.go

	mu      sync.Mutex
	segs    []*segment // by base; the last one is active unless sealed
	written mark
	safe    mark // synced
	busy    bool // the baton is held
	queue   []*group
	tasks   []*task
	pending int64         // bytes in queue, and reserved for frames to come
	freed   chan struct{} // closed when pending falls; nil when nobody waits
	closing bool
	broken  error                  // first failed write or sync; sticky
	fault   *penstock.CorruptError // damage found at open
	spare   spare
	syncing bool // a background sync runs
	starved bool // the last roll found the disk full: a trim may take the active segment

	cramped  bool // broken says that there was no room to cut a torn tail: see trim.go
	unmapped bool // w.piece.off
	claimed  bool // there is room for the next segment; see capacity.go

	unneeded  penstock.Offset // the highest offset that Trim was given
	held      penstock.Offset // a damaged partition keeps what lies behind it
	timer     *time.Timer
	armed     bool   // the timer runs
	seen      uint64 // counts.frames when it was armed
	loose     bool   // level synced: the last frames are not yet covered by a barrier
	cursors   map[string]*Cursor
	groups    map[string]stored // known on disk
	garbage   []string          // segments that could not be removed yet
	rubbish   map[string]int64  // what is counted of them
	trimmed   []*segment        // removed ones that readers had open at the last trim
	counts    counts
	times     timeTable
	producers producers
}

// counts are the running counters behind Stats.
type counts struct {
	frames, stored, groups, syncs, rolls uint64
}

// writer is the state that only the holder of the baton touches.
type writer struct {
	file         vfs.File // of the active segment; nil when there is none
	piece        piece    // of it; see mapped.go
	epoch        uint32
	begun        bool // the clean mark was cleared in this session
	allocated    bool // the active file has its full size
	whole        bool // and that is durable
	index        []indexEntry
	maxTime      int64
	refreshed    int64 // position when state.slot was last written
	state        *slotFile
	start        penstock.Offset // log start in state.slot
	told         state           // what state.slot says of a damaged partition
	found        map[string]bool // groups whose position was found at open and may be in the page cache only
	settle       func() error    // cuts the torn tail; nil unless cramped
	producers    *slotFile       // nil before the first numbered append
	producersErr error           // a write of it has failed; sticky
	buf          []byte
}

// Stats describes a partition at one moment.
type Stats struct {
	Earliest  penstock.Offset // first event kept
	Readable  penstock.Offset // behind the last event that readers see
	Durable   penstock.Offset // behind the last event that is known to be synced
	Written   penstock.Offset // behind the last event handed to the operating system
	Segments  int
	Bytes     penstock.Bytes // from the start of the first segment to the end of the last frame
	Pending   penstock.Bytes // waiting for the committer, or reserved to
	Frames    uint64         // appended in this session
	Stored    uint64         // of them, those that went through a mapping
	Groups    uint64         // group commits in this session
	Syncs     uint64         // data syncs in this session
	Rolls     uint64         // segments begun in this session
	Epoch     uint32
	WritePath string // how small frames get into the file: "pwrite" or "mapping"
	Fault     error  // see [Partition.Fault]
}

// Stats returns the partition's numbers.
func (p *Partition) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Earliest: p.Earliest(), Readable: p.Readable(), Durable: p.Durable(), Written: p.written.end,
		Segments: len(p.segs), Pending: penstock.Bytes(p.pending), Frames: p.counts.frames, Stored: p.counts.stored, Groups: p.counts.groups,
		Syncs: p.counts.syncs, Rolls: p.counts.rolls, WritePath: p.pathLocked(), Fault: p.faultLocked(), Epoch: p.log.epochs[p.id].Load(),
	}
	for _, seg := range p.segs {
		s.Bytes += penstock.Bytes(seg.limit.Load())
	}
	return s
}

// ID returns the partition's number.
func (p *Partition) ID() int { return p.id }

// Readable returns the offset behind the last event that readers see: the
// durable end at level synced, the written end at level written.
func (p *Partition) Readable() penstock.Offset { return penstock.Offset(p.readable.Load()) }

// Durable returns the offset behind the last event that is known to be synced.
func (p *Partition) Durable() penstock.Offset { return penstock.Offset(p.durable.Load()) }

// Earliest returns the first offset that is kept.
func (p *Partition) Earliest() penstock.Offset { return penstock.Offset(p.earliest.Load()) }

// OnReadable sets what is called after each change of Readable, on the
// goroutine that wrote. It must not block and must not call into p's Append,
// Sync, Trim or Close. Setting it again replaces it.
func (p *Partition) OnReadable(fn func()) { p.notify.Store(&fn) }

// Fault returns nil while the partition takes appends. Otherwise it returns
// the damage found at open (*penstock.CorruptError) or the write error that
// stopped the partition. Events before the damage stay readable.
func (p *Partition) Fault() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faultLocked()
}

func (p *Partition) faultLocked() error {
	if p.fault != nil {
		return p.fault
	}
	return p.broken
}

// stop makes err the sticky error, unless there is one already, and returns
// the sticky one.
func (p *Partition) stop(err error) error {
	p.mu.Lock()
	if p.broken != nil {
		defer p.mu.Unlock()
		return p.broken
	}
	p.broken = fmt.Errorf("topic %q partition %d takes no writes until it is opened again: %w", p.cfg.Topic, p.id, err)
	err = p.broken
	p.mu.Unlock()
	p.cfg.Logger.Error("partition stopped", "topic", p.cfg.Topic, "partition", p.id, "err", err)
	return err
}

// publish lets readers see everything up to m.
func (p *Partition) publish(m mark) {
	m.seg.limit.Store(m.pos)
	m.seg.end.Store(uint64(m.end))
	p.readable.Store(uint64(m.end))
	if fn := p.notify.Load(); fn != nil {
		(*fn)()
	}
}

// open returns ErrClosed after Close has begun.
func (p *Partition) open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return penstock.ErrClosed
	}
	return nil
}

// task is something that needs the baton besides writing groups.
type task struct {
	run  func() error
	last bool // only when nothing waits to be written
	err  error
	done chan struct{}
}

// do runs fn with the baton and returns its error.
func (p *Partition) do(fn func() error, last bool) error {
	p.mu.Lock()
	if !p.busy {
		p.busy = true
		p.mu.Unlock()
		err := fn()
		p.handOn(0)
		return err
	}
	t := &task{run: fn, last: last, done: make(chan struct{})}
	p.tasks = append(p.tasks, t)
	p.mu.Unlock()
	<-t.done
	return t.err
}

// work uses the baton until nothing is left to do. The caller holds the baton;
// work gives it back.
func (p *Partition) work() {
	for {
		p.mu.Lock()
		g, t := p.nextLocked()
		if g == nil && t == nil {
			p.busy = false
			p.armLocked()
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if g != nil {
			p.commit(g)
			p.mu.Lock()
			p.roomEndsLocked(g.bytes, true)
			p.mu.Unlock()
			continue
		}
		t.err = t.run()
		close(t.done)
	}
}

// nextLocked takes what is to be done next: tasks between groups, so that
// neither starves the other.
func (p *Partition) nextLocked() (*group, *task) {
	if len(p.tasks) > 0 && (!p.tasks[0].last || len(p.queue) == 0) {
		t := p.tasks[0]
		p.tasks = p.tasks[1:]
		return nil, t
	}
	if len(p.queue) == 0 {
		return nil, nil
	}
	g := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	p.roomEndsLocked(g.bytes, false)
	return g, nil
}
