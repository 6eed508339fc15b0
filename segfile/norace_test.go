//go:build !race

package segfile

const raceEnabled = false
