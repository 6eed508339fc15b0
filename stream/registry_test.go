package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

type spyProducer struct {
	id   string
	mu   sync.Mutex
	rs   []Roster
	gone bool
}

func (p *spyProducer) ProducerID() string { return p.id }

func (p *spyProducer) RosterChanged(_ QualifiedStreamID, r Roster) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rs = append(p.rs, r)
	return !p.gone
}

func names(recs []SubscriptionRecord) string {
	var out []string
	for _, r := range recs {
		out = append(out, r.Name)
	}
	return strings.Join(out, " ")
}

func TestRegistryTellsProducers_OR150(t *testing.T) {
	ctx := t.Context()
	m := NewMemoryRegistry()
	s := QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}
	if _, err := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "b"}); err != nil {
		t.Fatal(err)
	}
	p := &spyProducer{id: "1"}
	r, err := m.RegisterProducer(ctx, s, p)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "at registration", names(r.Subscriptions), "b")
	if again, _ := m.RegisterProducer(ctx, s, p); again.Revision != r.Revision {
		t.Errorf("registering again changed the revision")
	}
	first, _ := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "a"})
	resumed, _ := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "a"})
	want(t, "incarnation of a resumed one", resumed.Incarnation, first.Incarnation)
	if resumed.Attached == first.Attached {
		t.Error("a resumed subscription is not attached anew")
	}
	if err := m.Unsubscribe(ctx, SubscriptionRecord{Stream: s, Name: "b", Incarnation: 999}); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("unsubscribe of another incarnation: %v", err)
	}
	if err := m.Unsubscribe(ctx, SubscriptionRecord{Stream: s, Name: "b"}); err != nil {
		t.Error(err)
	}
	if err := m.UnregisterProducer(ctx, s, p); err != nil {
		t.Error(err)
	}
	m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "c"})
	var seen []string
	last := r.Revision
	for _, r := range p.rs {
		seen = append(seen, "["+names(r.Subscriptions)+"]")
		if r.Revision <= last {
			t.Errorf("revision %d after %d", r.Revision, last)
		}
		last = r.Revision
	}
	want(t, "notices", strings.Join(seen, " "), "[a b] [a b] [a]")
}

func TestFaultedSubscription_ORC135(t *testing.T) {
	ctx := t.Context()
	m := NewMemoryRegistry()
	s := QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}
	rec, _ := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"})
	old := rec
	old.Incarnation += 7
	if done, err := m.Fault(ctx, old); done || err != nil {
		t.Errorf("fault of another incarnation: %v, %v", done, err)
	}
	if done, err := m.Fault(ctx, rec); !done || err != nil {
		t.Errorf("fault: %v, %v", done, err)
	}
	if done, _ := m.Fault(ctx, rec); done {
		t.Error("faulted twice")
	}
	if _, err := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"}); !errors.Is(err, ErrFaulted) {
		t.Errorf("subscribe: %v, want ErrFaulted", err)
	}
	subs, _ := m.Subscriptions(ctx, s)
	faulted, _ := m.Faulted(ctx, s)
	r, _ := m.RegisterProducer(ctx, s, &spyProducer{id: "1"})
	want(t, "listed", names(subs)+"|"+names(faulted)+"|"+names(r.Subscriptions), "|x|")
	if err := m.Unsubscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"}); err != nil {
		t.Error(err)
	}
	if err := m.Unsubscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"}); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("second unsubscribe: %v", err)
	}
	if _, err := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"}); err != nil {
		t.Errorf("subscribe after unsubscribe: %v", err)
	}
}

func TestRegistryForgetsUnusedStreams(t *testing.T) {
	ctx := t.Context()
	m := NewMemoryRegistry()
	for i := range 100 {
		s := QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n", Key: fmt.Sprint(i)}}
		p := &spyProducer{id: "1"}
		m.RegisterProducer(ctx, s, p)
		m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"})
		m.Unsubscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"})
		m.UnregisterProducer(ctx, s, p)
	}
	want(t, "streams kept", len(m.streams), 0)
}

// A producer that is not there any more is found out by the next notice.
func TestDeadProducersAreForgotten_ORC127(t *testing.T) {
	ctx := t.Context()
	m := NewMemoryRegistry()
	s := QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}
	for i := range 50 {
		m.RegisterProducer(ctx, s, &spyProducer{id: fmt.Sprint("dead", i), gone: true})
	}
	alive := &spyProducer{id: "alive"}
	m.RegisterProducer(ctx, s, alive)
	if _, err := m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "a"}); err != nil {
		t.Fatal(err)
	}
	ids, err := m.Producers(ctx, s)
	want(t, "producers", fmt.Sprint(ids, err), "[alive] <nil>")
	want(t, "notices", len(alive.rs), 1)
}

// reborn registers itself again while the notice that finds it dead is under
// way.
type reborn struct {
	m *MemoryRegistry
	s QualifiedStreamID
}

func (r *reborn) ProducerID() string { return "reborn" }

func (r *reborn) RosterChanged(s QualifiedStreamID, _ Roster) bool {
	r.m.RegisterProducer(context.Background(), r.s, &spyProducer{id: "reborn"})
	return false
}

func TestNewRegistrationOutlivesAnOldNotice_OR150(t *testing.T) {
	ctx := t.Context()
	m := NewMemoryRegistry()
	s := QualifiedStreamID{Provider: "p", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}
	m.RegisterProducer(ctx, s, &reborn{m: m, s: s})
	m.Subscribe(ctx, SubscriptionRecord{Stream: s, Name: "a"})
	ids, _ := m.Producers(ctx, s)
	want(t, "producers", fmt.Sprint(ids), "[reborn]")
}

func TestStoppedAgentIsForgottenByTheRegistry_OR150(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.start()
		g.stop()
		g.registry.MemoryRegistry.RegisterProducer(t.Context(), g.qualified("s"), g.agent) // as if unregistering had failed
		g.announce("s", "sub")
		ids, _ := g.registry.Producers(t.Context(), g.qualified("s"))
		want(t, "producers", fmt.Sprint(ids), "[]")
	})
}
