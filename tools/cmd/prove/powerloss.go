package main

import (
	"context"
	"fmt"
	"time"
)

// powerTests are the enumerations, by package. They run over the crashing file
// system of internal/vfs, below the real code: a power loss is simulated at
// every operation, with everything that may then be on the disk.
var powerTests = []struct {
	pkg   string
	names []string
}{
	{"./segfile", []string{
		"TestNothingAcknowledgedIsLostByPowerLossAnywhere",
		"TestKilledThenPowerLossKeepsWhatRecoveryServed",
		"TestWhatAKilledProcessLeftUnsyncedIsSyncedBeforeItIsBuiltOn",
		"TestEveryOperationFailsInTurn",
		"TestFailedSyncIsStickyAndNeverRepeated",
	}},
}

var powerLoss = attack{
	name:  "power-loss",
	claim: "no event acknowledged at synced is lost, and none appears that was not sent",
	fault: "power loss at every operation on the disk (simulated): unsynced writes kept, lost, torn and reordered; and every operation failing in turn",
	limit: 8 * time.Minute,
	run: func(ctx context.Context, l *lab) (string, error) {
		n := 0
		for _, p := range powerTests {
			if err := l.test(ctx, ".", p.pkg, p.names...); err != nil {
				return "", err
			}
			n += len(p.names)
		}
		return fmt.Sprintf("%d enumerations passed", n), nil
	},
}
