//go:build unix

package queue_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/queue"
)

// cpu returns the processor time that the process has used.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestWaitingConsumerDoesNotSpin_QC40 lets a consumer wait for a second of real
// time. The case says 5 ms; the guard is ten times as wide, because the
// runtime and the race detector work too, and a spinning consumer would use a
// thousand.
func TestWaitingConsumerDoesNotSpin_QC40(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 3})
		c := group(t, topic, "g", queue.GroupConfig{}).Consumer(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		before := cpu(t)
		_, err := c.Pull(ctx)
		used := cpu(t) - before
		wantErr(t, err, context.DeadlineExceeded)
		if used > 50*time.Millisecond {
			t.Errorf("a second of waiting used %v of processor time", used)
		}
	})
}
