package queue_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// cutLife runs a group with a handler on what m holds, and returns what a
// process that ends after d leaves behind. The end itself, which stores more, is
// not part of it.
func cutLife(t *testing.T, m *vfs.Mem, level penstock.Durability, c queue.GroupConfig, d time.Duration, h penstock.Handler[string], events ...string) *vfs.Mem {
	t.Helper()
	config := keyedOnDisk("data", m)
	config.Durability = level
	topic, err := queue.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTopic(t, topic)
	g, err := topic.Group("g", c)
	if err != nil {
		t.Fatal(err)
	}
	produce(t, topic, events...)
	run := startRun(t, g, h)
	time.Sleep(d)
	synctest.Wait()
	left := m.Clone()
	run.mustStop(t)
	return left
}

// In the first life a1 is done and a2 is parked, in the second a1 comes again
// and a2 after it, and each ends before it is stored that a1 is done. In the
// second the position is stored while a1 is in hand, with a2 as passed.
func TestEventDoesNotComeAgainBehindAParkedOneAfterTwoEndsOfTheProcess_PC10(t *testing.T) {
	for _, level := range levels {
		for _, name := range []string{"one worker", "two workers"} {
			t.Run(level.String()+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := queue.GroupConfig{BatchMax: 1, Drain: time.Second, Retry: parkPolicy()}
					first := handleWords(failUntil(2, "a2"))
					m := cutLife(t, vfs.NewMem(), level, c, 50*time.Millisecond, first.handle, "a1", "a2", "b1")
					first.want(t, "0s a1", "0s a2", "0s b1")

					fail := failUntil(2, "a1")
					h := func(ctx context.Context, w *words, b penstock.Batch[string]) error { return w.handle(ctx, b) }
					if c.OnFail = queue.Block; name == "two workers" {
						c.OnFail, c.Workers, fail = queue.ParkKey, 2, nil
						h = func(ctx context.Context, w *words, b penstock.Batch[string]) error {
							if slices.Contains(b.Values(), "a1") {
								time.Sleep(2 * time.Second)
							}
							return w.handle(ctx, b)
						}
					}
					second := handleWords(fail)
					m = cutLife(t, m, level, c, 2050*time.Millisecond, func(ctx context.Context, b penstock.Batch[string]) error { return h(ctx, second, b) })
					if name == "one worker" {
						second.want(t, "0s a1", "2s a1 2", "2s a2 2", "2s b1")
					} else {
						second.want(t, "0s b1", "2s a1", "2s a2 2")
					}

					third := handleWords(nil)
					cutLife(t, m, level, c, 3*time.Second, func(ctx context.Context, b penstock.Batch[string]) error { return h(ctx, third, b) })
					for _, call := range third.calls {
						if call[len(call)-2:] == "a1" {
							t.Errorf("a1 came again after a2: %v", third.calls)
						}
					}
				})
			})
		}
	}
}

// In the second life it cannot be stored that a1 is done: the run ends, and a2
// stays parked.
func TestParkedEventIsNotDeliveredWhenWhatIsBeforeItCannotBeStored_PC10(t *testing.T) {
	for _, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := queue.GroupConfig{BatchMax: 1, Drain: time.Second, Retry: parkPolicy()}
				m := cutLife(t, vfs.NewMem(), level, c, 50*time.Millisecond, handleWords(failUntil(2, "a2")).handle, "a1", "a2")

				c.OnFail = queue.Block
				config := keyedOnDisk("data", m)
				config.Durability = level
				topic, err := queue.Open(config)
				if err != nil {
					t.Fatal(err)
				}
				second := handleWords(failUntil(2, "a1"))
				run := startRun(t, group(t, topic, "g", c), second.handle)
				time.Sleep(time.Second)
				m.SetFault(func(op vfs.Op) vfs.Fault {
					if strings.Contains(op.Name, "g.slot") {
						return vfs.Fault{Err: errors.New("input/output error")}
					}
					return vfs.Fault{}
				})
				if err := run.wait(); err == nil {
					t.Error("Run ended without an error")
				}
				second.want(t, "0s a1", "2s a1 2")
				left := m.Clone()
				m.SetFault(nil)
				_ = topic.Close() // what could not be stored may be its error

				third := handleWords(nil)
				cutLife(t, left, level, c, 3*time.Second, third.handle)
				third.want(t, "0s a1", "0s a2 2")
			})
		})
	}
}
