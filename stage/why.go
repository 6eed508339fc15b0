package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// State says in one word how a stage, or a graph, is doing.
type State uint8

// The states, by severity. A graph is in one of Ready, Moving, Draining, Ended
// and Failed.
const (
	Ready      State = iota // the graph was not started
	Moving                  // events are processed
	Idle                    // nothing to process: it waits for events
	NoDemand                // its consumers have asked for no more
	Ended                   // normally, or by the failure of another stage
	NoProducer              // a gate or a sink without a subscription
	Draining                // the graph delivers what is on its way
	Busy                    // user code has been running for a second or more
	NoConsumer              // a source or a gate without a subscription
	Restarting              // it has failed, and waits to be restarted
	Dropping                // its buffer has dropped events within the last minute
	Stuck                   // user code has been running for half a minute or more
	Failed                  // it has ended by an error of its own
	states
)

var stateNames = [states]string{
	"ready", "moving", "idle", "no_demand", "ended", "no_producer", "draining", "busy", "no_consumer", "restarting", "dropping", "stuck", "failed",
}

// String returns the state as it stands in JSON and metrics: no_demand.
func (s State) String() string {
	if s < states {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Severity returns how bad the state is.
func (s State) Severity() penstock.Severity {
	switch {
	case s <= Ended:
		return penstock.Fine
	case s <= Busy:
		return penstock.Notice
	case s <= Stuck:
		return penstock.Warning
	}
	return penstock.Alarm
}

// How long user code runs before somebody wonders, and for how long drops are
// remembered.
const (
	busyAfter  = time.Second
	stuckAfter = 30 * time.Second
	droppedFor = time.Minute
)

// view is a status with its edges by stage.
type view struct {
	*Status
	in, out [][]*EdgeStatus // by stage
}

// explain fills in the states, the reasons and the constraint. It is a pure
// function of the picture.
func (s *Status) explain() {
	v := view{s, make([][]*EdgeStatus, len(s.Stages)), make([][]*EdgeStatus, len(s.Stages))}
	for i := range s.Edges {
		e := &s.Edges[i]
		if e.from >= 0 {
			v.out[e.from] = append(v.out[e.from], e)
		}
		if e.to >= 0 {
			v.in[e.to] = append(v.in[e.to], e)
		}
	}
	for i := range s.Stages {
		s.Stages[i].State, s.Stages[i].Why = v.why(i)
	}
	v.constrain()
}

// why says why a stage does not move, or that it does: what ended it first, then
// what its user code does, then what it waits for.
func (v *view) why(i int) (State, string) {
	st := &v.Stages[i]
	switch {
	case v.State == Ready:
		return Ready, "the graph was not started" + v.unstarted
	case st.failed:
		return Failed, "failed: " + st.Error
	case st.Ended && st.Error != "":
		return Ended, "ended by the failure of a stage before it: " + st.Error
	case st.Ended:
		return Ended, "ended"
	}
	if !st.RestartAt.IsZero() {
		return Restarting, "is restarted in " + debugpage.Span(max(0, st.RestartAt.Sub(v.Time))) + ": " + st.Failure
	}
	if age := v.inUserCode(st); age >= stuckAfter {
		return Stuck, v.busy(i, age)
	} else if age >= busyAfter {
		return Busy, v.busy(i, age)
	}
	if st.drops > 0 {
		held, _ := v.heldUp(i)
		return Dropping, "dropped " + events(st.drops) + " within the last minute, its buffer was full" + held
	}
	if st.Kind != KindSink && st.Consumers == 0 {
		text := "no consumer is subscribed"
		if st.Buffered > 0 {
			text += "; it holds " + events(st.Buffered)
		}
		return NoConsumer, text
	}
	if st.Kind != KindSource && len(v.in[i]) == 0 {
		return NoProducer, "is subscribed to no producer"
	}
	return v.flow(i)
}

// flow says how a stage stands between its producers and its consumers.
func (v *view) flow(i int) (State, string) {
	st := &v.Stages[i]
	open, inFlight := int64(math.MaxInt64), int64(0)
	for k, e := range v.out[i] {
		if k == 0 {
			open = 0
		}
		open = max(open, e.Open)
	}
	for _, e := range v.in[i] {
		inFlight += e.InFlight
	}
	held, stopped := v.heldUp(i)
	if st.Slots > 0 && st.Held > 0 {
		return Moving, st.slots()
	}
	if mate, age := v.caller(i); mate != i && age >= busyAfter {
		return NoDemand, "waits for " + v.Stages[mate].Name + " in the same goroutine, in its callback for " + debugpage.Span(age)
	}
	switch {
	case st.moved && !stopped:
		text := "moving"
		if st.Over > 0 {
			text += ", " + debugpage.Rate(st.OutPerSecond)
		}
		return Moving, text + held
	case open <= 0 || st.Buffered > 0 && v.pressed(i) != nil:
		text := "its consumers have asked for no more"
		if st.Buffered > 0 {
			text += "; it holds " + events(st.Buffered)
		}
		return NoDemand, text + held
	case !st.Since.IsZero() || inFlight > 0:
		return Moving, "moving" + held
	case st.Kind == KindSource:
		return Idle, "has nothing to give; " + events(open) + " asked for"
	}
	return Idle, "waits for events from " + producers(v.in[i])
}

// slots says how many slots are in use, and what became of children before.
func (s *StageStatus) slots() string {
	text := grouped(s.Held) + " of " + debugpage.Count(uint64(s.Slots), "slot", "slots") + " in use"
	if s.ChildRestarts > 0 {
		text += ", " + debugpage.Count(uint64(s.ChildRestarts), "restart", "restarts")
	}
	if s.Abandoned > 0 {
		text += ", " + debugpage.Count(uint64(s.Abandoned), "child", "children") + " abandoned"
	}
	return text
}

func (v *view) inUserCode(st *StageStatus) time.Duration {
	if st.Since.IsZero() {
		return 0
	}
	return max(0, v.Time.Sub(st.Since))
}

// busy says that user code has not come back, and what waits for it.
func (v *view) busy(i int, age time.Duration) string {
	text := "in its callback for " + debugpage.Span(age)
	waiting := int64(0)
	for _, e := range v.in[i] {
		waiting += e.InFlight
	}
	if waiting > 0 {
		text += "; " + events(waiting) + " with it and on their way to it"
	}
	return text
}

// pressed returns the edge that holds a stage up the most: one whose consumer
// has asked for no more; nil when there is none.
func (v *view) pressed(i int) (worst *EdgeStatus) {
	for _, e := range v.out[i] {
		if e.holds() && (worst == nil || e.InFlight > worst.InFlight) {
			worst = e
		}
	}
	return worst
}

// holds reports whether the demand of the edge is used up.
func (e *EdgeStatus) holds() bool { return e.Open <= 0 && !e.Cancelled }

// heldUp says which stage further down a stage waits for, if any, and whether
// that one stands still in its callback.
func (v *view) heldUp(i int) (text string, stopped bool) {
	e := v.pressed(i)
	if e == nil {
		return "", false
	}
	last := e
	for range v.Stages { // a graph may have edges back
		if last.to < 0 {
			break
		}
		next := v.pressed(last.to)
		if next == nil {
			break
		}
		last = next
	}
	if last.to < 0 {
		return "; held up by " + last.To, false
	}
	caller, age := v.caller(last.to)
	text = "; held up by " + v.Stages[caller].Name
	if age >= busyAfter {
		return text + ", in its callback for " + debugpage.Span(age), true
	}
	return text, false
}

// caller returns the stage whose user code keeps stage i, and for how long it
// has been running: that of i itself or of one in the same goroutine; i and 0
// when there is none.
func (v *view) caller(i int) (at int, age time.Duration) {
	if age = v.inUserCode(&v.Stages[i]); age > 0 || v.Stages[i].Executor < 0 {
		return i, age
	}
	at = i
	for k := range v.Stages {
		if other := v.inUserCode(&v.Stages[k]); v.Stages[k].Executor == v.Stages[i].Executor && other > age {
			at, age = k, other
		}
	}
	return at, age
}

// constrain finds the edge that holds the graph up: its demand is used up, and
// its consumer waits for nobody. Of several it is the one whose consumer has
// been in its callback for the longest, then the one with the most on its way.
func (v *view) constrain() {
	var worst *EdgeStatus
	var longest time.Duration
	for i := range v.Edges {
		e := &v.Edges[i]
		if !e.holds() || v.State == Ready || e.to < 0 || v.pressed(e.to) != nil || v.Stages[e.to].Ended {
			continue
		}
		_, age := v.caller(e.to)
		if worst == nil || age > longest || age == longest && e.InFlight > worst.InFlight {
			worst, longest = e, age
		}
	}
	switch {
	case v.State == Ready:
		v.Constraint = "the graph was not started" + v.unstarted
	case v.State == Ended || v.State == Failed:
		v.Constraint = "the graph has ended"
	case worst == nil:
		v.Constraint = "no subscription: consumers take all that sources give"
		if idle := v.idleSources(); idle != "" {
			v.Constraint = "no subscription: the graph waits for " + idle
		}
	case worst.Manual && worst.InFlight == 0:
		worst.Constraint = true
		v.Constraint = worst.name() + ": " + worst.To + " has not asked for more"
	default:
		worst.Constraint = true
		v.Constraint = worst.name() + ": " + worst.To + " has " + events(worst.InFlight) + " and asks for no more"
		if longest >= busyAfter {
			caller, _ := v.caller(worst.to)
			v.Constraint += "; " + v.Stages[caller].Name + " has been in its callback for " + debugpage.Span(longest)
		}
	}
}

func (v *view) idleSources() string {
	var names []string
	for i := range v.Stages {
		if st := &v.Stages[i]; st.Kind == KindSource && st.State == Idle {
			names = append(names, st.Name)
		}
	}
	return list(names)
}

// name names a subscription for people.
func (e *EdgeStatus) name() string {
	from := e.From
	if e.Partition >= 0 {
		from += fmt.Sprintf("[%d]", e.Partition)
	}
	return from + " → " + e.To
}

func events(n int64) string { return debugpage.Count(uint64(max(0, n)), "event", "events") }

func producers(edges []*EdgeStatus) string {
	var names []string
	for _, e := range edges {
		if !slices.Contains(names, e.From) {
			names = append(names, e.From)
		}
	}
	return list(names)
}

// list names at most four.
func list(names []string) string {
	const most = 4
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
