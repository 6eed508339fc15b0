//go:build race

package stream

// raceEnabled: the race detector makes tests that try every order ten times as
// slow, so they try a part of them.
const raceEnabled = true
