package bench

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/queue"
)

// The shape of the routing rows is that of BufferQueue's benchmark.
const (
	routingPartitions = 8
	routingKeys       = 1024
)

// customer is a key of two parts, for a router that users write.
type customer struct{ region, number uint32 }

// keys of the routing rows: event i has key i mod routingKeys.
type keys struct {
	names     []string
	customers []customer
}

func newKeys() (k keys) {
	for i := range routingKeys {
		k.names = append(k.names, fmt.Sprintf("customer-%04d", i))
		k.customers = append(k.customers, customer{uint32(i % 16), uint32(i / 16)})
	}
	return k
}

func (k keys) name(v measure.Word) string { return k.names[v[0]%routingKeys] }
func (k keys) number(v measure.Word) int  { return v[0] % routingKeys }
func (k keys) custom(v measure.Word, partitions int) int {
	c := k.customers[v[0]%routingKeys]
	return int((c.region*31 + c.number) % uint32(partitions))
}

// routingRow: single events through a topic with a router beside one without,
// which deals them in turn.
func routingRow(configure func(c *queue.Config[measure.Word], k keys)) func(env) (pair, error) {
	return func(e env) (pair, error) {
		var routed queue.Config[measure.Word]
		configure(&routed, newKeys())
		ours, closeOurs, err := routedSide(e, routed)
		if err != nil {
			return pair{}, err
		}
		base, closeBase, err := routedSide(e, queue.Config[measure.Word]{})
		if err != nil {
			return pair{}, errors.Join(err, closeOurs())
		}
		return pair{ours: ours, base: base, close: func() error { return errors.Join(closeOurs(), closeBase()) }}, nil
	}
}

func routedSide(e env, config queue.Config[measure.Word]) (side, func() error, error) {
	t, groups, err := openTopic(layout{routingPartitions, 1}, config, queue.GroupConfig{})
	if err != nil {
		return nil, nil, err
	}
	events := measure.Numbered[measure.Word](e.events)
	return func(c *measure.Clock) error {
		c.Start()
		err := produceSingles(e.ctx, t, events)
		c.Stop(len(events))
		return errors.Join(err, pullRouted(c, groups[0].Consumer(0), len(events), config.Router != nil || config.Key != nil))
	}, t.Close, nil
}

// pullRouted checks that every event came once, in order inside its partition,
// and that the events of a key share one.
func pullRouted(c *measure.Clock, consumer *queue.Consumer[measure.Word], events int, keyed bool) error {
	w := measure.NewCrowd(c, routingPartitions, 1, events)
	var home [routingKeys]int // partition of a key, plus one
	for w.Count() < events {
		b, ok, err := consumer.TryPull(1000)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%d events came out of %d", w.Count(), events)
		}
		measure.Join(w, b.Partition(), b.Values())
		for _, v := range b.Values() {
			at := &home[v[0]%routingKeys]
			if keyed && *at > 0 && *at != b.Partition()+1 {
				return fmt.Errorf("key %d is in partitions %d and %d", v[0]%routingKeys, *at-1, b.Partition())
			}
			*at = b.Partition() + 1
		}
	}
	return errors.Join(measure.Together(w), noMore(consumer))
}
