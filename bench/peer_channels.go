package main

import (
	"context"

	"github.com/eapache/channels"
	"github.com/puzpuzpuz/xsync/v4"
	"github.com/smallnest/chanx"

	"runtime"
)

// Queues that are used like a channel: one event per operation, for one group.

var infinite = peer{
	name: "eapache/channels Infinite", module: "github.com/eapache/channels", lacks: "types, backpressure (it grows without bound), groups, partitions, batches, replay, a commit",
	open: func(groups, _, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		ch := channels.NewInfiniteChannel()
		return &conn{
			produce: func(events []int) error {
				in := ch.In()
				for _, v := range events {
					in <- v
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error {
				out := ch.Out()
				for range n {
					k.see((<-out).(int))
				}
				return nil
			}},
			close: func() error {
				ch.Close()
				for range ch.Out() { // its goroutine ends with the channel
				}
				return nil
			},
		}, nil
	},
}

var unbounded = peer{
	name: "smallnest/chanx", module: "github.com/smallnest/chanx", lacks: "backpressure (it grows without bound), groups, partitions, batches, replay, a commit",
	open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		ch := chanx.NewUnboundedChan[int](context.Background(), capacity)
		return &conn{
			produce: func(events []int) error {
				for _, v := range events {
					ch.In <- v
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error { return receive(ch.Out, k, n) }},
			close: func() error {
				close(ch.In)
				for range ch.Out { // its goroutine ends with the channel
				}
				return nil
			},
		}, nil
	},
}

// The ring of xsync does not wait: who finds it full or empty yields and tries
// again, and uses a core meanwhile.
var ring = peer{
	name: "xsync SPSCQueue", module: "github.com/puzpuzpuz/xsync/v4", lacks: "waiting (callers spin), several producers or consumers, groups, partitions, batches, replay, a commit",
	open: func(groups, capacity, _ int) (*conn, error) {
		if groups > 1 {
			return nil, nil
		}
		q := xsync.NewSPSCQueue[int](capacity)
		return &conn{
			produce: func(events []int) error {
				for _, v := range events {
					for !q.TryEnqueue(v) {
						runtime.Gosched()
					}
				}
				return nil
			},
			consume: []func(*order, int) error{func(k *order, n int) error {
				for range n {
					v, ok := q.TryDequeue()
					for !ok {
						runtime.Gosched()
						v, ok = q.TryDequeue()
					}
					k.see(v)
				}
				return nil
			}},
		}, nil
	},
}
