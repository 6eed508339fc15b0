package penstock

import "time"

// DrainReport says what a drain has done, from the end of intake on.
type DrainReport struct {
	Partitions []DrainedPartition
	Duration   time.Duration
}

// DrainedPartition is the part of a [DrainReport] about one partition. Counts
// are in events.
type DrainedPartition struct {
	Partition int
	Settled   int // settled, or given up, during the drain
	Left      int // taken and not settled; they come again
	Parked    int // in the retry log, where they stay
}

// Settled returns how many events were settled during the drain.
func (r DrainReport) Settled() (n int) {
	for _, p := range r.Partitions {
		n += p.Settled
	}
	return n
}

// Left returns how many events were taken and are not settled.
func (r DrainReport) Left() (n int) {
	for _, p := range r.Partitions {
		n += p.Left
	}
	return n
}

// Parked returns how many events are in the retry log.
func (r DrainReport) Parked() (n int) {
	for _, p := range r.Partitions {
		n += p.Parked
	}
	return n
}
