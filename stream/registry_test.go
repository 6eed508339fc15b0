package stream

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
)

type spyProducer struct {
	id string
	mu sync.Mutex
	rs []Roster
}

func (p *spyProducer) ProducerID() string { return p.id }

func (p *spyProducer) RosterChanged(_ QualifiedStreamID, r Roster) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rs = append(p.rs, r)
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
	if _, err := m.Subscribe(ctx, s, "b"); err != nil {
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
	first, _ := m.Subscribe(ctx, s, "a")
	resumed, _ := m.Subscribe(ctx, s, "a")
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
	m.Subscribe(ctx, s, "c")
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
	rec, _ := m.Subscribe(ctx, s, "x")
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
	if _, err := m.Subscribe(ctx, s, "x"); !errors.Is(err, ErrFaulted) {
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
	if _, err := m.Subscribe(ctx, s, "x"); err != nil {
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
		m.Subscribe(ctx, s, "x")
		m.Unsubscribe(ctx, SubscriptionRecord{Stream: s, Name: "x"})
		m.UnregisterProducer(ctx, s, p)
	}
	want(t, "streams kept", len(m.streams), 0)
}
