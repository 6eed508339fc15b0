package queue_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// numbered returns the events [from, to) of a partition.
func numbered(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf("event %d", i))
	}
	return all
}

// TestPullAfterAReadErrorGivesNoEmptyValues: a fill that failed left the window
// of before in place, whose values it had cleared: the next pull that was small
// enough gave those, and its commit lost the events.
func TestPullAfterAReadErrorGivesNoEmptyValues(t *testing.T) {
	for _, auto := range []bool{false, true} {
		t.Run(fmt.Sprintf("auto=%v", auto), func(t *testing.T) {
			m := vfs.NewMem()
			topic, g := openKeyed(t, keyedOnDisk("data", m), queue.GroupConfig{AutoCommit: auto})
			defer closeTopic(t, topic)
			for _, v := range numbered(0, 300) {
				produce(t, topic, v)
			}
			c := g.Consumer(0)
			take := func(from, to int) {
				t.Helper()
				if diff := cmp.Diff(numbered(from, to), pull(t, c, to-from)); diff != "" {
					t.Fatalf("pulled (-want +got):\n%s", diff)
				}
				if !auto {
					commit(t, c)
				}
			}
			take(0, 100)
			take(100, 190) // some of the window are left, fewer than the next pull asks for
			m.SetFault(func(op vfs.Op) vfs.Fault {
				if op.Kind == vfs.OpRead {
					return vfs.Fault{Err: errDisk}
				}
				return vfs.Fault{}
			})
			_, _, err := c.TryPull(100)
			wantErr(t, err, errDisk)
			m.SetFault(nil)
			take(190, 195)
			take(195, 200)
			take(200, 300)
		})
	}
}
