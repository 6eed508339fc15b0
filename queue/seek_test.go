package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func wantPull(t testing.TB, c *queue.Consumer[int], max int, want ...int) {
	t.Helper()
	if diff := cmp.Diff(want, pull(t, c, max)); diff != "" {
		t.Errorf("pull (-want +got):\n%s", diff)
	}
}

func TestSeekMovesAPull(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Capacity: 10, WhenFull: queue.Fail, SegmentSize: 4})
		keeper := group(t, topic, "keeper", queue.GroupConfig{}).Consumer(0) // keeps what it has not committed
		g := group(t, topic, "g", queue.GroupConfig{})
		c := g.Consumer(0)
		produce(t, topic, seq(0, 10)...)
		wantPull(t, c, 4, 0, 1, 2, 3)
		commit(t, c)
		b, ok, err := c.TryPull(2)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		mustDo(t, g.SeekOffset(t.Context(), 0, 1)) // back, with 4 and 5 in hand
		wantCommitted(t, g, 1)
		if diff := cmp.Diff([]int{4, 5}, b.Values()); diff != "" {
			t.Errorf("what is in hand has changed: %s", diff)
		}
		mustDo(t, b.Commit()) // late: changes nothing
		wantErr(t, c.Commit(), queue.ErrNothingPulled)
		wantCommitted(t, g, 1)
		wantPull(t, c, 2, 1, 2)
		commit(t, c)
		mustDo(t, g.SeekOffset(t.Context(), 0, 8)) // forward
		wantPull(t, c, 5, 8, 9)
		commit(t, c)
		wantCommitted(t, g, 10)
		wait := start(t, func() error { _, err := c.Pull(t.Context()); return err })
		wait.blocked()
		mustDo(t, g.SeekOffset(t.Context(), 0, 9)) // wakes the pull
		mustDo(t, wait.wait())
		wantErr(t, topic.Produce(t.Context(), 10), penstock.ErrFull)
		for range 3 {
			if pull(t, keeper, 1) != nil {
				commit(t, keeper)
			}
		}
		produce(t, topic, 10, 11, 12) // the keeper's 3, no more and no less
		wantErr(t, topic.Produce(t.Context(), 13), penstock.ErrFull)
		for _, to := range []penstock.Offset{0, 2, 14} {
			err := g.SeekOffset(t.Context(), 0, to)
			wantErr(t, err, penstock.ErrOffsetOutOfRange)
			if err == nil || !strings.Contains(err.Error(), "[3, 13]") {
				t.Errorf("seek to %d: error %v does not name the range that is kept", to, err)
			}
		}
		mustDo(t, g.Seek(t.Context(), queue.Earliest))
		wantPull(t, c, 100, seq(3, 13)...)
		mustDo(t, g.Seek(t.Context(), queue.Latest))
		wantPull(t, c, 100)
		wantCommitted(t, g, 13)
		wantErr(t, g.SeekOffset(t.Context(), 1, 0), penstock.ErrInvalid)
		wantErr(t, g.Seek(t.Context(), 9), penstock.ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, g.SeekOffset(ctx, 0, 5), context.Canceled)
		mustDo(t, g.Close())
		wantErr(t, g.SeekOffset(t.Context(), 0, 5), penstock.ErrClosed)
	})
}

// A handler's return that comes after a seek moves nothing, also when it
// failed, and so do the retries that waited.
func TestSeekWhileTheHandlerRuns(t *testing.T) {
	for _, to := range []int{1, 7} {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprint(to, fails), func(t *testing.T) {
				bubble(t, func(t *testing.T, s storage) {
					topic := open(t, s, queue.Config[int]{Capacity: 100})
					group(t, topic, "keeper", queue.GroupConfig{})
					g := group(t, topic, "g", queue.GroupConfig{BatchMax: 2})
					produce(t, topic, seq(0, 9)...)
					var moved atomic.Bool
					r := record(func(_ context.Context, b penstock.Batch[int]) error {
						if b.Value(0) != 4 || moved.Load() {
							return nil
						}
						time.Sleep(time.Second)
						if fails {
							return errHandler
						}
						return nil
					})
					run := startRun(t, g, r.handle)
					time.Sleep(time.Millisecond)
					mustDo(t, g.SeekOffset(t.Context(), 0, penstock.Offset(to)))
					moved.Store(true)
					wantCommitted(t, g, penstock.Offset(to))
					time.Sleep(500 * time.Millisecond)
					wantCommitted(t, g, penstock.Offset(to)) // the handler still runs
					time.Sleep(time.Hour)
					run.mustStop(t)
					wantCommitted(t, g, 9)
					want := []handled{{0, seq(0, 2), 1}, {0, seq(2, 4), 1}, {0, seq(4, 6), 1}}
					for ; to < 9; to += 2 {
						want = append(want, handled{time.Second, seq(to, min(to+2, 9)), 1})
					}
					r.want(t, want...)
				})
			})
		}
	}
}

func TestSeekTimeFindsTheFirstEventAtOrAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		topic := open(t, s, queue.Config[int]{Partitions: 2, SegmentSize: 3})
		group(t, topic, "keeper", queue.GroupConfig{})
		g := group(t, topic, "g", queue.GroupConfig{})
		begin := time.Now()
		for i := range 10 { // two events, one per partition, each second
			produce(t, topic, 2*i, 2*i+1)
			time.Sleep(time.Second)
		}
		for _, test := range []struct {
			at   time.Duration
			want penstock.Offset
		}{{-time.Hour, 0}, {0, 0}, {1, 1}, {3 * time.Second, 3}, {3*time.Second + 1, 4}, {9 * time.Second, 9}, {10 * time.Second, 10}} {
			mustDo(t, g.SeekTime(t.Context(), begin.Add(test.at)))
			wantCommitted(t, g, test.want, test.want)
		}
		for at, want := range map[time.Time]penstock.Offset{
			{}: 0, time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC): 0, time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC): 10, time.Unix(1<<55, 0): 10,
		} { // beyond what nanoseconds in 64 bits reach
			mustDo(t, g.SeekTime(t.Context(), at))
			wantCommitted(t, g, want, want)
		}
	})
}

func TestSeekTimeOverDamageMovesNothing(t *testing.T) {
	c := queue.Config[string]{Name: "topic", Dir: t.TempDir(), Codec: penstock.String()}
	topic := openDisk(t, c)
	for _, v := range []string{"first", "second", "third"} {
		produce(t, topic, v)
	}
	group(t, topic, "g", queue.GroupConfig{})
	mustDo(t, topic.Close())
	damage(t, c.Dir, "second")
	topic = openDisk(t, c)
	g := group(t, topic, "g", queue.GroupConfig{})
	err := g.SeekTime(t.Context(), time.Now().Add(time.Hour))
	wantErr(t, err, penstock.ErrCorrupt)
	wantCommitted(t, g, 0)
}

func TestSeekIsStoredBeforeItReturns(t *testing.T) {
	c := onDisk(t, queue.Config[int]{Name: "topic", Dir: t.TempDir(), Capacity: 10})
	topic := openDisk(t, c)
	group(t, topic, "keeper", queue.GroupConfig{})
	g := group(t, topic, "g", queue.GroupConfig{})
	produce(t, topic, seq(0, 10)...)
	wantPull(t, g.Consumer(0), 8, seq(0, 8)...)
	commit(t, g.Consumer(0))
	for _, to := range []penstock.Offset{3, 5, 2} {
		mustDo(t, g.SeekOffset(t.Context(), 0, to))
		mustDo(t, topic.Close())
		topic = openDisk(t, c)
		g = group(t, topic, "g", queue.GroupConfig{})
		wantCommitted(t, g, to)
		wantPull(t, g.Consumer(0), 1, int(to))
		commit(t, g.Consumer(0))
	}
	mustDo(t, g.SeekOffset(t.Context(), 0, 1))
	mustDo(t, g.Close()) // before its owner has looked
	g = group(t, topic, "g", queue.GroupConfig{})
	wantPull(t, g.Consumer(0), 2, 1, 2)
	commit(t, g.Consumer(0))
	wantCommitted(t, g, 3)
}

// Random pulls, commits and seeks: each pull goes on where the model says, and
// the capacity that is free is that of what some group has not committed.
func TestPullsFollowTheirSeeks(t *testing.T) {
	inBubble(t, func(t *testing.T, s storage) {
		const capacity = 40
		rng := rand.New(rand.NewPCG(3, 4))
		topic := open(t, s, queue.Config[int]{Capacity: capacity, WhenFull: queue.Fail, SegmentSize: 8})
		end := 0
		type model struct {
			g         *queue.Group[int]
			committed int
			pulled    int // behind the last pull; -1 when there is none to commit
		}
		var all []*model
		for _, name := range []string{"a", "b"} {
			all = append(all, &model{g: group(t, topic, name, queue.GroupConfig{}), pulled: -1})
		}
		floor := 0
		for range 3000 {
			m := all[rng.IntN(2)]
			c := m.g.Consumer(0)
			switch rng.IntN(5) {
			case 0:
				n := 1 + rng.IntN(8)
				ok, err := topic.TryProduce(t.Context(), seq(end, end+n)...)
				if err != nil || ok != (end+n-floor <= capacity) {
					t.Fatalf("TryProduce of %d with %d retained: %t, %v", n, end-floor, ok, err)
				}
				if ok {
					end += n
				}
			case 1, 2:
				n := 1 + rng.IntN(6)
				to := min(m.committed+n, end)
				if diff := cmp.Diff(seq(m.committed, to), pull(t, c, n)); diff != "" {
					t.Fatal(diff)
				}
				if to > m.committed {
					m.pulled = to
				}
			case 3:
				if m.pulled >= 0 {
					commit(t, c)
					m.committed, m.pulled = m.pulled, -1
				}
			case 4:
				to := rng.IntN(end + 2)
				err := m.g.SeekOffset(t.Context(), 0, penstock.Offset(to))
				if (err == nil) != (to >= floor && to <= end) {
					t.Fatalf("seek to %d in [%d, %d]: %v", to, floor, end, err)
				}
				if err == nil {
					m.committed, m.pulled = to, -1
				}
			}
			floor = max(floor, min(all[0].committed, all[1].committed))
			for _, m := range all {
				wantCommitted(t, m.g, penstock.Offset(m.committed))
			}
		}
	})
}
