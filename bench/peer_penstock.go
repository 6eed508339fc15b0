package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock/queue"
)

var ours = peer{
	name: "penstock", module: "github.com/penstock/penstock",
	open: func(groups, capacity, size int) (*conn, error) {
		return openPenstock(queue.Config[int]{Capacity: capacity}, groups, queue.GroupConfig{BatchMax: size})
	},
	keyed: func(partitions, capacity int) (*conn, error) {
		return openPenstock(queue.Config[int]{Capacity: capacity, Partitions: partitions, Key: keyOf}, 1,
			queue.GroupConfig{BatchMax: atMost, Consumers: partitions})
	},
}

// openPenstock opens a topic whose groups commit automatically. Without keys it
// has one partition, for its peers keep one order.
func openPenstock(c queue.Config[int], groups int, g queue.GroupConfig) (*conn, error) {
	c.Name, g.AutoCommit = "bench", true
	t, err := queue.Open(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	q := &conn{
		produce: func(events []int) error {
			for _, v := range events {
				if err := t.Produce(ctx, v); err != nil {
					return err
				}
			}
			return nil
		},
		batch: func(events []int, n int) error {
			for rest := events; len(rest) > 0; {
				part := rest[:min(n, len(rest))]
				rest = rest[len(part):]
				if err := t.Produce(ctx, part...); err != nil {
					return err
				}
			}
			return nil
		},
		close: func() error { cancel(); return t.Close() },
	}
	for i := range groups {
		group, err := t.Group(fmt.Sprint("group ", i), g)
		if err != nil {
			return nil, errors.Join(err, q.close())
		}
		for i := range max(1, g.Consumers) {
			consumer := group.Consumer(i)
			q.consume = append(q.consume, func(k *order, n int) error { return pull(ctx, consumer, k, n) })
			q.consumeBatch = append(q.consumeBatch, func(k *order, n, _ int) error { return pull(ctx, consumer, k, n) })
		}
	}
	return q, nil
}

// pull pulls until n events came, each time as many as the group's BatchMax.
func pull(ctx context.Context, consumer *queue.Consumer[int], k *order, n int) error {
	for k.count < n {
		b, err := consumer.Pull(ctx)
		if err != nil {
			return err
		}
		if vs := b.Values(); len(vs) == 1 {
			k.see(vs[0])
		} else if k.how == inSequence {
			k.run(vs)
		} else {
			for _, v := range vs {
				k.see(v)
			}
		}
	}
	return nil
}
