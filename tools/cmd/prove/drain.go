package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"time"
)

var drain = attack{
	name:  "sigterm",
	claim: "SIGTERM stops taking in, drains up to the deadline, and the last line says what is left and that it will be replayed",
	fault: "SIGTERM to a node whose slow group has more than it can settle in time, then a restart",
	run: func(ctx context.Context, l *lab) (string, error) {
		if runtime.GOOS == "windows" {
			return "", skip("windows has no SIGTERM")
		}
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		const events = 2000
		c := nodeConfig{Dir: dir, Durability: "synced", Partitions: 2, Capacity: 10_000, SlowRate: 200, Drain: 2 * time.Second}
		n, err := l.startNode(ctx, c)
		if err != nil {
			return "", err
		}
		defer n.stop()
		a, err := n.post(ctx, "application/x-ndjson", lines(0, events))
		if err != nil || a.status != http.StatusAccepted {
			return "", fmt.Errorf("post: %d %s %w", a.status, a.body, err)
		}
		if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return "", err
		}
		start := time.Now()
		out, _ := n.wait() // the exit code of a cut drain is not 0
		took := time.Since(start)
		if took > c.Drain+5*time.Second {
			return "", fmt.Errorf("the node took %s, the deadline is %s", took, c.Drain)
		}
		last := lastLine(append(out, strings.Split(n.errors(), "\n")...))
		if !strings.Contains(last, "left") || !strings.Contains(last, "replay") && !strings.Contains(last, "again") {
			return "", fmt.Errorf("the last line does not say what is left: %q", last)
		}
		before := n.reported("emails")
		c.SlowRate = 100_000
		again, err := l.startNode(ctx, c)
		if err != nil {
			return "", err
		}
		defer again.stop()
		for before+again.reported("emails") < events {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return "", fmt.Errorf("the slow group settled %d and then %d of %d events: %w", before, again.reported("emails"), events, ctx.Err())
			}
		}
		return fmt.Sprintf("ended %.1f s after the signal; %d of %d settled before it, the rest after the restart; last line: %s", took.Seconds(), before, events, last), nil
	},
}

// lastLine returns the last line that is not blank.
func lastLine(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if s := strings.TrimSpace(lines[i]); s != "" {
			return s
		}
	}
	return ""
}
