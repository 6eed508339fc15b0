package bench

import "github.com/penstock/penstock/internal/measure"

// stageRows: source, gate, sink; numbered events; one graph per 200,000 events
// (5,000 for demand1) from its start to its end; demand 1000 and 750, so
// batches of 250, and 500 where the name says min500; the gate changes each
// event. The sinks look at the first and last event of each batch. Inside the
// clock: Run of the graph, the goroutines' start and end included, as for the
// baseline. What a ratio must and should reach stands in the row without /64B;
// that of min500 is the same work in batches of 500.
var stageRows = []row{
	{
		name: "stage/linear/batch", baseline: "chan of recycled batches", events: stageEvents, steady: true,
		open: linearBatch(narrow, byDefault), goal: measure.Goal{Must: 0.55, Goal: 0.55},
		text: "Source, gate, sink on int64 with batch callbacks, demand 1000/750; the gate changes its input in place and forwards it; both edges asynchronous, so three goroutines. Baseline: three goroutines and channels of recycled batches of 250. In the clock: the run of the graph from start to end.",
	},
	{
		name: "stage/linear/batch64B", baseline: "chan of recycled batches", events: stageEvents, steady: true,
		open: linearBatch(wide, byDefault),
		text: "As stage/linear/batch, with structs of 64 bytes.",
	},
	{
		name: "stage/linear/batch/min500", baseline: "chan of recycled batches", events: stageEvents, steady: true,
		open: linearBatch(narrow, minHalf), goal: measure.Goal{Goal: 0.6},
		text: "As stage/linear/batch, with demand 1000/500 and batches of 500.",
	},
	{
		name: "stage/linear/event", baseline: "chan per event", events: stageEvents, steady: true,
		open: linearEvent, goal: measure.Goal{Must: 5, Goal: 5},
		text: "int64; one call of Emit per event in the source, a Map helper with a function call per event on asynchronous edges, a loop in the sink that adds each event up. Baseline: three goroutines, two channels of capacity 1000, one operation per event and hop.",
	},
	{
		name: "stage/fused/event", baseline: "chan per event", events: stageEvents, steady: true,
		open: fusedEvent, goal: measure.Goal{Must: 6, Goal: 6},
		text: "As stage/linear/event, with Map and Filter fused with the sink; the filter passes all. Baseline: four goroutines, three channels.",
	},
	{
		name: "stage/demand1", baseline: "unbuffered chans of asks and events", events: fewEvents,
		open: demandOne, goal: measure.Goal{Must: 0.6, Goal: 0.6},
		text: "Demand 1 and 0 on both edges. Baseline: three goroutines, two hops of an unbuffered channel of asks and one of events each.",
	},
	{
		name: "stage/broadcast4", baseline: "chans of shared recycled batches", events: stageEvents, steady: true,
		open: broadcastRow(narrow, byDefault), goal: measure.Goal{Goal: 0.8},
		text: "Source, a gate that changes its input in place and broadcasts, four sinks, on int64, demand 1000/750: six goroutines. An event is one of the source's. Baseline: six goroutines; the gate sends each recycled batch of 250 to four channels, and the sink that is done with it last gives it back.",
	},
	{
		name: "stage/broadcast4/64B", baseline: "chans of shared recycled batches", events: stageEvents, steady: true,
		open: broadcastRow(wide, byDefault), text: "As stage/broadcast4, with structs of 64 bytes.",
	},
	{
		name: "stage/broadcast4/min500", baseline: "chans of shared recycled batches", events: stageEvents, steady: true,
		open: broadcastRow(narrow, minHalf), goal: measure.Goal{Goal: 0.8},
		text: "As stage/broadcast4, with demand 1000/500 and batches of 500.",
	},
	{
		name: "stage/partition4", baseline: "chans of recycled batches", events: stageEvents, steady: true,
		open: partitionRow(narrow, byDefault, true), goal: measure.Goal{Goal: 0.6},
		text: "Source, a gate that changes its input in place and divides it among four sinks by a function of the event, on int64, demand 1000/750: six goroutines. Baseline: six goroutines; the gate copies each event into a recycled batch of its sink and sends the four batches after each input of 250. The other baseline moves one event per channel operation.",
	},
	{
		name: "stage/partition4/64B", baseline: "chans of recycled batches", events: stageEvents, steady: true,
		open: partitionRow(wide, byDefault, false), text: "As stage/partition4, with structs of 64 bytes.",
	},
	{
		name: "stage/partition4/min500", baseline: "chans of recycled batches", events: stageEvents, steady: true,
		open: partitionRow(narrow, minHalf, false), goal: measure.Goal{Goal: 0.6},
		text: "As stage/partition4, with demand 1000/500 and inputs of 500.",
	},
}
