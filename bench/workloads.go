package main

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/measure"
)

const (
	events   = 8192 // per iteration
	capacity = 8192
	groups   = 4

	// atMost is the batch of a consumer that is free to take what is there:
	// penstock's default.
	atMost = 100
)

// A workload is what all peers are asked to do.
type workload struct {
	name  string
	text  string
	goals map[string]float64 // of the ratio, by peer
	// side opens a peer for the workload. Nil, nil: it cannot do it.
	side  func(p peer, events int) (*contestant, error)
	pipes bool // it is for pipelines
	disk  bool // it is for logs on disk
}

// contestants are penstock and the peers of a workload.
func (w workload) contestants(peers []peer) []peer {
	if w.pipes {
		return append([]peer{staged}, pipelines...)
	}
	if w.disk {
		return append([]peer{logged}, logs...)
	}
	return append([]peer{ours}, peers...)
}

// A contestant is a peer that is open for a workload.
type contestant struct {
	run   func(c *measure.Clock) error
	close func() error
}

var workloads = []workload{
	{
		name: "produce", text: "8192 calls with one event from one goroutine, while nobody consumes; the queue is empty before. After the clock everything is taken out.",
		goals: map[string]float64{"chan": 1.9, "mutex and swapped slices": 1.1},
		side:  produceSide,
	},
	{
		name: "consume", text: "8192 events, put in before the clock, are taken out by one goroutine, one per call.",
		goals: map[string]float64{"chan": 3.9},
		side:  consumeSide,
	},
	{
		name: "flow/b1", text: "One goroutine puts 8192 events in, one per call, and one takes them out at the same time, one per call.",
		goals: map[string]float64{"chan": 3, "watermill GoChannel": 300},
		side:  flowSide(1),
	},
	{
		name: "flow/b100", text: "The same in batches of 100, for peers that have calls for batches.",
		goals: map[string]float64{"mutex and swapped slices": 0.95},
		side:  flowSide(100),
	},
	{
		name: "fanout4", text: "One goroutine puts 8192 events in, one per call; four consumers, each in a goroutine, see all of them. A consumer takes what its queue gives per call, 100 at most where that is for the caller to say. Peers without groups are a queue per consumer, and get 64 events at a time. Time is per delivered event.",
		side: fanoutSide,
	},
	{
		name: "keyed", text: "One goroutine puts 8192 events in, one per call, with 1024 keys of 13 bytes; events of one key stay in order, in one of four partitions, each with a consumer in a goroutine, which takes as in fanout4. Peers without partitions are a queue per partition, with the hash that penstock uses.",
		side: keyedSide,
	},
	{
		name: "pipeline/event", text: "A pipeline from its start to its end: a source makes 131,072 numbers, a function adds one to each, a sink looks at each. Two goroutines or more; what is between two parts holds 1000 events where that is for the caller to say. A function call per event.",
		goals: map[string]float64{"chan": 5},
		side:  pipeSide(false), pipes: true,
	},
	{
		name: "pipeline/b250", text: "The same in batches of 250, penstock's default, for those that can move slices: the function changes a batch, the sink looks at each.",
		goals: map[string]float64{"chan of recycled batches": 0.55},
		side:  pipeSide(true), pipes: true,
	},
	{
		name: "log/append/b1", text: "1024 records of 100 B are appended by one goroutine, one per call, without a sync, and read back after the clock.",
		side: logAppendSide(false, 1, 8), disk: true,
	},
	{
		name: "log/append/b100", text: "8192 records of 100 B in calls of 100, without a sync.",
		goals: map[string]float64{"tidwall/wal": 8},
		side:  logAppendSide(false, 100, 1), disk: true,
	},
	{
		name: "log/append/synced/b1", text: "64 records of 100 B, one per call, each synced before the call returns.",
		side: logAppendSide(true, 1, 128), disk: true,
	},
	{
		name: "log/append/synced/b100", text: "1024 records of 100 B in calls of 100, each call synced before it returns.",
		goals: map[string]float64{"hashicorp/raft-wal": 1.6},
		side:  logAppendSide(true, 100, 8), disk: true,
	},
	{
		name: "log/read", text: "32,768 records of 100 B, appended in calls of 100 before the clock, are read one after the other from the first on.",
		side: logReadSide, disk: true,
	},
}

// numbered are the events of every workload.
func numbered(n int) []int {
	vs := make([]int, n)
	for i := range vs {
		vs[i] = i
	}
	return vs
}

// arrivalOf says how events come to the only consumer of a peer.
func (p peer) arrivalOf(how arrival) arrival {
	if p.unordered {
		return inAnyOrder
	}
	return how
}

func produceSide(p peer, n int) (*contestant, error) {
	if p.direct || p.batches {
		return nil, nil
	}
	q, err := p.openGroups(1, capacity, 1)
	if err != nil {
		return nil, err
	}
	vs := numbered(n)
	return &contestant{func(c *measure.Clock) error {
		c.Start()
		err := q.produce(vs)
		c.Stop(n)
		k := newOrder(p.arrivalOf(inSequence), c.Every, n)
		return errors.Join(err, q.consume[0](k, n), together(n, k))
	}, q.close}, nil
}

func consumeSide(p peer, n int) (*contestant, error) {
	if p.direct || p.live || p.batches {
		return nil, nil
	}
	q, err := p.openGroups(1, capacity, 1)
	if err != nil {
		return nil, err
	}
	vs := numbered(n)
	return &contestant{func(c *measure.Clock) error {
		err := q.produce(vs)
		k := newOrder(p.arrivalOf(inSequence), c.Every, n)
		c.Start()
		err = errors.Join(err, q.consume[0](k, n))
		c.Stop(n)
		return errors.Join(err, together(n, k))
	}, q.close}, nil
}

func flowSide(size int) func(p peer, n int) (*contestant, error) {
	return func(p peer, n int) (*contestant, error) {
		if p.batches && size == 1 {
			return nil, nil
		}
		q, err := p.openGroups(1, capacity, size)
		if err != nil {
			return nil, err
		}
		vs := numbered(n)
		produce, consume := func() error { return q.produce(vs) }, q.consume[0]
		if size > 1 {
			if q.batch == nil || q.consumeBatch == nil {
				return nil, (&contestant{close: q.close}).end()
			}
			produce = func() error { return q.batch(vs, size) }
			consume = func(k *order, n int) error { return q.consumeBatch[0](k, n, size) }
		}
		return &contestant{func(c *measure.Clock) error {
			k := newOrder(p.arrivalOf(inSequence), c.Every, n)
			err := c.AtOnce(2, func(i int) error {
				if i == 0 {
					return produce()
				}
				return consume(k, n)
			})
			c.Stop(n)
			return errors.Join(err, together(n, k))
		}, q.close}, nil
	}
}

func fanoutSide(p peer, n int) (*contestant, error) {
	if p.batches {
		return nil, nil
	}
	q, err := p.openGroups(groups, capacity, atMost)
	if err != nil {
		return nil, err
	}
	vs := numbered(n)
	return &contestant{func(c *measure.Clock) error {
		seen := make([]*order, groups)
		for i := range seen {
			seen[i] = newOrder(p.arrivalOf(inSequence), c.Every, n)
		}
		err := c.AtOnce(1+groups, func(i int) error {
			if i == 0 {
				return q.produce(vs)
			}
			return q.consume[i-1](seen[i-1], n)
		})
		c.Stop(groups * n)
		for i, k := range seen {
			if one := together(n, k); one != nil {
				err = errors.Join(err, fmt.Errorf("consumer %d: %w", i, one))
			}
		}
		return err
	}, q.close}, nil
}

func keyedSide(p peer, n int) (*contestant, error) {
	if p.batches {
		return nil, nil
	}
	q, err := p.openKeyed(partitionCount, capacity)
	if err != nil {
		return nil, err
	}
	vs, shares := numbered(n), make([]int, partitionCount)
	for i := range shares {
		shares[i] = inPartition(i, n)
	}
	return &contestant{func(c *measure.Clock) error {
		seen := make([]*order, partitionCount)
		for i := range seen {
			seen[i] = newOrder(p.arrivalOf(ascending), c.Every, n)
		}
		err := c.AtOnce(1+partitionCount, func(i int) error {
			if i == 0 {
				return q.produce(vs)
			}
			return q.consume[i-1](seen[i-1], shares[i-1])
		})
		c.Stop(n)
		return errors.Join(err, together(n, seen...))
	}, q.close}, nil
}

// end closes what was opened.
func (c *contestant) end() error {
	if c.close == nil {
		return nil
	}
	return c.close()
}
