// Package demo drives a node, kills it, and judges what it did.
//
// The driver is the process that survives. It starts the node as a child of
// the same binary, produces numbered events over the node's HTTP edge, takes a
// report of every event that a handler took, plays the partner behind the
// webhook group, is the consumer across a connection of the node's streams, kills
// the node when told to, and at the end lets package judge decide. Nothing of the verdict comes from the node.
//
// # One run
//
//	start the node -> produce (and kill, restart) -> wait for every answer
//	-> kill what is still owed -> drain -> stop the node -> judge
//
// Every wait has a deadline; when one passes, the run ends with what was seen
// and the verdict says what is missing.
//
// # Who sends what
//
// Events are spread over lanes by their key. A lane has at most one
// unanswered request, so a key has at most one too, and the order in which a
// key's events were acknowledged is the order of their ids. A request that
// was not answered is repeated with the same ids, also to the next node,
// until it is. Ids are in the journal before they leave.
//
// # Goroutines
//
//	generator   makes events at the rate and hands them to lanes; ended by Run
//	lane (8)    sends; ends when the generator has closed its queue, or the run is given up
//	crasher     kills and restarts the node; ended by Run
//	watcher     polls the node's stats and writes the status; ended by Run
//	far         connects to each node and takes the events of its streams; ended by Run
//	hub         HTTP server of reports and webhook calls; shut down by Run
//	child       waits for the node process; ends with it
//
// Run starts them and returns after all of them have.
package demo
