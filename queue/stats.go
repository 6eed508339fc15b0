package queue

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock/penstock"
)

// Stats is a picture of a topic. The numbers are read one after the other
// while the topic works, so they may be apart by what happened meanwhile.
// Counts are in events. Every list is the caller's.
type Stats struct {
	Name    string
	Storage string        // "memory" or "disk"
	Age     time.Duration // since Open
	Closed  bool

	Capacity      int            // 0 when unbounded
	CapacityBytes penstock.Bytes // 0 when unbounded
	Produced      uint64         // ever appended; on disk by earlier processes too
	Refused       uint64         // not accepted, for want of capacity, since Open
	Retained      uint64         // that some group has not committed; all kept ones without a group
	UsedBytes     penstock.Bytes // of CapacityBytes; 0 when that is
	CapacityDisk  penstock.Bytes // 0 when unbounded
	UsedDisk      penstock.Bytes // what the segment files take and have claimed; 0 in memory
	WhenFull      WhenFull

	// Skipped are the events past which limits have moved groups since Open,
	// summed over the groups (Config.HardRetention). Expired are those that limits
	// have taken from a topic without a group.
	Skipped uint64
	Expired uint64
	// Forgotten is how many groups Config.GroupTTL has deleted since Open.
	Forgotten uint64

	WaitingProducers int // requests in line for capacity
	// KeyPanics is how often Config.Key panicked when an event was read, since
	// Open: such an event counts as one without a key. An event that is looked at
	// several times counts each time; only the first is logged.
	KeyPanics uint64
	// SizePanics is the same for Config.Size of an event that a run of the group
	// measures, for GroupConfig.BatchBytes or to park it: it counts no bytes.
	SizePanics uint64

	// Rates of the appends and of what all groups have committed.
	Rates
	// DiskFull: the last append found the disk full.
	DiskFull bool

	// State and Why say what ails the topic, if anything: in one word and in
	// words. LastError is the last one of those that Why cannot show.
	State State
	Why   string

	Partitions []PartitionStats
	Groups     []GroupStats // the open ones, by name
	// Stored are the groups whose position is on disk and that are not open
	// here, by name. Events wait for them, and count against the capacity.
	Stored []GroupStats
}

// PartitionStats is a picture of a partition: the events in [Earliest, End)
// are kept.
type PartitionStats struct {
	Earliest penstock.Offset
	End      penstock.Offset
	Retained uint64
	Bytes    penstock.Bytes // of the log on disk; 0 in memory
	// WritePath is how small events get into the log on disk, "pwrite" or
	// "mapping"; "" in memory. See Config.WritePath.
	WritePath string

	// Fault is nil while a partition on disk takes appends; else it is the
	// damage that was found (*penstock.CorruptError) or the write that failed
	// and stopped it. Events before it stay readable (ADR 0006).
	Fault error
}

// GroupStats is a picture of a group.
type GroupStats struct {
	Name      string
	Consumers int
	Use       string        // "nobody" until the first use decides, "pull consumers", "Run" or "readers"
	Lag       uint64        // over all partitions
	Committed uint64        // since the group was made; what a seek passed over does not count
	LagTime   time.Duration // since the oldest event that is not committed was appended; 0 without lag
	Rates
	// Drain is how long the group needs for its lag at the present rates;
	// [NeverDrains] when it falls behind or stands still, and while rates are
	// not known.
	Drain time.Duration

	// State and Why say why the group is not moving, or that it is: in one word
	// and in words.
	State State
	Why   string
	// HoldsBack: the topic is full, and of its groups this one has the most to
	// commit.
	HoldsBack bool

	Resized    uint64 // how often Resize has changed the number of consumers
	ResizingTo int    // the number that a Resize waits to change it to; 0 when none waits

	Paused           bool    // by Pause
	PausedPartitions []int   // by PausePartition
	Rate             float64 // GroupConfig.Rate, in events per second; 0 is no limit
	RateLimited      bool    // a batch waits for it now

	Parked    ParkedStats
	Discarded uint64 // events given up by DiscardParked, when they were taken or dropped; those that DeadLetter took are in Run.DeadLettered too
	Redriven  uint64 // dead letters that Redrive has sent back
	// Undecodable are events on disk that could not be decoded and were passed:
	// handed to DeadLetter, or dropped by OnUndecodable.
	Undecodable uint64
	// ReadErrors is how often a partition could not be read, by Run or a pull.
	ReadErrors uint64
	// Skipped are the events past which limits have moved the group since it was
	// opened; LastSkip is the last time, nil before the first.
	Skipped  uint64
	LastSkip *Skip
	// LastError is the last failure of the group's handler, dead-letter hook or
	// commit; nil before the first.
	LastError *GroupError

	Partitions []GroupPartitionStats
	Run        RunStats
}

// ParkedStats says what lies in a group's retry log.
type ParkedStats struct {
	Keys   int
	Events int
	Bytes  penstock.Bytes
	Oldest time.Time // when the one that is parked the longest was parked; zero without any
	Reason string    // in words: why that one failed the last time
}

// GroupPartitionStats says how far a group is in a partition.
type GroupPartitionStats struct {
	Committed penstock.Offset
	End       penstock.Offset
	Lag       uint64        // End - Committed
	LagTime   time.Duration // since the event at Committed was appended; 0 without lag
}

// Stats returns a picture of the topic. It may be called at any time, also
// after Close; it does no I/O and does not wait for producers or handlers. Its
// cost grows with partitions times groups, and in memory with the segments of
// the backlog.
//
// Rates are taken between calls of Stats: see [Rates].
func (t *Topic[T]) Stats() Stats {
	now := time.Now()
	s := Stats{
		Name: t.config.Name, Storage: "memory", Age: now.Sub(t.seen.opened), Closed: t.closed.Load(),
		Capacity: t.config.Capacity, CapacityBytes: t.config.CapacityBytes, Refused: t.seen.refused.Load(), WhenFull: t.config.WhenFull,
		KeyPanics: t.seen.keyPanics.Load(), SizePanics: t.seen.sizePanics.Load(),
		Skipped: t.seen.skipped.Load(), Expired: t.seen.expired.Load(), Forgotten: t.seen.forgotten.Load(),
	}
	if t.budget != nil {
		s.WaitingProducers = t.budget.Waiting()
	}
	if t.disk != nil {
		s.Storage, s.DiskFull = "disk", t.disk.full.Load()
		s.CapacityDisk, s.UsedDisk = t.config.CapacityDisk, t.disk.log.DiskBytes()
		if t.disk.line != nil {
			s.WaitingProducers += int(t.disk.line.waiting.Load())
		}
	}
	groups, stored := t.knownGroups()
	s.Groups, s.Stored = make([]GroupStats, len(groups)), stored
	for i, g := range groups { // before the ends, which are then not older
		s.Groups[i] = g.picture()
	}
	for _, p := range t.parts {
		ps := p.stats()
		s.Produced += uint64(ps.End)
		s.Retained += ps.Retained
		s.UsedBytes += p.retainedBytes(ps.End)
		s.Partitions = append(s.Partitions, ps)
	}
	s.Rates = Rates(t.seen.meter.Read(now, s.Produced, s.Produced-s.Retained))
	all := make([]*GroupStats, 0, len(s.Groups)+len(s.Stored))
	for i := range s.Groups {
		all = append(all, &s.Groups[i])
	}
	for i := range s.Stored {
		all = append(all, &s.Stored[i])
	}
	t.measureLag(now, all)
	for i := range s.Groups {
		groups[i].measureRates(now, &s.Groups[i])
	}
	s.explain(now)
	return s
}

// knownGroups returns the open groups and pictures of those that are only
// stored, both by name.
func (t *Topic[T]) knownGroups() ([]*Group[T], []GroupStats) {
	t.groupsMu.Lock()
	groups := make([]*Group[T], 0, len(t.groups))
	for _, g := range t.groups {
		groups = append(groups, g)
	}
	var stored []GroupStats
	if t.disk != nil {
		stored = t.disk.storedGroups()
	}
	t.groupsMu.Unlock()
	slices.SortFunc(groups, func(a, b *Group[T]) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(stored, func(a, b GroupStats) int { return cmp.Compare(a.Name, b.Name) })
	return groups, stored
}

// storedGroups returns pictures of the groups that are known on disk and not
// open. The caller holds groupsMu.
func (e *fileEngine[T]) storedGroups() []GroupStats {
	var all []GroupStats
	for name, holds := range e.parked {
		g := GroupStats{Name: name, Use: useNames[unused], Partitions: make([]GroupPartitionStats, len(holds))}
		known := false
		for i, h := range holds {
			if h != nil {
				known = true
				g.Partitions[i].Committed = h.Committed()
			} else {
				g.Partitions[i].Committed = e.topic.parts[i].end() // it holds nothing there
			}
		}
		if known {
			all = append(all, g)
		}
	}
	return all
}

func (p *partition[T]) retainedBytes(end penstock.Offset) penstock.Bytes {
	if p.ledger == nil {
		return 0
	}
	return p.ledger.bytes(p.marks.Committed(), end)
}

func (p *partition[T]) stats() PartitionStats {
	mark := p.marks.Committed()
	s := PartitionStats{Earliest: p.earliest()}
	s.End = p.end()
	s.Retained = uint64(s.End - mark)
	if p.file != nil {
		s.Fault = p.file.log.Fault()
		log := p.file.log.Stats()
		s.Bytes, s.WritePath = log.Bytes, log.WritePath
	}
	return s
}

// Stats returns how far the group is, and why it is not moving. It may be
// called at any time, also after Close.
func (g *Group[T]) Stats() GroupStats {
	now := time.Now()
	s := g.picture()
	t := g.topic
	t.measureLag(now, []*GroupStats{&s})
	g.measureRates(now, &s)
	facts := topicFacts{closed: g.closed.Load()}
	for i, p := range t.parts {
		if p.file != nil && facts.fault == nil && s.Partitions[i].Lag > 0 {
			facts.fault, facts.faulted = p.file.log.Fault(), i
		}
	}
	s.explain(now, facts)
	return s
}

// picture is what the group knows of itself, without lags and rates.
func (g *Group[T]) picture() GroupStats {
	shares := g.shares.Load()
	s := GroupStats{Name: g.name, Consumers: len(shares.consumers), Use: useNames[g.use.Load()], Run: g.runStats()}
	s.LastError = g.seen.lastError.Load()
	s.Resized, s.ResizingTo = g.resizes.changed.Load(), int(g.resizes.waits.Load())
	s.Parked = g.parkedStats()
	s.Redriven = g.redriven.Load()
	s.Undecodable, s.ReadErrors = g.seen.undecodable.Load(), g.seen.readErrors.Load()
	s.Skipped, s.LastSkip = g.skips.events.Load(), g.skips.last.Load()
	if g.parking != nil {
		s.Discarded = g.parking.discarded.Load()
	}
	s.Paused, s.PausedPartitions = g.control.all.Load(), g.control.pausedPartitions()
	s.Rate, s.RateLimited = g.config.Rate, g.control.limited.Load() > 0
	s.Partitions = make([]GroupPartitionStats, len(shares.cursors))
	for i, c := range shares.cursors {
		s.Partitions[i].Committed = c.shown().Committed()
	}
	return s
}

// committed returns how many events the group has committed, from offset 0 on.
func (s *GroupStats) committed() uint64 {
	n := uint64(0)
	for i := range s.Partitions {
		n += uint64(s.Partitions[i].Committed)
	}
	return n
}
