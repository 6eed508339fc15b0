package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/asaskevich/EventBus"
	"github.com/cskr/pubsub/v2"
)

// Publish and subscribe inside a process: every subscriber sees every event.

const topic = "bench"

// topicOf names the topic that stands in for a partition.
func topicOf(partition int) string { return fmt.Sprint(topic, partition) }

// GoChannel sends each message from goroutines of its own, one after another
// only if Publish waits for every acknowledgement; by default it does not.
var goChannel = peer{
	name: "watermill GoChannel", module: "github.com/ThreeDotsLabs/watermill", lacks: "order (unless every Publish waits for the acknowledgement), types, backpressure, groups with members, partitions, replay with order",
	unordered: true, live: true,
	open: func(groups, capacity, _ int) (*conn, error) {
		return openGoChannel(groups, capacity, func(int) string { return topic }, func(int) string { return topic })
	},
	keyed: func(partitions, capacity int) (*conn, error) {
		return openGoChannel(partitions, capacity, topicOf, func(v int) string { return topicOf(partitionOf(v)) })
	},
}

func openGoChannel(subscribers, capacity int, subscribed, published func(int) string) (*conn, error) {
	ps := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: int64(capacity)}, watermill.NopLogger{})
	newMessage := func(v int) *message.Message {
		return message.NewMessage(watermill.NewUUID(), binary.LittleEndian.AppendUint64(nil, uint64(v)))
	}
	q := &conn{
		produce: func(events []int) error {
			for _, v := range events {
				if err := ps.Publish(published(v), newMessage(v)); err != nil {
					return err
				}
			}
			return nil
		},
		batch: func(events []int, n int) error {
			for rest := events; len(rest) > 0; {
				part := rest[:min(n, len(rest))]
				rest = rest[len(part):]
				batch := make([]*message.Message, len(part))
				for i, v := range part {
					batch[i] = newMessage(v)
				}
				if err := ps.Publish(topic, batch...); err != nil {
					return err
				}
			}
			return nil
		},
		close: ps.Close,
	}
	for i := range subscribers {
		messages, err := ps.Subscribe(context.Background(), subscribed(i))
		if err != nil {
			return nil, errors.Join(err, ps.Close())
		}
		take := func(k *order, n int) error {
			for range n {
				m := <-messages
				k.see(int(binary.LittleEndian.Uint64(m.Payload)))
				m.Ack()
			}
			return nil
		}
		q.consume = append(q.consume, take)
		q.consumeBatch = append(q.consumeBatch, func(k *order, n, _ int) error { return take(k, n) })
	}
	return q, nil
}

var pubSub = peer{
	name: "cskr/pubsub", module: "github.com/cskr/pubsub/v2", lacks: "independent subscribers (a slow one stops all), members of a group, partitions, batches, replay, a commit",
	open: func(groups, capacity, _ int) (*conn, error) {
		return openPubSub(groups, capacity, func(int) string { return topic }, func(int) string { return topic })
	},
	keyed: func(partitions, capacity int) (*conn, error) {
		return openPubSub(partitions, capacity, topicOf, func(v int) string { return topicOf(partitionOf(v)) })
	},
}

func openPubSub(subscribers, capacity int, subscribed, published func(int) string) (*conn, error) {
	ps := pubsub.New[string, int](capacity)
	q := &conn{
		produce: func(events []int) error {
			for _, v := range events {
				ps.Pub(v, published(v))
			}
			return nil
		},
	}
	var all []chan int
	for i := range subscribers {
		ch := ps.Sub(subscribed(i))
		all = append(all, ch)
		q.consume = append(q.consume, func(k *order, n int) error { return receive(ch, k, n) })
	}
	q.close = func() error {
		ps.Shutdown()
		for _, ch := range all { // they are closed by its goroutine, which then ends
			for range ch {
			}
		}
		return nil
	}
	return q, nil
}

// An EventBus has no queue: Publish calls the subscribers, under a lock.
var eventBus = peer{
	name: "asaskevich/EventBus", module: "github.com/asaskevich/EventBus", lacks: "a queue (Publish runs the handlers, under a lock), types, backpressure, partitions, batches, replay, a commit, errors of handlers",
	direct: true,
	open: func(groups, _, _ int) (*conn, error) {
		return openBus(groups, func(int) string { return topic }, func(int) string { return topic })
	},
	keyed: func(partitions, _ int) (*conn, error) {
		return openBus(partitions, topicOf, func(v int) string { return topicOf(partitionOf(v)) })
	},
}

// A listener is a handler of a bus. A consumer gives it an order to fill and
// waits.
type listener struct {
	start chan listening
	now   listening
	done  chan struct{}
}

type listening struct {
	k    *order
	left int
}

func (l *listener) handle(v int) {
	if l.now.left == 0 {
		l.now = <-l.start
	}
	l.now.k.see(v)
	if l.now.left--; l.now.left == 0 {
		l.done <- struct{}{}
	}
}

func openBus(subscribers int, subscribed, published func(int) string) (*conn, error) {
	bus := EventBus.New()
	q := &conn{
		produce: func(events []int) error {
			for _, v := range events {
				bus.Publish(published(v), v)
			}
			return nil
		},
	}
	for i := range subscribers {
		l := &listener{start: make(chan listening, 1), done: make(chan struct{}, 1)}
		if err := bus.Subscribe(subscribed(i), l.handle); err != nil {
			return nil, err
		}
		q.consume = append(q.consume, func(k *order, n int) error {
			l.start <- listening{k, n}
			<-l.done
			return nil
		})
	}
	return q, nil
}
