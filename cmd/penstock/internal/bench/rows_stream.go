package bench

import "github.com/penstock/penstock/internal/measure"

const (
	streamQueues = 8
	manyStreams  = 100_000
	fewStreams   = 100
)

// streamRows: a memory topic of containers with 8 queues, one provider that
// runs, one goroutine that publishes payloads of 8 bytes to the streams in
// turn, in containers of as many events as the name says, and subscriptions
// whose handlers count. Everything was subscribed, published to and delivered
// once before the clock. In the clock: publish all, wait until all is settled
// by every handler. Allocations are those of both sides of the topic.
func streamRows() []row {
	return []row{
		{
			name: "stream/deliver/b1", baseline: "queue, one group", events: 5_000, open: deliverRow(1, 1),
			text: "16 streams with one subscription each, one event per container. Baseline: a topic with 8 partitions and a group that is run, one event per request and per batch.",
		},
		{
			name: "stream/deliver/b100", baseline: "queue, one group", events: 200_000, open: deliverRow(100, 1),
			text: "16 streams with one subscription each, 100 events per container. Baseline: a topic with 8 partitions and a group that is run, 100 events per request, at most 100 per batch. The demand of 20 M events/s is 50 ns per event.",
		},
		{
			name: "stream/fanout4/b100", baseline: "queue, four groups", events: 100_000, open: deliverRow(100, 4),
			text: "As stream/deliver/b100 with four subscriptions per stream; an event counts once per subscription. Baseline: the same topic with four groups.",
		},
		{
			name: "stream/many/b1", baseline: "100 streams", events: 5_000, open: manyStreamsRow(1), goal: measure.Goal{Goal: 1 / 2.0},
			text: "100,000 streams with one subscription each, one event per container; each container goes to the next stream. Baseline: the same with 100 streams.",
		},
		{
			name: "stream/many/b100", baseline: "100 streams", events: 200_000, open: manyStreamsRow(100), goal: measure.Goal{Goal: 1 / 1.25},
			text: "As stream/many/b1, 100 events per container.",
		},
		{
			name: "latency/stream/parked", baseline: "parked chan", events: 500, open: latencyStream, goal: measure.Goal{Goal: 1 / 3.0},
			text: "A stream on a topic in memory with one subscription; one event per millisecond; a sample is the time from before Publish to the handler's first line. Baseline: the same through a channel to a goroutine that waits on it. The first quarter of each round is dropped.",
		},
	}
}
