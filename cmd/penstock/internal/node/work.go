package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/stage"
)

var errRefused = errors.New("the partner refuses this event for good")

// billing takes every event at once.
func (n *node) billing(ctx context.Context, b penstock.Batch[[]byte]) error {
	return n.driver.report(ctx, wire.Billing, false, idsOf(b, nil))
}

// emails takes events at the pace of a slow service.
func (n *node) emails(ctx context.Context, b penstock.Batch[[]byte]) error {
	if err := n.slow.wait(ctx, b.Len()); err != nil {
		return err
	}
	return n.driver.report(ctx, wire.Emails, false, idsOf(b, nil))
}

// webhook calls a partner. A call that fails fails the whole batch, so it is
// tried again in order; an event that the partner refuses fails alone.
func (n *node) webhook(ctx context.Context, b penstock.Batch[[]byte]) error {
	refused, err := n.driver.callWebhook(ctx, b)
	if err != nil {
		return err
	}
	if err := n.driver.report(ctx, wire.Webhook, false, idsOf(b, refused)); err != nil {
		return err
	}
	for i := range b.Len() {
		if refused[b.ID(i)] {
			b.Fail(i, errRefused)
		}
	}
	return nil
}

// order is what the pipeline reads of an event; events of other shapes count
// as orders of nothing.
type order struct {
	Data struct {
		TotalCents int64 `json:"total_cents"`
	} `json:"data"`
}

// pipeline runs a graph over the batch: read, keep what has a price, add up.
// It returns when the graph has ended, so the batch settles as a whole.
func (n *node) pipeline(ctx context.Context, b penstock.Batch[[]byte]) error {
	rest := b.Values()
	source := stage.Pull("batch", func(_ context.Context, want int, out *stage.Output[[]byte]) error {
		k := min(want, len(rest))
		out.EmitAll(rest[:k]...)
		if rest = rest[k:]; len(rest) == 0 {
			return stage.Done
		}
		return nil
	})
	var read, paid int
	cents := stage.Map(func(event []byte) int64 {
		read++
		var o order
		if json.Unmarshal(event, &o) != nil {
			return 0
		}
		return o.Data.TotalCents
	})
	priced := stage.Filter(func(cents *int64) bool { return *cents > 0 })
	var total int64
	sum := stage.NewSink("sum", func(_ context.Context, in []int64) error {
		for _, c := range in {
			total += c
		}
		paid += len(in)
		return nil
	})
	g := stage.NewGraph()
	stage.Connect(g, source, cents)
	stage.Connect(g, cents, priced)
	stage.Connect(g, priced, sum)
	if err := g.Run(ctx); err != nil {
		return err
	}
	if read != b.Len() || paid > read {
		return fmt.Errorf("the graph ended with %d of %d events read and %d paid", read, b.Len(), paid)
	}
	n.turnover.Add(total)
	return n.driver.report(ctx, wire.Pipeline, false, idsOf(b, nil))
}

// given reports what a group gave up. Events of one batch may come from
// several groups.
func (n *node) given(ctx context.Context, b penstock.Batch[[]byte]) error {
	byGroup := map[string][]string{}
	for i := range b.Len() {
		group := ""
		if o := b.Meta(i).Origin; o != nil {
			group = o.Group
		}
		byGroup[group] = append(byGroup[group], b.ID(i))
	}
	for _, group := range slices.Sorted(maps.Keys(byGroup)) {
		if err := n.driver.report(ctx, group, true, byGroup[group]); err != nil {
			return err
		}
	}
	return nil
}

func idsOf(b penstock.Batch[[]byte], but map[string]bool) []string {
	ids := make([]string, 0, b.Len())
	for i := range b.Len() {
		if id := b.ID(i); !but[id] {
			ids = append(ids, id)
		}
	}
	return ids
}
