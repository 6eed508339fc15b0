// Package node is the process that the demo kills: a topic on disk with an
// HTTP edge in front and its groups behind it, put together from the library
// as a user would.
//
//	edge -> topic orders -+-> billing                  healthy
//	                      +-> emails                   slow
//	                      +-> webhook -> partner       fails at times; gives up into orders.dead
//	                      +-> feed -> streams -+-> subscription feed
//	                      |                    +-> subscription remote, whose handler is in the driver
//	                      +-> pipeline -> graph        a graph of stages per batch
//	topic orders.dead ----+-> report                   tells the driver what was given up
//
// Every handler reports what it took to the driver before it returns; what was
// reported and not committed when the node dies is delivered again.
//
// # Invariants
//
// The edge answers 202 only after the topic has the events at the level that
// the answer names. A handler returns nil only after the driver has noted its
// report. A stop ends in this order: the edge, the groups and the stream, the
// connection of the consumer that is elsewhere, the topics.
package node
