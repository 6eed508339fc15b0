package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"pgregory.net/rapid"
)

// told is everything that a batch says of its events.
func told[T any](b penstock.Batch[T]) string {
	var out strings.Builder
	for i, v := range b.All() {
		fmt.Fprintf(&out, "%v@%s/%s#%d %d %q %v %v\n", v, b.Token(i), b.Offset(i), b.Attempt(i), b.Time(i).Unix(), b.ID(i), b.Meta(i).Header, b.Event(i).Time.Unix())
	}
	return out.String()
}

// A handler is told the same of containers that it is given whole as of their
// events one by one, and what it fails is the same.
func TestContainersAreToldAsTheirEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Container {
			c := boxOf("s", 0, rapid.SliceOfN(rapid.SampledFrom([]string{"1", "22", "", "bad", strings.Repeat("9", rawTogether+1)}), 1, 4).Draw(t, "values")...)
			c.Attempts = rapid.IntRange(0, 1).Draw(t, "attempts")
			if rapid.Bool().Draw(t, "timed") {
				c.Time = time.Unix(rapid.Int64Range(1, 9).Draw(t, "time"), 0).UTC()
			}
			switch rapid.IntRange(0, 9).Draw(t, "described") {
			case 0:
				c.Header = penstock.Header{{Name: "a", Value: "b"}}
			case 1:
				c.Events = EventsOf(penstock.Envelope{Meta: penstock.Meta{ID: "i"}}, c.Events.At(0))
			}
			return c
		}), 1, 4).Draw(t, "containers")
		for i := range cs {
			cs[i].Token.Lo = uint64(i + 7)
		}
		fails := rapid.IntRange(0, 3).Draw(t, "fails")
		raw, text := deliverBothWays(t, penstock.Raw(), cs, fails), deliverBothWays(t, sometimes{}, cs, fails)
		if raw == "" || text == "" {
			t.Fatal("nothing was told")
		}
	})
}

// sometimes is the codec of strings that refuses bad ones, by an error or, in
// another mood, by a panic.
type sometimes struct{}

func (sometimes) ID() string                                  { return "sometimes/1" }
func (sometimes) Append(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil }
func (sometimes) Decode(src []byte, v *string) error {
	switch {
	case string(src) == "bad":
		return errOdd
	case len(src) > rawTogether:
		panic("too long")
	}
	*v = string(src)
	return nil
}

func deliverBothWays[T any](t *rapid.T, codec penstock.Codec[T], cs []Container, fails int) string {
	var saw [2]string
	for i, d := range []*Delivery{{whole: cs, events: events(cs)}, {Items: itemsOf(nil, cs, 1)}} {
		d.room = new(room)
		for range 2 { // the second time in memory that was used
			d := *d
			a, err := deliverTo(codec, func(_ context.Context, b penstock.Batch[T]) error {
				saw[i] = told(b)
				if fails < b.Len() {
					b.Fail(fails, errors.New("no"))
				}
				return nil
			})(context.Background(), "p", &d)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range a.Failed {
				saw[i] += fmt.Sprintln("failed", f.Index)
			}
		}
	}
	if saw[0] != saw[1] {
		t.Fatalf("containers are told as\n%s\ntheir events as\n%s", saw[0], saw[1])
	}
	return saw[0]
}

// Attempts are counted the same whether the first one was made with whole
// containers, and one that reached nobody does not count.
func TestAttemptsOfWholeContainersCount(t *testing.T) {
	two := []Container{boxOf("s", 1, "a", "b"), boxOf("s", 2, "c")}
	two[1].Attempts = 3
	for name, c := range map[string]struct {
		consumer Consumer
		err      error
		failed   []ItemFailure
		want     string
	}{
		"handler failed":  {&localConsumer{}, errOdd, nil, "1:0#1 1:1#1 2:0#4"},
		"handler fails 1": {&localConsumer{}, nil, []ItemFailure{{Index: 1, Err: errOdd}}, "1:0#1 1:1#1 2:0#4"},
		"other consumer":  {&scriptConsumer{}, errOdd, nil, "1:0#1 1:1#1 2:0#4"},
		"nobody":          {nil, errOdd, nil, "1:0#0 1:1#0 2:0#3"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &delivery{sub: &subscription{}, containers: two, whole: 3, answer: Answer{Failed: c.failed}}
			want(t, "events", d.events(), 3)
			want(t, "first", d.containers[0].Token.Lo, uint64(1))
			want(t, "last", d.last(), penstock.Token{Lo: 2})
			if c.consumer != nil {
				d.pack(c.consumer)
			}
			d.accept(c.err)
			var got []string
			for _, it := range d.items {
				got = append(got, fmt.Sprintf("%d:%d#%d", it.Token.Lo, it.Token.Index, it.Attempt))
			}
			want(t, "items", strings.Join(got, " "), c.want)
			want(t, "events", d.events(), 3)
		})
	}
	d := &delivery{sub: &subscription{}, containers: two, whole: 3}
	d.pack(&localConsumer{})
	d.accept(nil)
	want(t, "items of what is settled", d.items == nil, true)
	want(t, "events of what is settled", d.events(), 3)
}
