package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/penstock/penstock/tools/internal/verdict"
)

var killDemo = attack{
	name:  "kill-demo",
	claim: "every acknowledged event reaches every group, or the dead letters, in the order of its key",
	fault: "kill -9 of the node, four times at random moments, under load",
	run: func(ctx context.Context, l *lab) (string, error) {
		binary, err := l.binary()
		if err != nil {
			return "", err
		}
		run := verdict.Run{Binary: binary, For: 12 * time.Second, Crashes: 4, Seed: rand.Uint64N(1 << 32)}
		v, err := run.Do(ctx)
		if err != nil {
			return "", err
		}
		duplicates := uint64(0)
		for _, g := range v.Groups {
			duplicates += g.Duplicates
		}
		return fmt.Sprintf("seed %d: %d produced, %d groups, %d crashes, 0 lost, 0 out of order, %d duplicates, %.0f MiB",
			run.Seed, v.Produced, len(v.Groups), v.Crashes, duplicates, v.RSSMaxMiB), nil
	},
}
