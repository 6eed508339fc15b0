package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// gatedCodec holds the events that are called "hold" back until the gate is
// closed.
type gatedCodec struct {
	penstock.Codec[string]
	gate chan struct{}
}

func (c gatedCodec) Append(dst []byte, v string) ([]byte, error) {
	if v == "hold" {
		<-c.gate
	}
	return c.Codec.Append(dst, v)
}

// A producer that finds nothing to drop, because what takes the capacity is
// still being appended, goes on when that is there. It used to wait for ever.
func TestDropOldestGoesOnWhenWhatTookTheRoomIsThere(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			c.Capacity, c.WhenFull, c.HardRetention, c.Codec = 2, queue.DropOldest, true, gatedCodec{penstock.String(), gate}
			topic := openDisk(t, c)
			slow := group(t, topic, "slow", queue.GroupConfig{})
			first := start(t, func() error { return topic.Produce(t.Context(), "hold", "hold") })
			second := start(t, func() error { return topic.Produce(t.Context(), "next") })
			second.blocked()
			close(gate)
			if err := first.wait(); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
			if err := second.wait(); err != nil {
				t.Error(err)
			}
			_, _, err := slow.Consumer(0).TryPull(10)
			wantErr(t, err, penstock.ErrOffsetOutOfRange) // told of what was passed
			left := consumeAll(t, slow.Consumer(0))
			if st := slow.Stats(); len(left) == 0 || left[len(left)-1] != "next" || st.Skipped != uint64(3-len(left)) {
				t.Errorf("%v is left, %d were skipped", left, st.Skipped)
			}
		})
	})
}

// A request dropped as many events as it had, though some of its room was free.
func TestDropOldestDropsWhatTheRequestLacks(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.Capacity, c.WhenFull, c.HardRetention = 8, queue.DropOldest, true
		topic := openDisk(t, c)
		produce(t, topic, numbers(0, 6)...)
		produce(t, topic, numbers(6, 11)...)
		if s := topic.Stats(); s.Expired != 3 || s.Retained != 8 {
			t.Errorf("%d events were dropped, %d are retained; want 3 and 8", s.Expired, s.Retained)
		}
	})
}

// With a capacity in bytes alone each small request dropped one event, at the
// price of a stored position per group.
func TestDropOldestDropsAPartOfTheBytesAtOnce(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		c.CapacityBytes, c.WhenFull, c.HardRetention = 1280, queue.DropOldest, true
		topic := openDisk(t, c)
		produce(t, topic, slices.Repeat([]string{"ab"}, 640)...)
		for range 10 {
			produce(t, topic, "cd")
			if s := topic.Stats(); s.Expired != 10 { // 20 bytes are a 64th
				t.Fatalf("%d events were dropped, want 10 at the first request and none at the next nine", s.Expired)
			}
		}
		produce(t, topic, strings.Repeat("e", 41)) // more than a 64th: 20 events are 40 bytes
		if s := topic.Stats(); s.Expired != 31 {
			t.Errorf("%d events were dropped, want 21 more for 41 bytes", s.Expired-10)
		}
	})
}

// Two producers in line each dropped for whoever was its first, so that one of
// them could drop for the other and the other for itself: up to a request too
// much.
func TestDropOldestDropsOnceForTwoInLine(t *testing.T) {
	forEachLevel(t, func(t *testing.T, c queue.Config[string]) {
		for round := range 30 {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				c.Name = fmt.Sprint("round", round)
				c.Capacity, c.WhenFull, c.HardRetention, c.Codec = 4, queue.DropOldest, true, gatedCodec{penstock.String(), gate}
				topic := openDisk(t, c)
				first := start(t, func() error { return topic.Produce(t.Context(), "hold", "hold", "hold", "hold") })
				synctest.Wait()
				one := start(t, func() error { return topic.Produce(t.Context(), "a") })
				one.blocked()
				three := start(t, func() error { return topic.Produce(t.Context(), "b", "b", "b") })
				three.blocked()
				close(gate)
				time.Sleep(time.Second)
				for _, c := range []call{first, one, three} {
					if err := c.wait(); err != nil {
						t.Error(err)
					}
				}
				if s := topic.Stats(); s.Expired != 4 || s.Retained != 4 {
					t.Errorf("round %d: %d events were dropped, %d are retained; want 4 and 4", round, s.Expired, s.Retained)
				}
			})
			if t.Failed() {
				return
			}
		}
	})
}

// A producer that waits for its turn to make room ends with its context, and with
// the topic.
func TestDropOldestWaitsForItsTurnNoLongerThanItMay(t *testing.T) {
	forEachLevelInBubble(t, func(t *testing.T, c queue.Config[string]) {
		gate := make(chan struct{})
		c.Capacity, c.WhenFull, c.HardRetention, c.Codec = 1, queue.DropOldest, true, gatedCodec{penstock.String(), gate}
		topic := openDisk(t, c)
		first := start(t, func() error { return topic.Produce(t.Context(), "hold") })
		synctest.Wait()
		second := start(t, func() error { return topic.Produce(t.Context(), "a") })
		second.blocked()
		why := errors.New("no more time")
		ctx, cancel := context.WithCancelCause(t.Context())
		third := start(t, func() error { return topic.Produce(ctx, "b") })
		third.blocked()
		fourth := start(t, func() error { return topic.Produce(t.Context(), "c") })
		fourth.blocked()
		cancel(why)
		wantErr(t, third.wait(), why)
		closing := start(t, topic.Close)
		wantErr(t, second.wait(), penstock.ErrClosed)
		wantErr(t, fourth.wait(), penstock.ErrClosed)
		close(gate)
		if err := errors.Join(closing.wait(), onlyClosed(first.wait())); err != nil {
			t.Error(err)
		}
	})
}

// onlyClosed makes nothing of an append that came behind Close.
func onlyClosed(err error) error {
	if errors.Is(err, penstock.ErrClosed) {
		return nil
	}
	return err
}
