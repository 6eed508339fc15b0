package queue_test

import (
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
