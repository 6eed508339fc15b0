package stream

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

// rudeReceiver misbehaves where it is told to, and otherwise does as the
// scripted one.
type rudeReceiver struct {
	*scriptReceiver
	in  string
	act func()
}

func (r rudeReceiver) misbehave(where string) {
	if r.in == where {
		r.act()
	}
}

func (r rudeReceiver) Init(ctx context.Context) error {
	r.misbehave("Init")
	return r.scriptReceiver.Init(ctx)
}

func (r rudeReceiver) Read(ctx context.Context, limit int) ([]Container, error) {
	r.misbehave("Read")
	return r.scriptReceiver.Read(ctx, limit)
}

func (r rudeReceiver) Delivered(ctx context.Context, done []Container) error {
	r.misbehave("Delivered")
	return r.scriptReceiver.Delivered(ctx, done)
}

func (r rudeReceiver) Shutdown(ctx context.Context) error {
	r.misbehave("Shutdown")
	return r.scriptReceiver.Shutdown(ctx)
}

// An adapter that panics, or ends its goroutine, once or for ever, neither ends
// the process nor keeps a drain from ending; once it behaves, delivery goes on.
func TestReceiverThatPanicsIsSurvived(t *testing.T) {
	for _, where := range []string{"Init", "Read", "Delivered", "Shutdown"} {
		for how, act := range map[string]func(){
			"panics": func() { panic("rude") },
			"leaves": runtime.Goexit,
		} {
			for _, once := range []bool{true, false} {
				t.Run(where+" "+how+map[bool]string{true: " once"}[once], func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						calls := 0
						g := newRig(t, func(g *rig, c *agentConfig) {
							c.newReceiver = func() (Receiver, error) {
								rec := &scriptReceiver{rig: g}
								g.receivers = append(g.receivers, rec)
								return rudeReceiver{rec, where, func() {
									if calls++; calls == 1 || !once {
										act()
									}
								}}, nil
							}
						})
						g.newCache = func() (Cache, error) { return NewSimpleCache(5) }
						g.start()
						c := g.subscribe("s", "sub")
						g.feed(boxes("s", 1, 4)...)
						for range 3 {
							g.pump()
							time.Sleep(time.Second)
						}
						expect := "1 2 3 4"
						if where == "Read" && !once {
							expect = ""
						}
						want(t, "settled", c.values(), expect)
						g.stop()
					})
				})
			}
		}
	}
}

// What a receiver should not return: containers of no stream or without
// events, tokens that repeat, fall or are enormous, more than was asked for.
// Nothing panics, nothing that fits is lost, and when something had to be
// refused the checkpoint stays and the statistics say so.
func TestReceiverThatReturnsGarbage(t *testing.T) {
	huge := box("s", 0)
	huge.Token = penstock.Token{Hi: math.MaxUint64, Lo: math.MaxUint64, Index: math.MaxUint32}
	indexed := box("s", 2)
	indexed.Token.Index = 7
	for name, tt := range map[string]struct {
		reads   [][]Container
		settled string
		mark    uint64
		refused bool
	}{
		"empty containers":   {[][]Container{{{}, box("s", 1), {Token: penstock.Token{Lo: 9}}, box("s", 2), {}}}, "1 2", 2, false},
		"containers only":    {[][]Container{{{}, {}}, {box("s", 1)}}, "1", 1, false},
		"no stream":          {[][]Container{{box("s", 1), {Token: penstock.Token{Lo: 2}, Events: box("s", 2).Events}, box("s", 3)}}, "1 3", 3, false},
		"enormous token":     {[][]Container{{box("s", 1), huge}}, "1 0", math.MaxUint64, false},
		"after the last one": {[][]Container{{box("s", 1), huge}, {box("s", 2)}}, "1 0", math.MaxUint64, true},
		"token with index":   {[][]Container{{box("s", 1), indexed, box("s", 3)}}, "1 2 3", 3, false},
		"repeated":           {[][]Container{{box("s", 1)}, {box("s", 1)}, {box("s", 2)}}, "1 2", 1, true},
		"falling":            {[][]Container{{box("s", 5)}, {box("s", 4)}, {box("s", 6)}}, "5 6", 5, true},
		"repeated in a read": {[][]Container{{box("s", 1)}, {box("s", 2), box("s", 2)}, {box("s", 3)}}, "1 2 3", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				g.marks = &spyMarks{}
				g.script = func(call, _ int) ([]Container, error) {
					if call <= len(tt.reads) {
						return tt.reads[call-1], nil
					}
					return nil, nil
				}
				g.start()
				c := g.subscribe("s", "sub")
				for range len(tt.reads) + 1 {
					g.pump()
				}
				want(t, "settled", c.values(), tt.settled)
				if refused := strings.Contains(g.stats().Reason, "refused by the cache"); refused != tt.refused {
					t.Errorf("reason %q, refused %v", g.stats().Reason, tt.refused)
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
				if got := g.marks.at(); got > tt.mark || !tt.refused && got != tt.mark {
					t.Errorf("checkpoint %d, want %d (at most, when something was refused)", got, tt.mark)
				}
			})
		})
	}
}

// A cache that gives nothing, or a factory that makes nothing, is an error of
// Run and not a panic in the caller's goroutine.
func TestFactoryThatMakesNothing(t *testing.T) {
	for name, spoil := range map[string]func(c *agentConfig){
		"no cache":       func(c *agentConfig) { c.newCache = func() (Cache, error) { return nil, nil } },
		"no receiver":    func(c *agentConfig) { c.newReceiver = func() (Receiver, error) { return nil, nil } },
		"cache panics":   func(c *agentConfig) { c.newCache = func() (Cache, error) { panic("boom") } },
		"receiver exits": func(c *agentConfig) { c.newReceiver = func() (Receiver, error) { runtime.Goexit(); return nil, nil } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, func(_ *rig, c *agentConfig) { spoil(c) })
				err := g.agent.start(t.Context())
				var p *penstock.PanicError
				if !errors.Is(err, penstock.ErrInvalid) && !errors.As(err, &p) {
					t.Errorf("start: %v", err)
				}
				if err := g.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

type emptyFactory struct{ DefaultParts }

func (emptyFactory) NewAdapter(context.Context, Environment) (Adapter, error) { return nil, nil }

type oddMapper struct{ Mapper }

func (oddMapper) Queues() []QueueID { return []QueueID{{Name: "odd", Number: 1}} }

type oddFactory struct{ *Topic }

func (oddFactory) NewMapper(string, int) (Mapper, error) { return oddMapper{}, nil }

func TestOpenRefusesPartsThatCannotWork(t *testing.T) {
	topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
	defer topic.Close()
	for name, f := range map[string]Factory{"no adapter": emptyFactory{}, "queues out of place": oddFactory{topic}} {
		if _, err := Open(Config{Name: "shop", Factory: f}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
