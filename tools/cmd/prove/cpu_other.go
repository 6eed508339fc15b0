//go:build !unix

package main

import (
	"errors"
	"time"
)

// cpuTime is not known here.
func cpuTime() (time.Duration, error) {
	return 0, errors.New("the processor time of a process is only measured on unix")
}
