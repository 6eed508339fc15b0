package main

import (
	"context"
	"time"
)

var powerLoss = attack{
	name:  "power-loss",
	claim: "no event acknowledged at synced is lost, and none appears that was not sent",
	fault: "power loss at every operation on the disk: unsynced writes kept, lost, torn and reordered",
	limit: 4 * time.Minute,
	run: func(ctx context.Context, l *lab) (string, error) {
		return enumerate(ctx, l)
	},
}
