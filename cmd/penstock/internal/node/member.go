package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// retries of every group: five attempts within some 150 ms, then a group with
// a dead-letter topic gives the event up.
var retries = settle.Policy{
	Attempts: 5,
	Backoff:  settle.Backoff{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond, Factor: 2, Jitter: 0.2},
}

// calls is what the status line wants to know of calls of a handler. It is safe
// for concurrent use.
type calls struct {
	busy    atomic.Int64
	mu      sync.Mutex
	failing string // why the latest call failed
}

// watch makes a call.
func (c *calls) watch(call func() error) error {
	c.busy.Add(1)
	defer c.busy.Add(-1)
	err := call()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = ""
	if err != nil {
		c.failing = err.Error()
	}
	return err
}

func (c *calls) stats(name string, consumers int, lag uint64) wire.GroupStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wire.GroupStats{Name: name, Lag: lag, Busy: int(c.busy.Load()), Consumers: consumers, Failing: c.failing}
}

// member is one group with its handler.
type member struct {
	calls
	name      string
	group     *queue.Group[[]byte]
	consumers int
	work      penstock.Handler[[]byte]
}

// handle is the handler of the group: work, watched.
func (m *member) handle(ctx context.Context, b penstock.Batch[[]byte]) error {
	return m.watch(func() error { return m.work(ctx, b) })
}

// groupStats is the state of every group and of what comes behind it.
func (n *node) groupStats() (all []wire.GroupStats) {
	for _, m := range n.groups {
		lag := uint64(max(m.group.Stats().Lag, 0))
		if m.name != wire.Feed {
			all = append(all, m.stats(m.name, m.consumers, lag))
			continue
		}
		all = append(all, m.stats(m.name, m.consumers, lag+n.feed.behind(&n.feed.delivered)),
			n.feed.far.stats(wire.Remote, n.config.Partitions, lag+n.feed.behind(&n.feed.far.delivered)))
	}
	return all
}

// openGroups creates every group.
func (n *node) openGroups() error {
	giveUp := queue.DeadLetter(n.dead.ProduceEvents)
	for _, g := range []struct {
		name      string
		topic     *queue.Topic[[]byte]
		consumers int
		batch     int
		work      penstock.Handler[[]byte]
	}{
		{wire.Billing, n.orders, 2, 500, n.billing},
		{wire.Emails, n.orders, 4, 100, n.emails},
		{wire.Webhook, n.orders, 4, 250, n.webhook},
		{wire.Feed, n.orders, 2, 500, n.feed.forward},
		{wire.Pipeline, n.orders, 2, 500, n.pipeline},
		{"report", n.dead, 1, 100, n.given},
	} {
		consumers := min(g.consumers, g.topic.Partitions())
		config := queue.GroupConfig{
			Consumers: consumers, BatchMax: g.batch, Linger: 20 * time.Millisecond,
			Retry: retries, Drain: n.drain(),
		}
		var options []queue.GroupOption[[]byte]
		if g.name == wire.Webhook {
			options = append(options, giveUp)
		} else {
			config.Retry.Attempts = -1 // no limit: what is behind the others is ours and comes back
		}
		group, err := g.topic.Group(g.name, config, options...)
		if err != nil {
			return fmt.Errorf("group %s: %w", g.name, err)
		}
		n.groups = append(n.groups, &member{name: g.name, group: group, consumers: consumers, work: g.work})
	}
	return nil
}

// startGroups starts every group and the stream. Each ends when ctx does, and
// tells fail when it ends with an error before.
func (n *node) startGroups(ctx context.Context, wg *sync.WaitGroup, fail context.CancelCauseFunc) {
	start := func(name string, run func(context.Context) error) {
		// Runs until ctx ends and its drain is over; run waits for wg.
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	for _, m := range n.groups {
		start("group "+m.name, func(ctx context.Context) error { return m.group.Run(ctx, m.handle) })
	}
	start("stream "+wire.Feed, n.feed.run)
}
