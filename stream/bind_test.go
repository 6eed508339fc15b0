package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
)

func TestPatterns_OR151(t *testing.T) {
	for _, c := range []struct {
		name    string
		pattern Pattern
		matches string // of the namespaces below
	}{
		{"exact", Namespace(" orders "), "orders"},
		{"like", NamespaceLike("^or"), "orders or"},
		{"every", EveryNamespace(), "orders or billing"},
		{"own", Matching(func(s penstock.StreamID) bool { return len(s.Namespace) < 3 }), "or"},
	} {
		var got []string
		for _, ns := range []string{"orders", "or", "billing", "", " \t"} {
			if c.pattern.applies(penstock.StreamID{Namespace: ns, Key: "k"}) {
				got = append(got, ns)
			}
		}
		want(t, c.name, strings.Join(got, " "), c.matches)
	}
}

func TestImplicitSubscriptionsNeedNoSubscribe_OR151(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := memoryTopic(t, queue.Config[Container]{Partitions: 2})
		defer topic.Close()
		p := openProvider(t, topic)
		defer p.Close()
		var mu sync.Mutex
		got := map[string]string{}
		take := func(name string) penstock.Handler[string] {
			return func(_ context.Context, b penstock.Batch[string]) error {
				mu.Lock()
				defer mu.Unlock()
				for _, v := range b.All() {
					got[name+" "+b.Stream().Key] += v
				}
				return nil
			}
		}
		for name, where := range map[string]Pattern{"audit": EveryNamespace(), "orders": Namespace("orders")} {
			if err := Bind(p, name, where, take(name)); err != nil {
				t.Fatal(err)
			}
		}
		var explicit recorder
		subscribe(t, Of[string](p, "orders", "1"), "billing", explicit.handle)
		publish(t, Of[string](p, "orders", "1"), "a", "b") // before Run: the first event is the first delivered
		stop := running(p)
		publish(t, Of[string](p, "orders", "2"), "c")
		publish(t, Of[string](p, "other", "3"), "d")
		time.Sleep(time.Second)
		recs, err := Of[string](p, "orders", "1").Subscriptions(t.Context())
		var listed []string
		for _, r := range recs {
			listed = append(listed, fmt.Sprintf("%s %v %v", r.Name, r.Implicit, r.ID().Implicit()))
		}
		want(t, "listed", fmt.Sprint(listed, err), "[audit true true billing false false orders true true] <nil>")
		producers, subs, err := Of[string](p, "orders", "1").Counts(t.Context())
		want(t, "counts", fmt.Sprint(producers, subs, err), "1 1 <nil>")
		if err := stop(); err != nil {
			t.Error(err)
		}
		want(t, "delivered", fmt.Sprint(got), "map[audit 1:ab audit 2:c audit 3:d orders 1:ab orders 2:c]")
		want(t, "explicit", explicit.got(), "a b")
		lag := topic.Queue().Stats().Groups[0].Lag
		want(t, "lag", lag, 0)
	})
}

func TestImplicitOnlyRefusesToSubscribe_ORC132(t *testing.T) {
	p := openProvider(t, &fixedFactory{}, func(c *Config) { c.Subscriptions = ImplicitOnly })
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	_, err := Of[string](p, "n", "k").Subscribe(t.Context(), "x", nop)
	want(t, "refused", errors.Is(err, penstock.ErrUnsupported), true)
	for _, word := range []string{"shop", "ImplicitOnly", "ExplicitOnly", "ExplicitAndImplicit"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %s", err, word)
		}
	}
}

func TestBindChecks_OR151(t *testing.T) {
	nop := func(context.Context, penstock.Batch[string]) error { return nil }
	p := openProvider(t, &fixedFactory{})
	if err := Bind(p, "a", Namespace("n"), nop); err != nil {
		t.Fatal(err)
	}
	explicit := openProvider(t, &fixedFactory{}, func(c *Config) { c.Subscriptions = ExplicitOnly })
	for name, c := range map[string]struct{ err, want error }{
		"blank namespace": {Bind(p, "b", Namespace(" "), nop), penstock.ErrInvalid},
		"bad expression":  {Bind(p, "b", NamespaceLike("("), nop), penstock.ErrInvalid},
		"nil function":    {Bind(p, "b", Matching(nil), nop), penstock.ErrInvalid},
		"no pattern":      {Bind(p, "b", Pattern{}, nop), penstock.ErrInvalid},
		"blank name":      {Bind(p, " ", Namespace("n"), nop), penstock.ErrInvalid},
		"nil handler":     {Bind[string](p, "b", Namespace("n"), nil), penstock.ErrInvalid},
		"a start":         {Bind(p, "b", Namespace("n"), nop, From(Earliest)), penstock.ErrInvalid},
		"filter data":     {Bind(p, "b", Namespace("n"), nop, WithFilter("x")), penstock.ErrInvalid},
		"twice":           {Bind(p, "a", Namespace("m"), nop), penstock.ErrExists},
		"explicit only":   {Bind(explicit, "a", Namespace("n"), nop), penstock.ErrUnsupported},
		"subscribe bound": {second(Of[string](p, "n", "k").Subscribe(t.Context(), "a", nop)), penstock.ErrExists},
		"unsubscribe":     {Of[string](p, "n", "k").Unsubscribe(t.Context(), "a"), penstock.ErrUnsupported},
		"recover": {second(Of[string](p, "n", "k").Subscribe(t.Context(), "b", nop, Recover(
			func(context.Context, penstock.StreamID) (penstock.Token, bool, error) {
				return penstock.Token{}, false, nil
			}))), penstock.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if _, err := Of[string](p, "elsewhere", "k").Subscribe(t.Context(), "a", nop); err != nil {
		t.Errorf("the name where the binding does not apply: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, "after Close", errors.Is(Bind(p, "c", Namespace("n"), nop), penstock.ErrClosed), true)
}

// A handler that keeps what it has processed goes on behind it: what came after
// the checkpoint is not repeated. It is never moved back.
func TestImplicitSubscriptionRecovers_OR149(t *testing.T) {
	for name, c := range map[string]struct {
		has  uint64
		want string
	}{"ahead of the checkpoint": {2, "3 4"}, "behind it": {0, "0 1 2 3 4"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				topic := memoryTopic(t, queue.Config[Container]{Partitions: 1})
				defer topic.Close()
				p := openProvider(t, topic, func(c *Config) { c.Queues = 1 })
				defer p.Close()
				var r recorder
				if err := Bind(p, "sub", EveryNamespace(), r.handle, Recover(
					func(context.Context, penstock.StreamID) (penstock.Token, bool, error) {
						return penstock.Token{Lo: c.has}, c.has > 0, nil
					})); err != nil {
					t.Fatal(err)
				}
				publish(t, Of[string](p, "n", "k"), "0", "1", "2", "3", "4")
				stop := running(p)
				time.Sleep(time.Second)
				stop()
				want(t, "got", r.got(), c.want)
			})
		})
	}
}

func TestImplicitGoesBeforeExplicit_OR152(t *testing.T) {
	named := func(names ...string) (out []SubscriptionRecord) {
		for _, n := range names {
			out = append(out, SubscriptionRecord{Name: n})
		}
		return out
	}
	implicit := named("b", "d")
	for i := range implicit {
		implicit[i].Implicit = true
	}
	got := ""
	for _, r := range union(implicit, named("a", "b", "c", "e")) {
		got += fmt.Sprintf("%s %v ", r.Name, r.Implicit)
	}
	want(t, "union", got, "a false b true c false d true e false ")
	want(t, "implicit list is left alone", names(implicit), "b d")
	want(t, "without bindings", names(union(nil, named("a"))), "a")
}
