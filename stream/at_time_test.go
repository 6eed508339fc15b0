package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// minutes are containers 1 to n of stream s, one a minute from a time on; every
// second minute another stream has one too.
func minutes(from time.Time, n uint64) (out []Container) {
	for i := range n {
		key := "s"
		if i%4 == 3 {
			key = "other"
		}
		out = append(out, dated(box(key, i+1), from.Add(time.Duration(i)*time.Minute)))
	}
	return out
}

// timeRig keeps containers 1 to 10 of minutes in the cache, because a
// subscription of s is blocked at its first one.
func timeRig(t *testing.T, from time.Time, configure ...func(*rig, *agentConfig)) (g *rig, release func()) {
	g = newRig(t, configure...)
	g.start()
	holder, gate := g.subscribe("s", "holder"), make(chan struct{})
	holder.gate = gate
	g.feed(minutes(from, 10)...)
	g.pump()
	return g, func() {
		holder.set(func(c *scriptConsumer) { c.gate = nil })
		close(gate)
		synctest.Wait()
	}
}

// A subscription starts at the first container that came at or after a time,
// whatever the cache.
func TestSubscriptionStartsAtATime(t *testing.T) {
	for cache, newCache := range map[string]func() (Cache, error){
		"simple": func() (Cache, error) { return NewSimpleCache(DefaultCapacity) },
		"log":    func() (Cache, error) { return NewLogCache(LogCacheConfig{}) },
	} {
		for after, values := range map[time.Duration]string{
			-time.Hour:                    "1 2 3 5 6 7 9 10 11",
			0:                             "1 2 3 5 6 7 9 10 11",
			4 * time.Minute:               "5 6 7 9 10 11",
			4*time.Minute - 1:             "5 6 7 9 10 11",
			4*time.Minute + 1:             "6 7 9 10 11",
			9 * time.Minute:               "10 11",
			9*time.Minute + 1:             "11",
			1000 * time.Hour:              "11", // as the latest
			3 * time.Minute:               "5 6 7 9 10 11",
			2*time.Minute + 1*time.Second: "5 6 7 9 10 11",
		} {
			t.Run(fmt.Sprint(cache, " ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					from := time.Now()
					g, release := timeRig(t, from, func(g *rig, _ *agentConfig) { g.newCache = newCache })
					defer g.stop()
					c := &scriptConsumer{onShake: func(int) (Position, error) {
						return AtTime(from.Add(after)).position(), nil
					}}
					g.consumers["s/new"] = c
					g.announce("s", "new")
					g.feed(dated(box("s", 11), from.Add(10*time.Minute)))
					g.pump()
					want(t, "delivered", c.values(), values)
					release()
				})
			})
		}
	}
}

// What may have begun before everything that is known is refused, and so is a
// time where there is none; nothing is guessed.
func TestPositionByTimeIsRefusedClearly(t *testing.T) {
	type hidden struct{ Cache }
	synctest.Test(t, func(t *testing.T) {
		from := time.Now()
		for name, tt := range map[string]struct {
			configure func(*rig, *agentConfig)
			prepare   func(g *rig, release func())
			after     time.Duration
			want      error
			text      string
		}{
			"adapter that cannot rewind": {
				configure: func(_ *rig, a *agentConfig) { a.rewindable = false },
				want:      penstock.ErrUnsupported, text: "the adapter of provider rig cannot rewind",
			},
			"cache that cannot look up": {
				configure: func(_ *rig, a *agentConfig) {
					a.newCache = func() (Cache, error) {
						c, err := NewSimpleCache(100)
						return hidden{c}, err
					}
				},
				want: penstock.ErrUnsupported, text: "the cache of provider rig cannot look one up",
			},
			"queue without times": {
				prepare: func(g *rig, _ func()) { g.feed(box("s", 11)); g.pump() },
				want:    penstock.ErrUnsupported, text: "does not say when",
			},
			"dropped": {
				configure: func(g *rig, _ *agentConfig) { g.newCache = func() (Cache, error) { return NewSimpleCache(20) } },
				prepare: func(g *rig, release func()) {
					release()
					g.pump()
					g.feed(dated(box("s", 11), from.Add(10*time.Minute)))
					g.pump()
				},
				after: 9 * time.Minute,
				want:  ErrCacheMiss, text: "is no longer kept",
			},
			"below the checkpoint of an earlier run": {
				configure: func(g *rig, _ *agentConfig) {
					g.marks = &spyMarks{has: true}
				},
				want: ErrCacheMiss, text: "only what lies above the checkpoint",
			},
		} {
			configure := tt.configure
			if configure == nil {
				configure = func(*rig, *agentConfig) {}
			}
			g, release := timeRig(t, from, configure)
			if tt.prepare != nil {
				tt.prepare(g, release)
			}
			g.consumers["s/new"] = &scriptConsumer{onShake: func(int) (Position, error) {
				return Position{Kind: PositionAtTime, Time: from.Add(tt.after)}, nil
			}}
			g.announce("s", "new")
			failed := g.failed()
			if len(failed) != 1 || !errors.Is(failed[0].Err, tt.want) || !strings.Contains(failed[0].Err.Error(), tt.text) {
				t.Errorf("%s: failures %+v, want %v", name, failed, tt.want)
			}
			if name != "dropped" {
				release()
			}
			g.stop()
		}
	})
}

// A place by time goes through Subscribe to the handler; one behind what was
// dropped can be had when nothing of that time was.
func TestFromATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
		defer topic.Close()
		p := openProvider(t, topic, func(c *Config) { c.Queues = 1 })
		defer p.Close()
		s := Of[string](p, "n", "s")
		gate := make(chan struct{})
		subscribe(t, s, "holder", func(_ context.Context, b penstock.Batch[string]) error {
			if b.Values()[0] == "3" {
				<-gate
			}
			return nil
		})
		stop := running(p)
		publish(t, s, "1", "2")
		time.Sleep(time.Minute)
		since := time.Now()
		publish(t, s, "3", "4")
		time.Sleep(time.Minute)
		publish(t, s, "5")
		time.Sleep(time.Second)
		var r recorder
		subscribe(t, s, "new", r.handle, From(AtTime(since.Add(-time.Second))))
		time.Sleep(time.Second)
		want(t, "delivered", r.got(), "3 4 5")
		close(gate)
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "position", AtTime(time.Unix(1, 5)).position().String(), "at time 1970-01-01T00:00:01.000000005Z")
	})
}
