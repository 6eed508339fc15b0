package stage

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
)

// Status is a picture of a graph: what every stage and every subscription does
// now, and what holds the graph up. See [Graph.Status].
type Status struct {
	Time   time.Time     // when the picture was taken
	State  State         // of the graph: Ready, Moving, Draining, Failed or Ended
	Stages []StageStatus // in the order in which the graph took them in
	Edges  []EdgeStatus  // the subscriptions that have not ended, the oldest first

	// Constraint says in words what holds the graph up: the subscription whose
	// consumer is slower than everything before it, or that nothing does.
	Constraint string

	unstarted string // why the last Start failed
}

// StageStatus is a picture of one stage.
type StageStatus struct {
	Stats
	State State
	Why   string // in words: why it does not move, or that it does

	// Since is when the callback, selector or hook that runs now was entered,
	// to about a millisecond; zero when no user code runs.
	Since time.Time
	// InUserCode is how long user code took that has returned, all added up.
	// Short calls are counted by sampling once per millisecond, so the sum is
	// right for many of them and a single one may count as nothing.
	InUserCode time.Duration

	// InPerSecond and OutPerSecond are the rates since an earlier look: of
	// events that came in (to a source: emitted and pushed), and that went out
	// (of a sink: that were processed). Over is the time that they are the mean
	// of; 0 when it is too short to tell.
	InPerSecond, OutPerSecond float64
	Over                      time.Duration

	// Executor numbers the goroutines of the graph: stages with the same number
	// are fused and share one. -1 before the start.
	Executor int
	// Error is the text of what ended the stage, in at most 512 bytes; "" for a
	// normal end, and before the end.
	Error string
	// Failure is the text of the last failure that did not end the stage, in at
	// most 512 bytes; "" when there was none.
	Failure string
	// RestartAt is when the stage is restarted that waits for it; zero when it
	// does not wait.
	RestartAt time.Time

	failed bool  // Error is the stage's own
	moved  bool  // out has risen since the look before this one
	drops  int64 // within the last minute
}

// EdgeStatus is a picture of one subscription. Counts are in events since it
// began; 0 <= Processed <= Sent <= Asked. While events flow the three are read
// some moments apart, so their differences may be too large by what moved
// meanwhile; Open and InFlight are never shown larger than Max, unless Manual.
type EdgeStatus struct {
	From, To  string
	Partition int // of the producer, -1 when it has none
	Max, Min  int
	Mode      Mode
	Manual    bool
	Cancelled bool // it ends when what was sent is processed

	Asked     int64 // by the consumer
	Sent      int64 // by the producer
	Processed int64 // by the consumer's callback
	Open      int64 // asked for and not sent yet: what the producer may still send
	InFlight  int64 // sent and not processed yet

	// Constraint says that this subscription holds the graph up: its producer
	// has used up its demand, and its consumer waits for nobody.
	Constraint bool

	from, to int // indices of the stages; -1 for one of another graph
}

// Status returns a picture of the graph, before it starts, while it runs and
// after its end. It waits for no stage: one whose callback blocks for ever is
// shown like any other, with how long it has. The figures of one stage or edge
// belong together; those of different ones may be some microseconds apart. Its
// cost grows with the number of stages and subscriptions. Safe for concurrent
// use.
//
// Nothing runs to make the picture. Rates, and what is said to have moved or to
// have dropped events, are told between this look and earlier ones.
func (g *Graph) Status() Status {
	s := Status{Time: time.Now()}
	nodes, links := g.listed(&s)
	var bells []*doorbell
	at := make(map[*base]int, len(nodes))
	for i, n := range nodes {
		at[n.common()] = i
		st := n.common().look(s.Time, n.snapshot())
		if bell := n.common().bell.Load(); bell != nil {
			if st.Executor = slices.Index(bells, bell); st.Executor < 0 {
				st.Executor = len(bells)
				bells = append(bells, bell)
			}
		}
		s.Stages = append(s.Stages, st)
	}
	for _, l := range links {
		if l.edge != nil {
			e := l.look()
			e.from, e.to = -1, -1
			if i, ok := at[l.from]; ok {
				e.from = i
			}
			if i, ok := at[l.to]; ok {
				e.to = i
			}
			s.Edges = append(s.Edges, e)
		}
	}
	s.explain()
	return s
}

// listed returns what the picture is of, and how the graph stands. No stage
// takes the graph's lock but when it, or a subscription, ends or fails.
func (g *Graph) listed(s *Status) ([]node, []*Subscription) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.started:
		s.State = Ready
		if g.unstarted != nil {
			s.unstarted = ": " + debugpage.ErrorText(g.unstarted)
		}
	case g.live == 0 && len(g.causes) > 0:
		s.State = Failed
	case g.live == 0:
		s.State = Ended
	case g.draining.Load():
		s.State = Draining
	default:
		s.State = Moving
	}
	return slices.Clone(g.nodes), slices.Clone(g.links)
}

// look takes the picture of a subscription.
func (s *Subscription) look() EdgeStatus {
	e := EdgeStatus{
		From: s.from.name, To: s.to.name, Partition: s.edge.part(), Max: s.window.Max(), Min: s.window.Min(),
		Mode: s.mode, Manual: s.manual,
	}
	e.Processed, e.Sent, e.Asked, e.Cancelled = s.edge.shown()
	e.Open, e.InFlight = e.Asked-e.Sent, e.Sent-e.Processed
	if !e.Manual { // the three were not read at once, and never differ by more
		e.Open, e.InFlight = min(e.Open, int64(e.Max)), min(e.InFlight, int64(e.Max))
	}
	return e
}

// shown reads the counters of an edge, in the order in which they grow last to
// first, so that each is at most the next.
func (e *edge[T]) shown() (processed, sent, asked int64, cancelled bool) {
	processed = e.processed.Load()
	sent = e.sent.Load()
	return processed, sent, e.asked.Load(), e.cancelled()
}

// seen is what a stage keeps for those who look at it; stages do not touch it.
type seen struct {
	mu        sync.Mutex
	looks     int
	meter     debugpage.Meter
	out       int64
	discarded int64
	droppedAt time.Time // when a look found that events were dropped
	dropped   int64     // between that look and the one before
}

// look takes the picture of a stage, without what the graph knows.
func (b *base) look(now time.Time, stats Stats) StageStatus {
	s := StageStatus{Stats: stats, Executor: -1, InUserCode: time.Duration(b.stats.userNanos.Load())}
	if since := b.since.Load(); since != 0 {
		s.Since = time.Unix(0, since)
		if s.Since.After(now) {
			s.Since = now
		}
	}
	if last := b.lastFailure.Load(); last != nil {
		s.Failure = debugpage.ErrorText(*last)
	}
	if at := b.restartAt.Load(); at != 0 {
		s.RestartAt = time.Unix(0, at)
	}
	switch l := b.life.Load(); {
	case !l.isOver(): // its error is not known yet
		s.Ended = false
	case l.err != nil:
		s.failed, s.Error = b.own, debugpage.ErrorText(l.err)
	}
	in, out := s.entered(), s.left()
	seen := &b.seen
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.looks == 0 {
		seen.meter.Start(now, uint64(in), uint64(out))
	} else {
		r := seen.meter.Read(now, uint64(in), uint64(out))
		s.InPerSecond, s.OutPerSecond, s.Over = r.In, r.Out, r.Over
		s.moved = out > seen.out
	}
	discarded := stats.Discarded
	if stats.Kind != KindSink { // whose children were told to stop
		discarded += stats.Dropped
	}
	if discarded > seen.discarded {
		seen.dropped, seen.droppedAt = discarded-seen.discarded, now
	}
	if seen.dropped > 0 && now.Sub(seen.droppedAt) < droppedFor {
		s.drops = seen.dropped
	}
	seen.looks, seen.out, seen.discarded = seen.looks+1, out, discarded
	return s
}

// enter says that user code begins now, exit that it has come back, or never
// will. The clock is exact to about a millisecond and costs one load; while it
// shows the same time, exit stores nothing but that the stage is out again
// (ADR 0051).
func (b *base) enter() { b.since.Store(b.graph().clock.UnixNano()) }

func (b *base) exit() {
	took := b.graph().clock.UnixNano() - b.since.Load()
	b.since.Store(0)
	if took > 0 {
		b.stats.userNanos.Store(b.stats.userNanos.Load() + took)
	}
}

// userCode says for how long the stage has been in user code, "" when it is not.
func (b *base) userCode(now time.Time) string {
	since := b.since.Load()
	if since == 0 {
		if n := b.calls.Load(); n > 0 {
			return fmt.Sprintf("%s in %d workers", b.name, n)
		}
		return ""
	}
	return b.name + " for " + debugpage.Span(max(0, now.Sub(time.Unix(0, since))))
}

// String returns the mode's name: permanent, transient or temporary.
func (m Mode) String() string {
	switch m {
	case Permanent:
		return "permanent"
	case Transient:
		return "transient"
	case Temporary:
		return "temporary"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}
