package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
)

// The orders in which an agent can hear of a stream's events, of subscriptions
// and notices, of answers to handshakes and of a purge are all tried, against a
// model that says exactly what each subscription gets.

// stepKind is what happens in one step.
type stepKind uint8

const (
	stepEvent     stepKind = iota // the next container of the stream is read
	stepSubscribe                 // the subscription is stored, or stored anew
	stepNotice                    // the agent is told the roster that a stepSubscribe made
	stepReply                     // the consumer answers its n-th question, or will at once
	stepPurge                     // progress is reported and the cache purged
)

// orderStep is one step; it comes after those that it needs.
type orderStep struct {
	kind  stepKind
	sub   int // number of the subscription
	n     int // of its subscribe, notice or reply, from 1
	after []int
}

func (s orderStep) String() string {
	return [...]string{"event", "subscribe", "notice", "reply", "purge"}[s.kind] + map[bool]string{true: fmt.Sprintf(" %c%d", 'a'+s.sub, s.n)}[s.n > 0]
}

// permutations calls f with every order of the steps in which each comes after
// those that it needs; it stops when f returns false.
func permutations(steps []orderStep, f func([]int) bool) (n int) {
	taken, order := make([]bool, len(steps)), make([]int, 0, len(steps))
	var walk func() bool
	walk = func() bool {
		if len(order) == len(steps) {
			n++
			return f(order)
		}
		for i := range steps {
			if taken[i] || slices.ContainsFunc(steps[i].after, func(j int) bool { return !taken[j] }) {
				continue
			}
			taken[i], order = true, append(order, i)
			goOn := walk()
			taken[i], order = false, order[:len(order)-1]
			if !goOn {
				return false
			}
		}
		return true
	}
	walk()
	return n
}

// orderModel says what must happen.
type orderModel struct {
	answers [][]Position // of each subscription, by question

	read, purged uint64
	known        bool // the agent knows the stream
	revision     uint64
	seen         uint64 // revision of the newest roster applied
	roster       map[int]uint64
	rosters      map[string]modelRoster // as each subscribe made them
	subs         map[int]*modelSub
	replied      map[string]bool
}

type modelRoster struct {
	revision uint64
	attached map[int]uint64
}

type modelSub struct {
	revision uint64 // of the subscribe that was applied last
	asked    int
	attached bool
	initial  bool
	next     uint64 // container that it gets next
	pin      uint64 // where it starts unless its consumer asks for another place; 0 for none
	got      []string
}

func newOrderModel(answers [][]Position) *orderModel {
	return &orderModel{
		answers: answers, roster: map[int]uint64{}, rosters: map[string]modelRoster{},
		subs: map[int]*modelSub{}, replied: map[string]bool{},
	}
}

func (m *orderModel) step(s orderStep) {
	switch s.kind {
	case stepEvent:
		m.read++
		if !m.known {
			m.known, m.seen = true, m.revision
			for _, sub := range m.order(m.roster) {
				m.add(sub, m.roster[sub], 1, true)
			}
		}
	case stepSubscribe:
		m.revision++
		m.roster[s.sub] = m.revision
		r := modelRoster{m.revision, map[int]uint64{}}
		for k, v := range m.roster {
			r.attached[k] = v
		}
		m.rosters[fmt.Sprint(s.sub, s.n)] = r
	case stepNotice:
		m.notice(m.rosters[fmt.Sprint(s.sub, s.n)])
	case stepReply:
		m.replied[fmt.Sprint(s.sub, s.n)] = true
		if x := m.subs[s.sub]; x != nil && x.asked == s.n {
			m.answer(s.sub)
		}
	case stepPurge:
		held := false
		for _, x := range m.subs {
			held = held || !x.attached && (x.initial || x.pin <= m.read)
		}
		if !held {
			m.purged = m.read
		}
	}
	for _, x := range m.subs {
		for x.attached && x.next <= m.read {
			x.got = append(x.got, fmt.Sprint(x.next))
			x.next++
		}
	}
}

func (m *orderModel) order(of map[int]uint64) (out []int) {
	for sub := range of {
		out = append(out, sub)
	}
	slices.Sort(out)
	return out
}

func (m *orderModel) notice(r modelRoster) {
	if !m.known || r.revision <= m.seen {
		return
	}
	m.seen = r.revision
	for _, sub := range m.order(r.attached) {
		x := m.subs[sub]
		switch {
		case x == nil:
			m.add(sub, r.attached[sub], m.read+1, false)
		case x.revision != r.attached[sub]:
			x.revision = r.attached[sub]
			if x.attached {
				x.pin = m.read + 1
			}
			m.ask(sub)
		}
	}
}

func (m *orderModel) add(sub int, revision, at uint64, initial bool) {
	m.subs[sub] = &modelSub{revision: revision, pin: at, initial: initial}
	m.ask(sub)
}

// ask asks; an answer that is there already comes at once, and overtakes those
// to earlier questions.
func (m *orderModel) ask(sub int) {
	x := m.subs[sub]
	x.asked++
	if m.replied[fmt.Sprint(sub, x.asked)] {
		m.answer(sub)
	}
}

// answer applies the answer to the latest question.
func (m *orderModel) answer(sub int) {
	x := m.subs[sub]
	switch at := m.answers[sub][x.asked-1]; at.Kind {
	case PositionNone:
		if !x.attached {
			x.next = x.pin
		}
	case PositionEarliest:
		x.next = m.purged + 1
	case PositionAt:
		x.next = at.Token.Lo
	}
	x.attached, x.pin = true, 0
}

// toldRegistry is a registry whose notices the test brings.
type toldRegistry struct {
	Registry
	mu      sync.Mutex
	now     Roster
	rosters map[string]Roster
}

func (r *toldRegistry) RegisterProducer(context.Context, QualifiedStreamID, Producer) (Roster, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now, nil
}

func (r *toldRegistry) UnregisterProducer(context.Context, QualifiedStreamID, Producer) error {
	return nil
}

func (r *toldRegistry) subscribe(s orderStep) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := string(rune('a' + s.sub))
	next := Roster{Revision: r.now.Revision + 1, Subscriptions: slices.Clone(r.now.Subscriptions)}
	i, found := find(next.Subscriptions, name)
	if !found {
		rec := SubscriptionRecord{Stream: QualifiedStreamID{"rig", penstock.StreamID{Namespace: "n", Key: "s"}}, Name: name, Incarnation: next.Revision}
		next.Subscriptions = slices.Insert(next.Subscriptions, i, rec)
	}
	next.Subscriptions[i].Attached = next.Revision
	r.now, r.rosters[fmt.Sprint(s.sub, s.n)] = next, next
}

// orderConsumer answers its n-th question when its n-th gate opens.
type orderConsumer struct {
	answers []Position
	gates   []chan struct{}
	mu      sync.Mutex
	asked   int
	got     []string
}

func (c *orderConsumer) Handshake(context.Context, Handshake) (Position, error) {
	c.mu.Lock()
	c.asked++
	n := c.asked
	c.mu.Unlock()
	<-c.gates[n-1]
	return c.answers[n-1], nil
}

func (c *orderConsumer) Deliver(_ context.Context, d *Delivery) (Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, it := range d.Items {
		c.got = append(c.got, string(it.Value()))
	}
	return Answer{}, nil
}

// tryOrder runs one order and returns what is wrong with it.
func tryOrder(t *testing.T, answers [][]Position, steps []orderStep, order []int) (faults []string) {
	reg := &toldRegistry{rosters: map[string]Roster{}}
	consumers := make([]*orderConsumer, len(answers))
	for i, a := range answers {
		consumers[i] = &orderConsumer{answers: a}
		for range a {
			consumers[i].gates = append(consumers[i].gates, make(chan struct{}))
		}
	}
	g := newRig(t, func(g *rig, c *agentConfig) {
		c.registry, c.trace = reg, nil
		c.resolve = func(_ context.Context, rec SubscriptionRecord) (Consumer, error) {
			return consumers[rec.Name[0]-'a'], nil
		}
	})
	if err := g.agent.start(context.Background()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	g.unspy()
	m := newOrderModel(answers)
	for _, i := range order {
		s := steps[i]
		m.step(s)
		switch s.kind {
		case stepEvent:
			g.agent.ask(func(r *run) { r.take(boxes("s", m.read, m.read)) })
		case stepSubscribe:
			reg.subscribe(s)
		case stepNotice:
			g.agent.RosterChanged(g.qualified("s"), reg.rosters[fmt.Sprint(s.sub, s.n)])
		case stepReply:
			close(consumers[s.sub].gates[s.n-1])
		case stepPurge:
			g.agent.ask(func(r *run) { r.reportProgress(false); r.purge() })
		}
		synctest.Wait()
		for sub, c := range consumers {
			var want []string
			if x := m.subs[sub]; x != nil {
				want = x.got
			}
			c.mu.Lock()
			if !slices.Equal(c.got, want) {
				faults = append(faults, fmt.Sprintf("after %q subscription %c has %q, want %q", s, 'a'+sub, c.got, want))
			}
			c.mu.Unlock()
		}
		if len(faults) > 0 {
			break
		}
	}
	for _, c := range consumers { // those whose question never came
		for _, gate := range c.gates {
			select {
			case <-gate:
			default:
				close(gate)
			}
		}
	}
	synctest.Wait()
	g.agent.ask(func(r *run) { r.reportProgress(false); r.purge() })
	if st := g.stats(); len(faults) == 0 && (st.Cached != 0 || st.Busy != 0 && st.Subscriptions != 0 || st.Lag != 0) {
		faults = append(faults, fmt.Sprintf("at rest: %d cached, %d busy, lag %d", st.Cached, st.Busy, st.Lag))
	}
	if err := g.stop(); err != nil {
		faults = append(faults, err.Error())
	}
	if last := g.lastProgress(); len(faults) == 0 && last != "3" && last != "nil" {
		faults = append(faults, "last progress "+last)
	}
	return faults
}

// tryAll tries every order and names the first one that goes wrong. With the
// race detector, and in short tests, it tries every eleventh.
func tryAll(t *testing.T, answers [][]Position, steps []orderStep, orders int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		number := 0
		n := permutations(steps, func(order []int) bool {
			if number++; (raceEnabled || testing.Short()) && number%11 != 0 {
				return true
			}
			faults := tryOrder(t, answers, steps, order)
			if len(faults) > 0 {
				var names []string
				for _, i := range order {
					names = append(names, steps[i].String())
				}
				t.Errorf("%s: %s", strings.Join(names, ", "), strings.Join(faults, "; "))
			}
			return len(faults) == 0
		})
		if !t.Failed() {
			want(t, "orders", n, orders)
		}
	})
}

// threeEvents begins the steps of a test: they come in order.
func threeEvents() []orderStep {
	return []orderStep{{kind: stepEvent}, {kind: stepEvent, after: []int{0}}, {kind: stepEvent, after: []int{1}}}
}

// Two subscriptions, their notices, which may overtake each other, and their
// answers, three events and a purge, in every order: none loses an event that
// it is owed and none gets another.
func TestEveryOrderOfSubscribingAndEvents(t *testing.T) {
	for name, answers := range map[string][2]Position{
		"no answer, no answer": {},
		"no answer, earliest":  {{}, {Kind: PositionEarliest}},
	} {
		t.Run(name, func(t *testing.T) {
			steps := append(threeEvents(),
				orderStep{stepSubscribe, 0, 1, nil}, orderStep{stepNotice, 0, 1, []int{3}}, orderStep{stepReply, 0, 1, []int{4}},
				orderStep{stepSubscribe, 1, 1, nil}, orderStep{stepNotice, 1, 1, []int{6}}, orderStep{stepReply, 1, 1, []int{7}},
				orderStep{kind: stepPurge},
			)
			tryAll(t, [][]Position{{answers[0]}, {answers[1]}}, steps, 16800)
		})
	}
}

// A subscription that is announced again is asked again; the answers come in
// every order, among events and a purge. Only the one to the latest question
// counts, whenever it comes (OR-78 to OR-80).
func TestEveryOrderOfAnswers_OR80(t *testing.T) {
	steps := append(threeEvents(),
		orderStep{stepSubscribe, 0, 1, nil}, orderStep{stepNotice, 0, 1, []int{3}},
		orderStep{stepSubscribe, 0, 2, []int{4}}, orderStep{stepNotice, 0, 2, []int{5}},
		orderStep{stepReply, 0, 1, []int{3}}, orderStep{stepReply, 0, 2, []int{3}},
		orderStep{kind: stepPurge},
	)
	beyond := Position{Kind: PositionAt, Token: penstock.Token{Lo: 9}} // it gets nothing then
	tryAll(t, [][]Position{{beyond, {}}}, steps, 16800)
}
