package queue_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// brittle is a codec that panics at "b" while it is broken.
type brittle struct {
	penstock.Codec[string]
	broken *atomic.Bool
}

func (c brittle) Append(dst []byte, v string) ([]byte, error) {
	c.touch(v)
	return c.Codec.Append(dst, v)
}

func (c brittle) Decode(src []byte, v *string) error {
	c.touch(string(src))
	return c.Codec.Decode(src, v)
}

func (c brittle) touch(v string) {
	if v == "b" && c.broken.Load() {
		panic("b is too much")
	}
}

func (c brittle) size(v string) penstock.Bytes {
	c.touch(v)
	return penstock.Bytes(len(v))
}

// A dead letter whose codec and size function panic in its own topic and in
// that of the dead letters can neither go nor stay anew in memory: Redrive ends
// there, each time, and goes on when they are mended. On disk its bytes stay.
// Nothing is lost or sent twice.
func TestRedriveBetweenPanickingCodecsLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s storage) {
		c := brittle{penstock.String(), new(atomic.Bool)}
		config := queue.Config[string]{Codec: c, Size: c.size, CapacityBytes: 10_000}
		config.Name = "orders"
		orders := open(t, s, config)
		config.Name = "dead"
		dead := open(t, s, config)
		from := group(t, dead, "redrive", queue.GroupConfig{})
		for _, v := range []string{"a", "b", "c"} {
			e := penstock.Event[string]{Value: v, Meta: penstock.Meta{Origin: &penstock.Origin{Topic: "orders", Group: "billing", Cause: "x"}}}
			if err := dead.ProduceEvents(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		redrive := func() (queue.RedriveReport, error) {
			return queue.Redrive(t.Context(), from, queue.RedriveConfig[string]{To: []*queue.Topic[string]{orders}})
		}
		onDisk := s.name == "file"
		c.broken.Store(true)
		broken := []queue.RedriveReport{{Redriven: 1}, {}}
		last, order, committed := 2, []string{"a", "b", "c"}, penstock.Offset(3)
		if onDisk { // b stays behind c, twice
			broken = []queue.RedriveReport{{Redriven: 2, Failed: 1}, {Failed: 1}}
			last, order, committed = 1, []string{"a", "c", "b"}, 5
		}
		for i, want := range broken {
			report, err := redrive()
			if _, ok := errors.AsType[*penstock.PanicError](err); ok == onDisk {
				t.Errorf("call %d ends with %v", i, err)
			}
			if report != want {
				t.Errorf("call %d = %+v, want %+v", i, report, want)
			}
		}
		c.broken.Store(false)
		if report, err := redrive(); err != nil || report != (queue.RedriveReport{Redriven: last}) {
			t.Errorf("mended: %+v, %v, want %d sent back", report, err, last)
		}
		if diff := cmp.Diff(order, slices.Concat(contents(t, orders)...)); diff != "" {
			t.Errorf("sent back (-want +got):\n%s", diff)
		}
		wantCommitted(t, from, committed)
	})
}
