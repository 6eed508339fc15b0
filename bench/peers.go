package main

import (
	"errors"

	"github.com/penstock/penstock"
)

// A peer is a queue that is compared. Unset functions mean that it cannot do
// what a workload asks for.
type peer struct {
	name   string
	module string // "" for code of our own
	lacks  string // what it does not do that penstock does, in a line

	unordered bool // it keeps no order
	direct    bool // it holds nothing: its consumers run inside the producer's call
	live      bool // it holds events for those that consume at the same time only
	batches   bool // it moves batches only

	// open makes one queue with one consumer, or one topic with that many
	// subscribers that see every event. A peer without groups gets nil for more
	// than one: a queue per group stands in.
	// size is how many events a consumer takes per call at most.
	open func(groups, capacity, size int) (*conn, error)
	// keyed makes a topic whose events of one key stay together in one of the
	// partitions, by partitionOf. Nil: a queue per partition stands in.
	keyed func(partitions, capacity int) (*conn, error)

	// log opens a log on disk in an empty directory, whose appends are synced or
	// only handed to the system. Nil, nil: it has no such appends.
	log func(dir string, synced bool) (*logConn, error)

	// pipe and pipeBatch run a whole pipeline, of those in pipelines.
	pipe, pipeBatch pipe
}

// A conn is an open queue.
type conn struct {
	// produce puts events in, one per call. batch puts n in per call; nil: it
	// has no such call.
	produce func(events []int) error
	batch   func(events []int, n int) error
	// consume are the consumers: each takes n events, one per call where the
	// peer has a call for it. consumeBatch takes n in batches of at most size.
	consume      []func(k *order, n int) error
	consumeBatch []func(k *order, n, size int) error
	close        func() error // may be nil
}

// Keys of the workload "keyed": event v has key v mod keyCount.
const keyCount = 1024

var keyNames, keyPartitions = func() (names []string, partitions []int) {
	for i := range keyCount {
		name := "customer-" + string([]byte{byte('0' + i/1000), byte('0' + i/100%10), byte('0' + i/10%10), byte('0' + i%10)})
		names = append(names, name)
		partitions = append(partitions, int(penstock.HashKey(name)%partitionCount))
	}
	return names, partitions
}()

const partitionCount = 4

// keyOf returns the key of an event.
func keyOf(v int) string { return keyNames[v%keyCount] }

// partitionOf hashes the key of an event, as penstock does for itself.
func partitionOf(v int) int { return int(penstock.HashKey(keyOf(v)) % partitionCount) }

// inPartition returns how many of the events 0 to n-1 belong to a partition.
func inPartition(p, n int) (count int) {
	for v := range n {
		if keyPartitions[v%keyCount] == p {
			count++
		}
	}
	return count
}

// standIn is how many events a stand-in for groups gives to one queue before it
// gives them to the next: less often than after each event, which is to the
// peer's advantage.
const standIn = 64

// openGroups opens a peer for consumers that see every event each.
func (p peer) openGroups(groups, capacity, size int) (*conn, error) {
	c, err := p.open(groups, capacity, size)
	if c != nil || err != nil {
		return c, err
	}
	parts, err := p.openMany(groups, capacity)
	if err != nil {
		return nil, err
	}
	c = joined(parts)
	c.produce = func(events []int) error {
		for rest := events; len(rest) > 0; {
			n := min(standIn, len(rest))
			for _, part := range parts {
				if err := part.produce(rest[:n]); err != nil {
					return err
				}
			}
			rest = rest[n:]
		}
		return nil
	}
	return c, nil
}

// openKeyed opens a peer for consumers that share the events by key.
func (p peer) openKeyed(partitions, capacity int) (*conn, error) {
	if p.keyed != nil {
		return p.keyed(partitions, capacity)
	}
	parts, err := p.openMany(partitions, capacity)
	if err != nil {
		return nil, err
	}
	c := joined(parts)
	c.produce = func(events []int) error {
		for i, v := range events {
			if err := parts[partitionOf(v)].produce(events[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	return c, nil
}

func (p peer) openMany(n, capacity int) (parts []*conn, err error) {
	for range n {
		c, err := p.open(1, capacity, atMost)
		if err != nil {
			return nil, errors.Join(err, joined(parts).close())
		}
		parts = append(parts, c)
	}
	return parts, nil
}

// joined puts the consumers of several queues together.
func joined(parts []*conn) *conn {
	c := &conn{close: func() (err error) {
		for _, part := range parts {
			if part.close != nil {
				err = errors.Join(err, part.close())
			}
		}
		return err
	}}
	for _, part := range parts {
		c.consume = append(c.consume, part.consume...)
	}
	return c
}
