package penstocktest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// Registry checks the contract of [stream.Registry]. open returns one that
// knows nothing of the provider "suite".
func Registry(t *testing.T, open func(t *testing.T) stream.Registry) {
	for _, s := range []struct {
		name string
		test func(t *testing.T, r stream.Registry)
	}{
		{"ProducersLearnOfChanges", producersLearn},
		{"SubscribingAgainKeepsTheIncarnation", subscribingAgain},
		{"FaultedIsRefusedUntilUnsubscribed", faulted},
		{"ResetGivesAFaultedOneBack", reset},
		{"FilterDataIsThatOfTheLastSubscribe", filterData},
		{"ProducersThatAreGoneAreForgotten", producersGone},
		{"IncarnationsAreToldApart", incarnations},
		{"ConcurrentChangesEndInOneRoster", concurrentChanges},
	} {
		t.Run(s.name, func(t *testing.T) { s.test(t, open(t)) })
	}
}

var suiteStream = stream.QualifiedStreamID{Provider: "suite", StreamID: penstock.StreamID{Namespace: "n", Key: "k"}}

func named(name string) stream.SubscriptionRecord {
	return stream.SubscriptionRecord{Stream: suiteStream, Name: name}
}

func roster(recs []stream.SubscriptionRecord) string {
	var names []string
	for _, r := range recs {
		names = append(names, r.Name)
	}
	return "[" + strings.Join(names, " ") + "]"
}

// producer keeps the roster with the highest revision, as agents do.
type producer struct {
	id     string
	mu     sync.Mutex
	newest stream.Roster
	seen   []string
	gone   bool
}

func (p *producer) ProducerID() string { return p.id }

func (p *producer) RosterChanged(_ stream.QualifiedStreamID, r stream.Roster) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, roster(r.Subscriptions))
	if r.Revision > p.newest.Revision {
		p.newest = r
	}
	return !p.gone
}

func must[T any](t *testing.T, what string) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return v
	}
}

func producersLearn(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("b")))
	one, two := &producer{id: "one"}, &producer{id: "two"}
	first := must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, one))
	if got := roster(first.Subscriptions); got != "[b]" {
		t.Errorf("registering returned %s", got)
	}
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, one)) // again: told once
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, two))
	must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if err := r.UnregisterProducer(ctx, suiteStream, two); err != nil {
		t.Errorf("UnregisterProducer: %v", err)
	}
	if err := r.UnregisterProducer(ctx, suiteStream, two); err != nil {
		t.Errorf("UnregisterProducer of an unknown one: %v", err)
	}
	if err := r.Unsubscribe(ctx, named("b")); err != nil {
		t.Errorf("Unsubscribe: %v", err)
	}
	if got := strings.Join(one.seen, " "); got != "[a b] [a]" {
		t.Errorf("the first producer was told %s", got)
	}
	if got := strings.Join(two.seen, " "); got != "[a b]" {
		t.Errorf("the second producer was told %s", got)
	}
	if one.newest.Revision <= first.Revision {
		t.Errorf("revision %d after %d", one.newest.Revision, first.Revision)
	}
}

func subscribingAgain(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	first := must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	again := must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if first.Incarnation != again.Incarnation || first.Attached == again.Attached {
		t.Errorf("%+v, then %+v: want the same incarnation, attached anew", first, again)
	}
	if err := r.Unsubscribe(ctx, named("a")); err != nil {
		t.Fatal(err)
	}
	if err := r.Unsubscribe(ctx, named("a")); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("second Unsubscribe: %v, want ErrNotFound", err)
	}
	fresh := must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if fresh.Incarnation == first.Incarnation {
		t.Error("a name that is used again has its old incarnation")
	}
}

func faulted(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	rec := must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	p := &producer{id: "p"}
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, p))
	if !must[bool](t, "Fault")(r.Fault(ctx, rec)) {
		t.Error("Fault of a live subscription reported false")
	}
	if must[bool](t, "Fault")(r.Fault(ctx, rec)) {
		t.Error("second Fault reported true")
	}
	if got := roster(p.newest.Subscriptions); got != "[]" {
		t.Errorf("the producer was told %s", got)
	}
	live := roster(must[[]stream.SubscriptionRecord](t, "Subscriptions")(r.Subscriptions(ctx, suiteStream)))
	dead := roster(must[[]stream.SubscriptionRecord](t, "Faulted")(r.Faulted(ctx, suiteStream)))
	if live != "[]" || dead != "[a]" {
		t.Errorf("live %s, faulted %s", live, dead)
	}
	if _, err := r.Subscribe(ctx, named("a")); !errors.Is(err, stream.ErrFaulted) {
		t.Errorf("Subscribe: %v, want ErrFaulted", err)
	}
	if err := r.Unsubscribe(ctx, named("a")); err != nil {
		t.Errorf("Unsubscribe of a faulted one: %v", err)
	}
	must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
}

func reset(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	if err := r.Reset(ctx, named("a")); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("Reset of an unknown one: %v, want ErrNotFound", err)
	}
	rec := must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if err := r.Reset(ctx, rec); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("Reset of one that is not faulted: %v, want ErrNotFound", err)
	}
	must[bool](t, "Fault")(r.Fault(ctx, rec))
	p := &producer{id: "p"}
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, p))
	other := rec
	other.Incarnation += 1000
	if err := r.Reset(ctx, other); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("Reset of another incarnation: %v, want ErrNotFound", err)
	}
	if err := r.Reset(ctx, named("a")); err != nil {
		t.Errorf("Reset: %v", err)
	}
	if got := roster(p.newest.Subscriptions); got != "[a]" {
		t.Fatalf("the producer was told %s", got)
	}
	back := p.newest.Subscriptions[0]
	if back.Incarnation != rec.Incarnation || back.Attached == rec.Attached {
		t.Errorf("%+v, then %+v: want the same incarnation, attached anew", rec, back)
	}
	if dead := roster(must[[]stream.SubscriptionRecord](t, "Faulted")(r.Faulted(ctx, suiteStream))); dead != "[]" {
		t.Errorf("faulted %s", dead)
	}
}

func filterData(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	want := named("a")
	for _, filter := range []string{"one", "two", ""} {
		want.Filter = filter
		must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, want))
		recs := must[[]stream.SubscriptionRecord](t, "Subscriptions")(r.Subscriptions(ctx, suiteStream))
		if len(recs) != 1 || recs[0].Filter != filter {
			t.Errorf("subscriptions %+v, want one with filter %q", recs, filter)
		}
	}
}

func producersGone(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	one, two := &producer{id: "one", gone: true}, &producer{id: "two"}
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, two))
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, one))
	if got := fmt.Sprint(must[[]string](t, "Producers")(r.Producers(ctx, suiteStream))); got != "[one two]" {
		t.Errorf("producers %s", got)
	}
	must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if got := fmt.Sprint(must[[]string](t, "Producers")(r.Producers(ctx, suiteStream))); got != "[two]" {
		t.Errorf("producers %s after a notice found one gone", got)
	}
}

func incarnations(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	old := must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if err := r.Unsubscribe(ctx, old); err != nil {
		t.Fatal(err)
	}
	must[stream.SubscriptionRecord](t, "Subscribe")(r.Subscribe(ctx, named("a")))
	if must[bool](t, "Fault")(r.Fault(ctx, old)) {
		t.Error("a record of an old incarnation faulted the new one")
	}
	if err := r.Unsubscribe(ctx, old); !errors.Is(err, penstock.ErrNotFound) {
		t.Errorf("a record of an old incarnation unsubscribed: %v, want ErrNotFound", err)
	}
}

// concurrentChanges: whatever the order of the notices, the one with the
// highest revision is the truth.
func concurrentChanges(t *testing.T, r stream.Registry) {
	ctx := t.Context()
	p := &producer{id: "p"}
	must[stream.Roster](t, "RegisterProducer")(r.RegisterProducer(ctx, suiteStream, p))
	var wg sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprint(i)
		wg.Go(func() { // ends after its changes
			for range 20 {
				if _, err := r.Subscribe(ctx, named(name)); err != nil {
					t.Errorf("Subscribe: %v", err)
				}
				if err := r.Unsubscribe(ctx, named(name)); err != nil {
					t.Errorf("Unsubscribe: %v", err)
				}
			}
			if i%2 == 0 {
				if _, err := r.Subscribe(ctx, named(name)); err != nil {
					t.Errorf("Subscribe: %v", err)
				}
			}
		})
	}
	wg.Wait()
	truth := roster(must[[]stream.SubscriptionRecord](t, "Subscriptions")(r.Subscriptions(ctx, suiteStream)))
	if got := roster(p.newest.Subscriptions); got != truth || truth != "[0 2 4 6]" {
		t.Errorf("the producer holds %s, the registry %s", got, truth)
	}
}
