package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

const slowEvents = 20_000

var slowGroup = attack{
	name:  "slow-group",
	claim: "a slow group does not hold another group",
	fault: "a handler that blocks on its first batch, in memory and on disk",
	run: func(ctx context.Context, l *lab) (string, error) {
		dir, err := l.dir()
		if err != nil {
			return "", err
		}
		for name, c := range map[string]queue.Config[int]{
			"memory": {Name: "slow", Partitions: 4},
			"disk":   {Name: "slow", Partitions: 4, Dir: dir, Codec: penstock.JSON[int](), Durability: penstock.Written},
		} {
			if err := outrun(ctx, c); err != nil {
				return "", fmt.Errorf("%s: %w", name, err)
			}
		}
		return fmt.Sprintf("the fast group settled %d events while the slow one held its first batch; the slow one got all afterwards", slowEvents), nil
	},
}

// outrun lets one group block until the other has settled everything.
func outrun(ctx context.Context, c queue.Config[int]) error {
	topic, err := queue.Open(c)
	if err != nil {
		return err
	}
	defer func() { _ = topic.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	release := make(chan struct{})
	var fast, slow atomic.Int64
	fastDone, slowDone := make(chan struct{}), make(chan struct{})
	groups := map[string]penstock.Handler[int]{
		"fast": func(_ context.Context, b penstock.Batch[int]) error {
			if fast.Add(int64(b.Len())) == slowEvents {
				close(fastDone)
			}
			return nil
		},
		"slow": func(ctx context.Context, b penstock.Batch[int]) error {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
			if slow.Add(int64(b.Len())) == slowEvents {
				close(slowDone)
			}
			return nil
		},
	}
	ended := make(chan error, len(groups))
	for name, handler := range groups {
		g, err := topic.Group(name, queue.GroupConfig{Drain: time.Second})
		if err != nil {
			return err
		}
		// Runs the group until ctx ends; this function waits for it below.
		go func() { ended <- g.Run(ctx, handler) }()
	}
	for i := range slowEvents {
		if err := topic.Produce(ctx, i); err != nil {
			return err
		}
	}
	if err := await(ctx, fastDone); err != nil {
		return fmt.Errorf("the fast group settled %d of %d: %w", fast.Load(), slowEvents, err)
	}
	if n := slow.Load(); n != 0 {
		return fmt.Errorf("the slow group settled %d events while it was held", n)
	}
	close(release)
	if err := await(ctx, slowDone); err != nil {
		return fmt.Errorf("the slow group settled %d of %d: %w", slow.Load(), slowEvents, err)
	}
	cancel()
	var errs []error
	for range groups {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// await waits for done, for as long as ctx lives.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
