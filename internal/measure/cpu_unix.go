//go:build unix

package measure

import (
	"syscall"
	"time"
)

// ProcessorTime returns the processor time that the process has used, user and
// system, and whether the system tells it.
func ProcessorTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
