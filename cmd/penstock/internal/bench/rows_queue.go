package bench

import (
	"fmt"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// The demands hold for the rows without a suffix: 8 bytes, 4 partitions, one
// group. Those of the channel are in the row, those of what one writes by hand
// here.
var (
	none = measure.Goal{}

	produceSingleHand = measure.Goal{Goal: 1.1}
	produceBatchHand  = measure.Goal{Goal: 0.5}
	consume10Hand     = measure.Goal{Goal: 1}
	consume100Batches = measure.Goal{Goal: 1.25}
	consume1kBatches  = measure.Goal{Goal: 2}
	flow100Swap       = measure.Goal{Goal: 0.95}
	flow1kBatches     = measure.Goal{Goal: 0.9}
)

// A workload of the queue rows, for every size of event and shape.
type workload struct {
	name   string
	text   string
	goal   measure.Goal
	narrow func(s layout, demanded bool) func(env) (pair, error)
	wide   func(s layout, demanded bool) func(env) (pair, error)
}

// of chooses the demand of a row with a suffix: none.
func of(demanded bool, g measure.Goal) measure.Goal {
	if demanded {
		return g
	}
	return none
}

const common = " The topic has the defaults and AutoCommit groups with one consumer each; the baseline is one channel per group, of capacity 8192, with one event per operation and as many goroutines. Every side checks the first and last event of each batch in the clock."

func workloads() (all []workload) {
	produce := func(batch bool, hand measure.Goal) workload {
		return workload{
			narrow: func(s layout, d bool) func(env) (pair, error) {
				return produceRow[measure.Word](s, batch, of(d, hand))
			},
			wide: func(s layout, d bool) func(env) (pair, error) {
				return produceRow[measure.Line](s, batch, of(d, hand))
			},
		}
	}
	single, batch := produce(false, produceSingleHand), produce(true, produceBatchHand)
	single.name, single.goal = "produce/single", measure.Goal{Must: 1.5, Goal: 1.9}
	single.text = "In the clock: 8192 calls of Produce with one event, one producer. The topic is kept; before the clock everything is committed, after it every group drains and is checked. An event is one produced event." + common
	batch.name, batch.goal = "produce/batch", measure.Goal{Must: 15, Goal: 20}
	batch.text = "In the clock: one call of Produce with 8192 events. Otherwise as produce/single." + common
	all = append(all, single, batch)
	for _, c := range []struct {
		n             int
		goal          measure.Goal
		hand, batches measure.Goal
	}{
		{1, measure.Goal{Must: 3, Goal: 3.9}, none, none},
		{10, measure.Goal{Goal: 20}, consume10Hand, none},
		{100, measure.Goal{Must: 60, Goal: 69}, none, consume100Batches},
		{1000, measure.Goal{Must: 150, Goal: 200}, none, consume1kBatches},
	} {
		all = append(all, workload{
			name: fmt.Sprint("consume/b", c.n), goal: c.goal,
			text: fmt.Sprintf("A fresh topic, filled with 8192 events before the clock. In it: TryPull of at most %d until all came, one group after the other. An event is one delivered event.", c.n) + common,
			narrow: func(s layout, d bool) func(env) (pair, error) {
				return consumeRow[measure.Word](s, c.n, of(d, c.hand), of(d, c.batches))
			},
			wide: func(s layout, d bool) func(env) (pair, error) {
				return consumeRow[measure.Line](s, c.n, of(d, c.hand), of(d, c.batches))
			},
		})
	}
	for _, c := range []struct {
		n             int
		goal          measure.Goal
		swap, batches measure.Goal
	}{
		{1, measure.Goal{Must: 2.5, Goal: 3}, none, none},
		{100, none, flow100Swap, none},
		{1000, none, none, flow1kBatches},
	} {
		all = append(all, workload{
			name: fmt.Sprint("flow/b", c.n), goal: c.goal,
			text: fmt.Sprintf("A fresh topic of capacity 8192. In the clock, which starts when all goroutines stand at the line: a goroutine calls Produce with %d events until 8192 are in, and per group a goroutine calls Pull with BatchMax %[1]d until all came. An event is one delivered event. Allocations are those of a second lap on one topic.", c.n) + common,
			narrow: func(s layout, d bool) func(env) (pair, error) {
				return flowRow[measure.Word](s, c.n, of(d, c.swap), of(d, c.batches))
			},
			wide: func(s layout, d bool) func(env) (pair, error) {
				return flowRow[measure.Line](s, c.n, of(d, c.swap), of(d, c.batches))
			},
		})
	}
	return all
}

// queueRows are the workloads in all variants: events of 8 and of 64 bytes, 4
// partitions and one, one group and four. The first of each has no suffix.
func queueRows() (rows []row) {
	for _, w := range workloads() {
		for _, size := range []string{"", "/64B"} {
			for _, s := range []layout{{partitions, 1}, {1, 1}, {partitions, 4}, {1, 4}} {
				suffix := size
				if s.partitions == 1 {
					suffix += "/p1"
				}
				if s.groups > 1 {
					suffix += "/g4"
				}
				open, demanded := w.narrow, suffix == ""
				if size != "" {
					open = w.wide
				}
				bytes := map[string]string{"": "8 bytes", "/64B": "64 bytes"}[size]
				rows = append(rows, row{
					name: "queue/" + w.name + suffix, baseline: "chan", events: queueEvents, steady: true,
					goal: of(demanded, w.goal), open: open(s, demanded),
					text: fmt.Sprintf("%s events, partitions: %d, groups: %d. ", bytes, s.partitions, s.groups) + w.text,
				})
			}
		}
	}
	return rows
}

func sharedRows() []row {
	const text = " events. Four producers, each in a goroutine, call Produce with one event at a time on one topic with 4 partitions and capacity 8192; the clock runs from when all stand at the line until the last has ended. Baseline: four goroutines send to one channel of capacity 8192. After the clock everything is taken out and checked."
	return []row{
		{
			name: "queue/produce/shared", baseline: "chan", events: queueEvents, steady: true, text: "8 bytes" + text,
			goal: measure.Goal{Goal: 1.5}, open: produceShared[measure.Word](4, partitions),
		},
		{
			name: "queue/produce/shared/64B", baseline: "chan", events: queueEvents, steady: true, text: "64 bytes" + text,
			open: produceShared[measure.Line](4, partitions),
		},
	}
}

func manyRows() (rows []row) {
	for _, c := range []struct {
		name       string
		partitions int
		batch      int
		goal, swap measure.Goal
	}{
		{"4to1/b1", 1, 1, measure.Goal{Goal: 2}, measure.Goal{Goal: 1}},
		{"4to1/b100", 1, 100, none, none},
		{"4to1/b1000", 1, 1000, none, none},
		{"4to4/b1", 4, 1, none, measure.Goal{Goal: 1.5}},
		{"4to4/b100", 4, 100, none, none},
		{"4to4/b1000", 4, 1000, none, none},
	} {
		rows = append(rows, row{
			name: "queue/flow/" + c.name, baseline: "chan", events: queueEvents, steady: true, goal: c.goal,
			text: fmt.Sprintf("8 bytes. Four producers and %d consumers of one group, each in a goroutine, on a fresh topic with %[1]d partitions and capacity 8192; calls of Produce and Pull with %d events. The clock starts when all stand at the line. Baseline: as many goroutines on one channel of capacity 8192; the slices behind a mutex are one per consumer, and the producers' calls take turns.", c.partitions, c.batch),
			open: manyRow[measure.Word](4, c.partitions, c.batch, c.swap, none),
		})
	}
	return rows
}

func routingRows() (rows []row) {
	for _, c := range []struct {
		name, text string
		published  float64
		configure  func(c *queue.Config[measure.Word], k keys)
	}{
		{"numeric", "NumericRouter on an int key", 15.81 / 17.02, func(c *queue.Config[measure.Word], k keys) {
			c.Router = queue.NumericRouter(k.number)
		}},
		{"hash", "Config.Key with a string key of 13 bytes: the hash of the whole key", 0, func(c *queue.Config[measure.Word], k keys) {
			c.Key = k.name
		}},
		{"prefix", "PrefixRouter on a string key: its first four characters, as BufferQueue does", 15.81 / 17.50, func(c *queue.Config[measure.Word], k keys) {
			c.Router = queue.PrefixRouter(k.name)
		}},
		{"custom", "RouterFunc on a key of two numbers", 15.81 / 17.11, func(c *queue.Config[measure.Word], k keys) {
			c.Router = queue.RouterFunc("region and number", k.custom)
		}},
	} {
		rows = append(rows, row{
			name: "queue/routing/" + c.name, baseline: "round robin", events: queueEvents, steady: true, published: c.published,
			text: "One producer, 8 partitions, 1024 keys, one event per call: " + c.text + ". Baseline: the same topic without a router. The topic is kept; after the clock everything is pulled, and events of one key must share a partition. A ratio of 0.9 means that routing makes a call 11 % longer.",
			open: routingRow(c.configure),
		})
	}
	return rows
}

func idleRows() []row {
	return []row{
		{
			name: "queue/idle/processor", baseline: "goroutines that wait on a channel", events: waiters, open: idleProcessor,
			text: "1000 topics, each with a consumer that waits in Pull; the processor time of the whole process while nothing comes, in nanoseconds per consumer and second. Baseline: 1000 goroutines that wait on a channel. Both are mostly what the runtime needs for itself.",
		},
		{
			name: "queue/idle/flow", baseline: "the same topic alone", events: queueEvents, open: idleFlow, goal: measure.Goal{Goal: 0.9},
			text: "queue/flow/b100 while the consumers of 1000 other topics wait. Baseline: the same without them. 1 means that waiting consumers cost the busy topic nothing.",
		},
	}
}

// seedRows repeat BufferQueue's own rows; the published ratios are its authors',
// to their channel, on an Apple M2 Max with 12 cores and .NET 10.
func seedRows() (rows []row) {
	for _, c := range []struct {
		name      string
		bounded   bool
		batch     bool
		published float64
	}{
		{"unbounded/single", false, false, 301.7 / 334.5},
		{"unbounded/batch", false, true, 7.66},
		{"bounded/single", true, false, 300.4 / 365.3},
		{"bounded/batch", true, true, 7.63},
	} {
		rows = append(rows, row{
			name: "queue/bufferqueue/produce/" + c.name, baseline: "chan", events: queueEvents, published: c.published, goal: measure.Goal{Goal: c.published},
			text: "BufferQueue's benchmark of producing: producers and partitions as many as processors, 8192 numbers in equal parts. In the clock: opening the topic, starting a goroutine per producer, their end. Single is a call per number, batch a call per producer; bounded is capacity 8192. Baseline: the same goroutines, one new channel with room for all, a send with default per number. The goal is their own ratio to their channel.",
			open: seedProduce(c.bounded, c.batch),
		})
	}
	for _, c := range []struct {
		bounded   bool
		batch     int
		published float64
	}{
		{false, 1, 3.86}, {false, 10, 0}, {false, 100, 68.72}, {false, 1000, 102.61},
		{true, 1, 2.82}, {true, 10, 0}, {true, 100, 40.01}, {true, 1000, 59.28},
	} {
		name := "unbounded"
		if c.bounded {
			name = "bounded"
		}
		rows = append(rows, row{
			name:     fmt.Sprintf("queue/bufferqueue/consume/%s/b%d", name, c.batch),
			baseline: "chan with a shared countdown", events: queueEvents, published: c.published, goal: measure.Goal{Goal: c.published},
			text: fmt.Sprintf("BufferQueue's benchmark of consuming: 8192 numbers produced one by one before the clock; in it as many consumers of one group as processors pull at most %d at a time until each has its part. Baseline: as many goroutines receive from one channel and count down together, one shared step per number, as in the original; beside it without that. The goal is their own ratio to their channel.", c.batch),
			open: seedConsume(c.bounded, c.batch),
		})
	}
	return rows
}

// latencyRows: an event per millisecond. The first quarter of each iteration is
// dropped.
func latencyRows() []row {
	const events = 500
	return []row{
		{
			name: "latency/queue/parked", baseline: "parked chan", events: events, open: latencyParked,
			goal: measure.Goal{Goal: 1 / 1.5}, tail: [2]measure.Goal{{Goal: 1 / 1.5}, {Goal: 1 / 2.0}},
			text: "A topic with 4 partitions and a group that is Run with a handler; one event per millisecond; a sample is the time from before Produce to the handler's first line. Baseline: the same through a channel to a goroutine that waits on it. The first quarter of each round is dropped. ns_per_event is the median over rounds of the round's median.",
		},
		{
			name: "latency/queue/spin", baseline: "polled chan", events: events, open: latencySpin,
			text: "As latency/queue/parked, but the consumer calls TryPull again and again and never waits. Baseline: a goroutine that polls a channel in the same way.",
		},
	}
}
