package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// idleLimit is the share of one core that idle consumers may use.
const idleLimit = 0.01

var idle = attack{
	name:  "idle",
	claim: "idle consumers use no CPU",
	fault: "64 running consumers in memory and 16 on disk with nothing to do, for three seconds",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		if _, err := cpuTime(); err != nil {
			return "", skip(err.Error())
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error)
		for _, c := range []queue.Config[int]{
			{Name: "idle", Partitions: 64},
			{Name: "idle", Partitions: 16, Dir: dir, Codec: penstock.JSON[int]()},
		} {
			topic, err := queue.Open(c)
			if err != nil {
				return "", err
			}
			defer func() { _ = topic.Close() }()
			g, err := topic.Group("idle", queue.GroupConfig{Consumers: c.Partitions, Linger: 50 * time.Millisecond})
			if err != nil {
				return "", err
			}
			first := make(chan struct{}, c.Partitions)
			// Runs the group until cancel; this function waits for it below.
			go func() {
				ended <- g.Run(ctx, func(context.Context, penstock.Batch[int]) error { first <- struct{}{}; return nil })
			}()
			for i := range c.Partitions { // every consumer has worked once
				if err := topic.Produce(ctx, i); err != nil {
					return "", err
				}
			}
			if err := await(ctx, first); err != nil {
				return "", err
			}
		}
		share, err := idleShare(ctx)
		cancel()
		err = errors.Join(err, <-ended, <-ended)
		if err == nil && share > idleLimit {
			err = fmt.Errorf("%.2f %% of one core, the limit is %.0f %%", 100*share, 100*idleLimit)
		}
		return fmt.Sprintf("%.3f %% of one core", 100*share), err
	},
}

// idleShare measures the share of one core that this process uses, the least
// of three times one second, since the machine may have other work.
func idleShare(ctx context.Context) (float64, error) {
	least := 1e9
	for range 3 {
		before, err := cpuTime()
		if err != nil {
			return 0, err
		}
		start := time.Now()
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		after, err := cpuTime()
		if err != nil {
			return 0, err
		}
		least = min(least, float64(after-before)/float64(time.Since(start)))
	}
	return least, nil
}
