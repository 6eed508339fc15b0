// Package queue is a partitioned queue for events of one type, read by any
// number of consumer groups at their own pace, in memory or on disk.
//
// # Words
//
// A [Topic] has partitions; order is kept inside a partition. Producers append
// events round robin, or by key. A consumer [Group] sees every event; its
// consumers share the partitions, and each partition belongs to one
// [Consumer]. A pull returns a [Batch], and a commit says that the group has
// finished with it. What is pulled and not committed is delivered again: at
// least once. With AutoCommit the commit comes first: at most once. The number
// of consumers may change while they work ([Group.Resize]).
//
// A key that fails for long under [Group.Run] is parked: its events move, in
// their order, to the retry log of the group, and the rest goes on. An event
// that is given up is a dead letter; [Redrive] sends it back.
//
// Capacity counts the events that some group has not committed. Commits give
// it back, pulls do not. A topic without a group gives none back.
//
// # Example
//
//	orders, err := queue.Open(queue.Config[Order]{Name: "orders", Partitions: 4, Capacity: 100_000})
//	billing, err := orders.Group("billing", queue.GroupConfig{BatchMax: 500})
//	err = orders.Produce(ctx, order)             // waits when the topic is full
//	for b, err := range billing.Consumer(0).Batches(ctx) {
//		if err != nil {
//			return err
//		}
//		if err := insert(ctx, b.Values()); err != nil {
//			return err                               // comes again
//		}
//		if err := b.Commit(); err != nil {
//			return err
//		}
//	}
//
// # Invariants
//
//   - Every accepted event is delivered to every group that was there, in
//     order inside its partition, until the group has committed it.
//   - Events that some group has not committed: at most Capacity, and one more
//     for the moment in which [Redrive] repeats a dead letter.
//   - A commit never goes back, and a late or second one changes nothing.
//   - An event that every group has finished with keeps nothing alive, without
//     waiting for another append. Up to 64 finished events of a partition may
//     wait for the next commit or pull, and what was readable when a group was
//     closed with a batch in hands may wait until its segment is dropped.
//   - A topic starts no goroutine, a [Buffer] one per request under way. Close
//     wakes everyone who waits.
//
// # Seeing it
//
// [Topic.Stats] and [Group.Stats] say how far everybody is and why a group does
// not move; [DebugHandler] shows that of all topics of the process.
package queue
