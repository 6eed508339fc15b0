package stream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// A token that the topic never gave out is refused. It used to be taken for a
// place yet to come, and everything up to it was passed over in silence.
func TestForeignTokensAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		s := Of[string](p, "orders", "7")
		publish(t, s, "one", "two")
		for _, tt := range []struct {
			start Start
			want  error
		}{
			{At(penstock.Token{Hi: 1}), penstock.ErrInvalid},
			{After(penstock.Token{Hi: 7, Lo: 1}), penstock.ErrInvalid},
			{At(penstock.Token{Lo: 2}), penstock.ErrOffsetOutOfRange},
			{After(penstock.Token{Lo: 500}), penstock.ErrOffsetOutOfRange},
			{At(penstock.Token{Lo: 1, Index: 9}), nil},
			{After(penstock.Token{Lo: 1}), nil},
		} {
			_, err := s.Subscribe(t.Context(), "x", new(recorder).handle, From(tt.start))
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("start %v: %v, want %v", tt.start, err, tt.want)
			}
		}
	})
}

// The same when a consumer answers with one: asked for, it faults the
// subscription; offered as what the consumer has, it is ignored.
func TestAnswerWithAForeignToken(t *testing.T) {
	for name, tt := range map[string]struct {
		answer Position
		values string
		faults int
	}{
		"at":     {at(PositionAt, 500), "", 1},
		"after":  {at(PositionAfter, 500), "", 1},
		"resume": {at(PositionResume, 500), "1 2 3", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) {
					c.tokenCheck = func(tok penstock.Token) error {
						if tok.Lo > 3 {
							return penstock.ErrOffsetOutOfRange
						}
						return nil
					}
				})
				g.start()
				c := g.subscribe("s", "sub")
				c.onShake = func(int) (Position, error) { return tt.answer, nil }
				g.feed(boxes("s", 1, 3)...)
				g.pump()
				want(t, "settled", c.values(), tt.values)
				faulted, _ := g.registry.Faulted(context.Background(), g.qualified("s"))
				want(t, "faulted", len(faulted), tt.faults)
				g.stop()
			})
		})
	}
}
