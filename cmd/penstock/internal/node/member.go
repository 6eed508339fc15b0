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

// member is one group with its handler and what the status line wants to know.
type member struct {
	name      string
	group     *queue.Group[[]byte]
	consumers int
	work      penstock.Handler[[]byte]
	extraLag  func() uint64 // of what comes behind the group; nil = nothing does

	busy    atomic.Int64
	mu      sync.Mutex
	failing string
}

// handle is the handler of the group: work, watched.
func (m *member) handle(ctx context.Context, b penstock.Batch[[]byte]) error {
	m.busy.Add(1)
	defer m.busy.Add(-1)
	err := m.work(ctx, b)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = ""
	if err != nil {
		m.failing = err.Error()
	}
	return err
}

func (m *member) lag() uint64 {
	lag := uint64(max(m.group.Stats().Lag, 0))
	if m.extraLag != nil {
		lag += m.extraLag()
	}
	return lag
}

func (m *member) stats() wire.GroupStats {
	m.mu.Lock()
	failing := m.failing
	m.mu.Unlock()
	return wire.GroupStats{Name: m.name, Lag: m.lag(), Busy: int(m.busy.Load()), Consumers: m.consumers, Failing: failing}
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
		extraLag  func() uint64
	}{
		{wire.Billing, n.orders, 2, 500, n.billing, nil},
		{wire.Emails, n.orders, 4, 100, n.emails, nil},
		{wire.Webhook, n.orders, 4, 250, n.webhook, nil},
		{wire.Feed, n.orders, 2, 500, n.feed.forward, n.feed.lag},
		{wire.Pipeline, n.orders, 2, 500, n.pipeline, nil},
		{"report", n.dead, 1, 100, n.given, nil},
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
		n.groups = append(n.groups, &member{name: g.name, group: group, consumers: consumers, work: g.work, extraLag: g.extraLag})
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
