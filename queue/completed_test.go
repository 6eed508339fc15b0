package queue_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// TestCompletionsOfRunDoNotOutliveAnotherUse: Run stores what it completed
// beyond the commit as bits relative to that commit. When the group is pulled
// or read ahead after a restart, its commits must not keep those bits beside a
// newer position: a later Run would skip events that nobody has seen.
func TestCompletionsOfRunDoNotOutliveAnotherUse(t *testing.T) {
	uses := map[string]func(t *testing.T, g *queue.Group[int]) error{
		"consumer": func(t *testing.T, g *queue.Group[int]) error {
			want(t, pull(t, g.Consumer(0), 2), 0, 1) // a pull begins at the commit
			return g.Consumer(0).Commit()
		},
		"batch": func(t *testing.T, g *queue.Group[int]) error {
			b, err := g.Consumer(0).Pull(t.Context())
			if err != nil {
				return err
			}
			want(t, slices.Clone(b.Values()), 0, 1)
			return b.Commit()
		},
		"automatic": func(t *testing.T, g *queue.Group[int]) error {
			want(t, pull(t, g.Consumer(0), 2), 0, 1)
			return nil
		},
		"reader": func(t *testing.T, g *queue.Group[int]) error {
			r, err := g.Reader(0)
			if err != nil {
				return err
			}
			b, _, err := r.Read(2)
			if err != nil {
				return err
			}
			want(t, slices.Clone(b.Values()), 0, 1)
			return r.Commit(2)
		},
	}
	for name, use := range uses {
		for _, how := range []string{"topic", "group"} {
			t.Run(name+", reopened "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := queue.Config[int]{Name: "topic", Dir: t.TempDir(), Codec: penstock.JSON[int]()}
					topic := openDisk(t, c)
					gc := queue.GroupConfig{
						Drain: time.Second, BatchMax: 2,
						OnFail: queue.Block, Retry: settle.Policy{Backoff: settle.Backoff{Min: time.Hour, Max: time.Hour}},
					}
					g := group(t, topic, "g", gc)
					reopen := func(c2 queue.GroupConfig) {
						t.Helper()
						if err := g.Close(); err != nil {
							t.Fatal(err)
						}
						if how == "topic" {
							if err := topic.Close(); err != nil {
								t.Fatal(err)
							}
							topic = openDisk(t, c)
						}
						g = group(t, topic, "g", c2)
					}
					produce(t, topic, seq(0, 8)...)
					gc.BatchMax = 8
					reopen(gc)
					run := startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
						for i, v := range b.All() {
							if v == 0 || v == 3 {
								b.Fail(i, errHandler)
							}
						}
						return nil
					})
					synctest.Wait()
					_ = run.stop() // 0 and 3 are left, the rest is completed

					reopen(queue.GroupConfig{BatchMax: 2, AutoCommit: name == "automatic"})
					if err := use(t, g); err != nil {
						t.Fatal(err)
					}

					reopen(queue.GroupConfig{})
					var got []int
					run = startRun(t, g, func(_ context.Context, b penstock.Batch[int]) error {
						got = append(got, b.Values()...)
						return nil
					})
					synctest.Wait()
					run.mustStop(t)
					if diff := cmp.Diff(seq(2, 8), got); diff != "" {
						t.Errorf("Run after a commit of another use: %s", diff)
					}
				})
			})
		}
	}
}
