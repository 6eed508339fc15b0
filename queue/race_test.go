//go:build race

package queue_test

// raceEnabled: the race detector makes a sync.Pool throw away one of four
// things that are put back.
const raceEnabled = true
