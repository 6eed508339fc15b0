package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// Hard limits that pass a group with parked keys.

// passing is a topic whose limit keeps some four events, and passes groups.
func passing(c queue.Config[string]) queue.Config[string] {
	c.SegmentEvents, c.RetainEvents, c.HardRetention, c.Key = 2, 4, true, keyOfWord
	return c
}

// heard collects what OnSkip is told.
type heard struct {
	mu    sync.Mutex
	skips []queue.Skip
}

func (h *heard) add(s queue.Skip) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.skips = append(h.skips, s)
}

func (h *heard) all() []queue.Skip {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.skips)
}

// passBy produces twenty events of other keys, of which the limit keeps a few,
// and returns the first that is kept.
func passBy(t *testing.T, topic *queue.Topic[string]) penstock.Offset {
	t.Helper()
	for i := range 20 {
		produceEach(t, topic, fmt.Sprintf("z%d", i))
	}
	synctest.Wait()
	return earliest(topic)
}

// TestHardLimitLeavesWhatIsParked: the group is moved past what it has not
// handled and is told so; what it has parked has been put away before, and comes
// again, in its order, also after a restart.
func TestHardLimitLeavesWhatIsParked(t *testing.T) {
	for _, restart := range []bool{false, true} {
		forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
			c = passing(c)
			topic := openDisk(t, c)
			var h heard
			gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy(), OnSkip: h.add}
			g := group(t, topic, "g", gc)
			produceEach(t, topic, "a1", "a2", "b1")
			gate := make(chan struct{})
			w := handleWords(failUntil(3, "a1"))
			handler := func(ctx context.Context, b penstock.Batch[string]) error {
				if b.Values()[0] == "b2" {
					<-gate
				}
				return w.handle(ctx, b)
			}
			run := startRun(t, g, handler)
			time.Sleep(time.Second) // what is settled is stored
			produceEach(t, topic, "b2")
			synctest.Wait() // the handler has it
			first := passBy(t, topic)
			if first < 12 {
				t.Fatalf("the first event kept is %d", first)
			}
			events, from := uint64(0), penstock.Offset(3)
			for _, s := range h.all() {
				if s.From != from || s.Group != "g" || s.Partition != 0 {
					t.Errorf("told %+v, want from %d", s, from)
				}
				from, events = s.To, events+s.Events
			}
			if st := g.Stats(); from != first || events != uint64(first-3) || st.Skipped != events || st.Parked.Events != 2 || st.LastSkip == nil || st.LastSkip.To != first {
				t.Errorf("told up to %d, %d events, want %d and %d; stats: %d skipped, parked %+v", from, events, first, first-3, st.Skipped, st.Parked)
			}
			close(gate)
			if restart {
				run.mustStop(t)
				topic = reopen(t, topic, c)
				g = group(t, topic, "g", gc)
				run = startRun(t, g, handler)
			}
			time.Sleep(20 * time.Second)
			nothingIsParked(t, g)
			run.mustStop(t)
			var a, z []string
			w.mu.Lock()
			for _, call := range w.calls {
				_, v, _ := strings.Cut(call, " ")
				switch v[0] {
				case 'a':
					a = append(a, v)
				case 'z':
					z = append(z, v)
				}
			}
			w.mu.Unlock()
			if want := []string{"a1", "a1 2", "a1 3", "a2"}; !slices.Equal(a, want) {
				t.Errorf("the parked key was handled as %q, want %q", a, want)
			}
			if len(z) != 24-int(first) {
				t.Errorf("handled %q behind what was passed, want the %d that were kept", z, 24-int(first))
			}
			wantCommitted(t, g, 24)
			if st := g.Stats(); len(h.all()) == 0 || uint64(first-3) != events || !restart && st.Skipped != events || restart && st.Skipped != 0 {
				t.Errorf("%d are counted as skipped at the end, %d were told", st.Skipped, events)
			}
		})
	}
}

// TestHardLimitPassesAnEventThatIsBeingParked: it is deleted while the group
// decides that it is to be parked. The run goes on where it was moved to.
func TestHardLimitPassesAnEventThatIsBeingParked(t *testing.T) {
	for _, workers := range []int{1, 3} {
		for _, at := range []string{"a1", "a2"} { // the one that fails, and one behind it
			forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
				c = passing(c)
				var armed, produced atomic.Bool
				asked, answer := make(chan struct{}), make(chan struct{})
				c.Key = func(v string) string {
					switch {
					case v != at:
					case armed.CompareAndSwap(true, false):
						close(asked)
						<-answer
					case v == "a2" && produced.CompareAndSwap(false, true): // its producer asks first
						armed.Store(true)
					}
					return keyOfWord(v)
				}
				topic := openDisk(t, c)
				var h heard
				g := group(t, topic, "g", queue.GroupConfig{BatchMax: 1, Workers: workers, Retry: parkPolicy(), OnSkip: h.add})
				w := handleWords(failUntil(2, "a1"))
				handler := func(ctx context.Context, b penstock.Batch[string]) error {
					if b.Values()[0] == "a1" && at == "a1" && b.Attempt(0) == 1 {
						armed.Store(true) // the next who asks is the group, which parks it
					}
					return w.handle(ctx, b)
				}
				run := startRun(t, g, handler)
				produceEach(t, topic, "a1")
				time.Sleep(time.Second)
				if at == "a2" {
					produceEach(t, topic, "a2")
				}
				synctest.Wait()
				select {
				case <-asked:
				default:
					t.Fatalf("nobody asked for the key of %s", at)
				}
				first := passBy(t, topic)
				if n := len(h.all()); n == 0 {
					t.Fatal("nothing was passed")
				}
				close(answer)
				time.Sleep(20 * time.Second)
				nothingIsParked(t, g)
				run.mustStop(t)
				if st := g.Stats(); st.Lag != 0 || st.Skipped == 0 || st.LastSkip == nil || st.LastSkip.To != first {
					t.Errorf("lag %d, %d skipped, last %+v, first kept %d", st.Lag, st.Skipped, st.LastSkip, first)
				}
			})
		}
	}
}

// countedCodec counts what it encodes, and has enough of it at some time.
type countedCodec struct {
	penstock.Codec[string]
	n *atomic.Int64
}

var errEnough = errors.New("encoded far too often")

func (c countedCodec) Append(dst []byte, v string) ([]byte, error) {
	if c.n.Add(1) > 2000 {
		return dst, errEnough
	}
	return c.Codec.Append(dst, v)
}

// TestRequestThatWaitsForDiskSleeps: it found room for a part of it, and gives
// that back whenever it tries again; that must not wake it.
func TestRequestThatWaitsForDiskSleeps(t *testing.T) {
	forEachDiskCapacity(t, 2, func(t *testing.T, c queue.Config[string]) {
		var n atomic.Int64
		c.Codec = countedCodec{penstock.String(), &n}
		c.CapacityDisk = 5 * c.SegmentBytes // an odd number: one partition finds room, and the other none
		topic := openDisk(t, c)
		g := group(t, topic, "g", queue.GroupConfig{})
		p := start(t, func() error {
			for i := range 20 {
				if err := topic.Produce(t.Context(), wide(2*i), wide(2*i+1)); err != nil {
					return err
				}
			}
			return nil
		})
		for got := 0; got < 40; {
			synctest.Wait()
			before := n.Load()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n.Load() != before || n.Load() > 500 {
				t.Fatalf("%d events were encoded, and %d in a minute in which nothing was consumed", n.Load(), n.Load()-before)
			}
			if some := len(takeNumbers(t, g)); some > 0 {
				got += some
			} else {
				endsWith(t, p, nil)
				t.Fatalf("%d events came, and the producer waits for no room", got)
			}
		}
		endsWith(t, p, nil)
	})
}

// TestPassedGroupIsNotToldWhatItHasParked: the commit was not stored yet, so the
// position that was passed had the parked events as open. They were told as
// skipped, and came again.
func TestPassedGroupIsNotToldWhatItHasParked(t *testing.T) {
	for _, killed := range []bool{false, true} {
		for _, level := range levels {
			t.Run(fmt.Sprint(level, " killed ", killed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := vfs.NewMem()
					c := passing(keyedOnDisk("data", m))
					c.Durability = level
					var h heard
					gc := queue.GroupConfig{BatchMax: 1, Retry: parkPolicy(), OnSkip: h.add, Drain: time.Second}
					topic, g := openKeyed(t, c, gc)
					produceEach(t, topic, "a1", "a2", "b1", "b2")
					gate := make(chan struct{})
					w := handleWords(failUntil(2, "a1"))
					run := startRun(t, g, func(ctx context.Context, b penstock.Batch[string]) error {
						switch b.Value(0) {
						case "b1":
							time.Sleep(10 * time.Millisecond) // the retry log has the others, and the commit is not stored
						case "b2":
							<-gate
						}
						return w.handle(ctx, b)
					})
					time.Sleep(20 * time.Millisecond)
					var first penstock.Offset
					if killed {
						left := m.Clone()
						close(gate)
						run.mustStop(t)
						closeTopic(t, topic)
						c = queue.WithFS(c, left)
						topic = openDisk(t, c)
						first = passBy(t, topic)
						g = group(t, topic, "g", gc)
					} else {
						first = passBy(t, topic)
						close(gate)
						run.mustStop(t)
					}
					events, from := uint64(0), penstock.Offset(0)
					for _, s := range h.all() {
						if s.From != from {
							t.Errorf("told %+v, want from %d", s, from)
						}
						from, events = s.To, events+s.Events
					}
					if from != first || events != uint64(first)-2 {
						t.Errorf("told %d events up to %d, want %d up to %d", events, from, first-2, first)
					}
					again := handleWords(nil)
					run = startRun(t, g, again.handle)
					time.Sleep(20 * time.Second)
					run.mustStop(t)
					nothingIsParked(t, g)
					if calls := strings.Join(again.calls, ","); strings.Count(calls, " a1") != 1 || strings.Count(calls, " a2") != 1 || strings.Contains(calls, "b") {
						t.Errorf("calls %v", again.calls)
					}
					closeTopic(t, topic)
				})
			})
		}
	}
}
