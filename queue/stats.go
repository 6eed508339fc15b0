package queue

import (
	"cmp"
	"slices"

	"github.com/penstock/penstock"
)

// Stats is a picture of a topic. The numbers are read one after the other
// while the topic works, so they may be apart by what happened meanwhile.
// Counts are in events.
type Stats struct {
	Name             string
	Capacity         int    // 0 when unbounded
	Produced         uint64 // ever appended
	Retained         uint64 // that some group has not committed; all kept ones without a group
	WaitingProducers int    // requests in line for capacity
	Partitions       []PartitionStats
	Groups           []GroupStats // by name
}

// PartitionStats is a picture of a partition: the events in [Earliest, End)
// are kept.
type PartitionStats struct {
	Earliest penstock.Offset
	End      penstock.Offset
	Retained uint64

	// Fault is nil while a partition on disk takes appends; else it is the
	// damage that was found (*penstock.CorruptError) or the write that failed
	// and stopped it. Events before it stay readable (ADR 0006).
	Fault error
}

// GroupStats is a picture of a group.
type GroupStats struct {
	Name       string
	Consumers  int
	Lag        uint64 // over all partitions
	Partitions []GroupPartitionStats
	Run        RunStats
}

// GroupPartitionStats says how far a group is in a partition.
type GroupPartitionStats struct {
	Committed penstock.Offset
	End       penstock.Offset
	Lag       uint64 // End - Committed
}

// Stats returns a picture of the topic. It may be called at any time, also
// after Close.
func (t *Topic[T]) Stats() Stats {
	s := Stats{Name: t.config.Name, Capacity: t.config.Capacity}
	if t.budget != nil {
		s.WaitingProducers = t.budget.Waiting()
	}
	for _, p := range t.parts {
		ps := p.stats()
		s.Produced += uint64(ps.End)
		s.Retained += ps.Retained
		s.Partitions = append(s.Partitions, ps)
	}
	t.groupsMu.Lock()
	groups := make([]*Group[T], 0, len(t.groups))
	for _, g := range t.groups {
		groups = append(groups, g)
	}
	t.groupsMu.Unlock()
	slices.SortFunc(groups, func(a, b *Group[T]) int { return cmp.Compare(a.name, b.name) })
	for _, g := range groups {
		s.Groups = append(s.Groups, g.Stats())
	}
	return s
}

func (p *partition[T]) stats() PartitionStats {
	mark := p.marks.Committed()
	s := PartitionStats{Earliest: p.earliest()}
	s.End = p.end()
	s.Retained = uint64(s.End - mark)
	if p.file != nil {
		s.Fault = p.file.log.Fault()
	}
	return s
}

// Stats returns how far the group is.
func (g *Group[T]) Stats() GroupStats {
	s := GroupStats{Name: g.name, Consumers: len(g.consumers), Run: g.runStats()}
	for _, c := range g.cursors {
		// The commit is read first: the end it is compared with is not older.
		ps := GroupPartitionStats{Committed: c.hold.Committed()}
		ps.End = c.source.end()
		ps.Lag = uint64(ps.End - ps.Committed)
		s.Lag += ps.Lag
		s.Partitions = append(s.Partitions, ps)
	}
	return s
}
