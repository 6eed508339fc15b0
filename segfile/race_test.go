//go:build race

package segfile

// raceEnabled thins out the crash enumeration: the race detector makes it some
// ten times slower, and what it enumerates does not depend on it.
const raceEnabled = true
