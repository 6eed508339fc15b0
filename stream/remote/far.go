package remote

import (
	"context"
	"fmt"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// far is the subscriber's side as a pure machine: what is handled, what waits
// behind it, what is known to be settled, and how much demand the owner is
// told. It does no I/O and reads no clock. It outlives connections, which have
// numbers; 0 is none.
//
// Invariants: events held (received and not answered, over all connections)
// plus open demand (told - taken) never exceed max; at most one delivery of a
// subscription is handled at a time; the tokens remembered are those that were
// settled of the last delivery handled of each subscription, and at most
// memory of them.
type far struct {
	max, min int // demand, in events
	memory   int // tokens
	lanesMax int

	conn     uint64 // number of the connection; 0: none
	lineMax  int    // longest line over it, in bytes
	told     uint64 // events accepted over it so far
	taken    uint64 // events received over it
	leaving  bool   // nothing more is accepted
	left     bool   // the owner has said that nothing follows
	held     int    // events received and not answered
	asking   int    // questions with a consumer
	handling int    // deliveries with a consumer

	lanes  map[laneKey]*lane
	tokens int    // remembered, of all lanes
	turn   uint64 // rises with each delivery handled and each question
}

type laneKey struct {
	stream stream.QualifiedStreamID
	name   string
}

// lane is what is known of one subscription.
type lane struct {
	maker   *maker // of its consumer
	running *job
	queue   []*job // behind it, in order
	asking  int    // questions with the consumer

	settled     map[penstock.Token]struct{} // of the last delivery handled
	incarnation uint64
	request     uint64 // under which it came
	used        uint64 // turn of it
}

// job is one delivery. The handler gets the items that are not known to be
// settled.
type job struct {
	conn, call uint64
	lane       *lane
	whole      *stream.Delivery
	rest       *stream.Delivery // what is handed over
	index      []int            // in whole, of each item of rest
	ctx        context.Context  // of the handler, and its end; of who runs it
	cancel     context.CancelFunc
	maker      *maker
}

func newFar(demandMax, demandMin, memory, lanesMax int) *far {
	return &far{max: demandMax, min: demandMin, memory: memory, lanesMax: lanesMax, lanes: map[laneKey]*lane{}}
}

// connected begins connection number conn. When the owner is not the one
// before, what was settled is forgotten: its numbers of requests mean nothing.
// When its history is another one, so do tokens, and the consumers go too.
func (f *far) connected(conn uint64, lineMax int, sameOwner, sameHistory bool) {
	f.conn, f.lineMax, f.told, f.taken, f.left = conn, lineMax, 0, 0, false
	for key, l := range f.lanes {
		if !sameOwner || !sameHistory {
			f.forget(l)
			l.request, l.incarnation = 0, 0 // what is with a handler now is not remembered either
		}
		if !sameHistory {
			l.maker = newMaker()
			if l.running == nil {
				delete(f.lanes, key)
			}
		}
	}
}

// lost ends the connection. What is with a handler stays there, so that its
// outcome is known when it is delivered again; what waits is dropped, and will
// be.
func (f *far) lost() {
	f.conn = 0
	for _, l := range f.lanes {
		for _, j := range l.queue {
			f.held -= len(j.whole.Items)
		}
		l.queue = nil
	}
}

// demand is what the owner is to be told now, if anything: always when due,
// else when it is to be asked for more.
func (f *far) demand(due bool) (limit uint64, tell bool) {
	if f.conn == 0 {
		return 0, false
	}
	if f.leaving {
		return f.told, due
	}
	limit = f.taken + uint64(max(0, f.max-f.held))
	open := f.told - f.taken
	if limit <= f.told {
		return f.told, due
	}
	if !due && open > uint64(f.min) && f.held > 0 {
		return f.told, false
	}
	f.told = limit
	return limit, true
}

// lane finds or makes the one of a subscription; nil when there are too many.
// One that has nothing with a consumer is forgotten for it, the one used longest
// ago: its subscription may be long removed.
func (f *far) lane(r stream.SubscriptionRecord) *lane {
	key := laneKey{r.Stream, r.Name}
	l := f.lanes[key]
	if l == nil {
		if len(f.lanes) >= f.lanesMax && !f.dropOldest() {
			return nil
		}
		l = &lane{maker: newMaker()}
		f.lanes[key] = l
	}
	return l
}

// dropOldest forgets the lane used longest ago of those that have nothing with a
// consumer; false when there is none.
func (f *far) dropOldest() bool {
	var key laneKey
	var oldest *lane
	for k, l := range f.lanes {
		if l.running == nil && len(l.queue) == 0 && l.asking == 0 && (oldest == nil || l.used < oldest.used) {
			key, oldest = k, l
		}
	}
	if oldest == nil {
		return false
	}
	f.forget(oldest)
	delete(f.lanes, key)
	return true
}

// maker makes a consumer once, by whoever holds turn.
type maker struct {
	turn chan struct{} // of capacity 1: to take it is to send
	made stream.Consumer
}

func newMaker() *maker { return &maker{turn: make(chan struct{}, 1)} }

// asked takes a question. It returns the lane to ask, or the frame to answer
// with.
func (f *far) asked(call uint64, r stream.SubscriptionRecord) (*lane, *frame) {
	err := f.tooMany()
	if f.leaving {
		err = stream.ErrAway
	} else if f.asking >= maxQuestions {
		err = fmt.Errorf("%d questions are not answered yet: %w", f.asking, penstock.ErrFull)
	} else if l := f.lane(r); l != nil {
		f.asking++
		l.asking++
		f.turn++
		l.used = f.turn
		return l, nil
	}
	e := errorFrame(call, err)
	return nil, &e
}

// answered says that a question has its answer.
func (f *far) answered(l *lane) {
	f.asking--
	l.asking--
}

func (f *far) tooMany() error {
	return fmt.Errorf("more than %d subscriptions at work: %w", f.lanesMax, penstock.ErrFull)
}

// delivered takes a delivery. It returns the job to run now, if any, or the
// frame to answer with. An error ends the connection.
func (f *far) delivered(call uint64, d *stream.Delivery) (run *job, reply *frame, err error) {
	n := len(d.Items)
	if uint64(n) > f.told-f.taken {
		return nil, nil, bad("%d events delivered, and %d accepted", n, f.told-f.taken)
	}
	f.taken += uint64(n)
	if f.leaving {
		e := errorFrame(call, stream.ErrAway)
		return nil, &e, nil
	}
	l := f.lane(d.Subscription)
	if l == nil {
		e := errorFrame(call, fmt.Errorf("%w: %w", f.tooMany(), stream.ErrAway)) // nobody has tried it
		return nil, &e, nil
	}
	f.held += n
	j := &job{conn: f.conn, call: call, lane: l, whole: d}
	if l.running != nil {
		l.queue = append(l.queue, j)
		return nil, nil, nil
	}
	run, reply = f.begin(j)
	return run, reply, nil
}

// begin hands over what is not known to be settled, or answers at once.
func (f *far) begin(j *job) (run *job, reply *frame) {
	f.turn++
	l, d := j.lane, j.whole
	l.used = f.turn
	if l.request != d.Request || l.incarnation != d.Subscription.Incarnation {
		f.forget(l)
		l.request, l.incarnation = d.Request, d.Subscription.Incarnation
	}
	j.rest, j.index = d, nil
	if known := l.known(d.Items); known > 0 {
		rest := *d
		rest.Items = nil
		for i := range d.Items {
			if _, ok := l.settled[d.Items[i].Token]; !ok {
				rest.Items = append(rest.Items, d.Items[i])
				j.index = append(j.index, i)
			}
		}
		j.rest = &rest
	}
	if len(j.rest.Items) == 0 {
		f.held -= len(d.Items)
		e := answerFrame(j.call, stream.Answer{}, nil, f.lineMax)
		return nil, &e
	}
	l.running = j
	f.handling++
	return j, nil
}

func (l *lane) known(items []stream.Item) (n int) {
	if len(l.settled) == 0 {
		return 0
	}
	for i := range items {
		if _, ok := l.settled[items[i].Token]; ok {
			n++
		}
	}
	return n
}

// handled takes the outcome of a job. It returns the answer, when the
// connection that asked is still there, and what is to run or to be answered
// next on the same lane.
func (f *far) handled(j *job, a stream.Answer, err error) (run *job, replies []frame) {
	l := j.lane
	l.running = nil
	f.handling--
	f.held -= len(j.whole.Items)
	if err == nil && a.Rewind.Kind == stream.PositionNone {
		err = checkFailed(a.Failed, len(j.rest.Items))
	}
	if err == nil && j.index != nil {
		a.Failed = slices.Clone(a.Failed)
		for i := range a.Failed {
			a.Failed[i].Index = j.index[a.Failed[i].Index]
		}
	}
	f.remember(j, a, err)
	if j.conn == f.conn && f.conn != 0 {
		replies = append(replies, answerFrame(j.call, a, err, f.lineMax))
	}
	for run == nil && len(l.queue) > 0 {
		next := l.queue[0]
		l.queue = l.queue[1:]
		var reply *frame
		if run, reply = f.begin(next); reply != nil {
			replies = append(replies, *reply)
		}
	}
	return run, replies
}

func checkFailed(failed []stream.ItemFailure, items int) error {
	last := -1
	for _, x := range failed {
		if x.Index <= last || x.Index >= items {
			return fmt.Errorf("consumer failed item %d of %d: %w", x.Index, items, penstock.ErrInvalid)
		}
		last = x.Index
	}
	return nil
}

// remember keeps which items of a delivery are settled: the handler's and
// those that were before. After a rewind nothing is: the consumer wants it
// again.
func (f *far) remember(j *job, a stream.Answer, err error) {
	l := j.lane
	if l.request != j.whole.Request || l.incarnation != j.whole.Subscription.Incarnation {
		return // a history has ended meanwhile
	}
	before := l.settled
	f.forget(l)
	if err == nil && a.Rewind.Kind != stream.PositionNone {
		return
	}
	next := map[penstock.Token]struct{}{}
	failed := a.Failed
	for i := range j.whole.Items {
		t := j.whole.Items[i].Token
		_, known := before[t]
		fails := err != nil
		if len(failed) > 0 && failed[0].Index == i {
			failed, fails = failed[1:], true
		}
		if known || !fails {
			next[t] = struct{}{}
		}
	}
	f.makeRoom(len(next))
	if len(next) > 0 && f.tokens+len(next) <= f.memory {
		l.settled = next
		f.tokens += len(next)
	}
}

// makeRoom forgets what was settled longest ago until n tokens more fit.
func (f *far) makeRoom(n int) {
	if n > f.memory {
		return
	}
	for f.tokens+n > f.memory {
		var oldest *lane
		for _, l := range f.lanes {
			if len(l.settled) > 0 && (oldest == nil || l.used < oldest.used) {
				oldest = l
			}
		}
		if oldest == nil {
			return
		}
		f.forget(oldest)
	}
}

func (f *far) forget(l *lane) {
	f.tokens -= len(l.settled)
	l.settled = nil
}

// cancelled takes back a delivery that the owner does not wait for: one that
// waits is answered, one that is handled has its context ended. Behind one that
// an earlier connection has brought the same events wait, so that one is stopped
// too.
func (f *far) cancelled(call uint64) (stop *job, reply *frame) {
	for _, l := range f.lanes {
		if j := l.running; j != nil && j.call == call && j.conn == f.conn {
			return j, nil
		}
		for i, j := range l.queue {
			if j.call == call {
				l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
				f.held -= len(j.whole.Items)
				e := errorFrame(call, stream.ErrAway)
				if l.running.conn != f.conn {
					stop = l.running
				}
				return stop, &e
			}
		}
	}
	return nil, nil
}

// idle reports whether nothing is with a consumer any more, and, after a leave,
// nothing is on its way.
func (f *far) idle() bool {
	return f.handling == 0 && f.asking == 0 && (f.conn == 0 || f.left)
}
