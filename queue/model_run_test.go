package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/queue"
	"github.com/penstock/penstock/settle"
)

// runModel is a topic and its groups under Run as plain slices: which events
// lie where, and what became of each in each group. Its operations change the
// topic at random; what handlers see is checked against the slices while they
// run, the rest between two operations, when nothing moves.
type runModel struct {
	s        storage
	topic    *queue.Topic[int]
	capacity int
	parts    [][]int // values by partition and offset
	times    [][]time.Time
	next     int
	groups   map[string]*runGroup

	mu    sync.Mutex
	fault string // the first one that a handler found
}

// runGroup is one group from its opening to its end; on disk it goes on when it
// is opened again.
type runGroup struct {
	m        *runModel
	name     string
	group    *queue.Group[int]
	config   queue.GroupConfig
	run      *running // nil while it does not run
	open     bool
	stopped  bool // a run was stopped: attempts may begin again
	from     []int
	settled  []map[int]string // by partition and offset: done or dead
	failures map[int]int      // by value: how often it has failed here
	handed   int              // calls of the dead letter hook
	inHand   []map[int]bool   // by partition and offset
	seeks    []int            // by partition

	consumers   int
	ran         bool // since it was opened
	paused      bool // and so are these: nothing is handed to its handler
	pausedParts []bool
}

const (
	modelKeys = 5
	done      = "done"
	dead      = "dead"
)

func keyOf(v int) string { return fmt.Sprint(v % modelKeys) }

// bad is how often an event is to fail in a group, however often it comes.
func (g *runGroup) bad(v int) int {
	if n := (v*7 + len(g.name) + int(g.name[0])) % 13; n >= 8 {
		return n - 7 // 1 to 5
	}
	return 0
}

func (m *runModel) faultf(format string, args ...any) {
	if m.fault == "" {
		m.fault = fmt.Sprintf(format, args...)
	}
}

// handle checks what a handler gets, and fails what is to fail. Some calls take
// a while, so that other operations find them at work.
func (g *runGroup) handle(_ context.Context, b penstock.Batch[int]) error {
	m, p := g.m, b.Partition()
	m.mu.Lock()
	seeks := g.seeks[p]
	ok := g.receive(b)
	m.mu.Unlock()
	if v := b.Value(0); v%3 == 0 {
		time.Sleep(time.Duration(v%7) * 9 * time.Millisecond)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range b.Len() {
		delete(g.inHand[p], int(b.Offset(i)))
	}
	if !ok || seeks != g.seeks[p] {
		return nil // it does not count
	}
	return g.finish(b)
}

// receive checks a batch at the begin of a call.
func (g *runGroup) receive(b penstock.Batch[int]) bool {
	m, p := g.m, b.Partition()
	if b.Len() == 0 || b.Len() > g.config.BatchMax || g.config.Rate > 0 && b.Len() > g.config.Burst {
		m.faultf("group %s: a batch of %d, at most %d", g.name, b.Len(), g.config.BatchMax)
	}
	if g.paused || g.pausedParts[p] {
		m.faultf("group %s: partition %d is paused, and %d events of it are handled", g.name, p, b.Len())
	}
	here := map[int]bool{}
	for i, v := range b.Values() {
		o := int(b.Offset(i))
		here[o] = true
		if o < g.from[p] || o >= len(m.parts[p]) || m.parts[p][o] != v {
			m.faultf("group %s: partition %d has %d at %d", g.name, p, v, o)
			return false
		}
		if how := g.settled[p][o]; how != "" {
			m.faultf("group %s: event %d of partition %d comes again, it was %s", g.name, o, p, how)
		}
		if g.inHand[p][o] {
			m.faultf("group %s: event %d of partition %d is in two hands", g.name, o, p)
		}
		for earlier := g.from[p]; earlier < o; earlier++ {
			if keyOf(m.parts[p][earlier]) == keyOf(v) && g.settled[p][earlier] == "" && !here[earlier] {
				m.faultf("group %s: event %d of partition %d comes before %d of the same key", g.name, o, p, earlier)
			}
		}
		g.inHand[p][o] = true
	}
	if g.config.AutoCommit { // it comes once, whatever becomes of it
		for o := range here {
			g.settled[p][o] = done
		}
	}
	return true
}

// finish says what becomes of a batch at the end of a call.
func (g *runGroup) finish(b penstock.Batch[int]) error {
	p := b.Partition()
	whole := b.Value(0)%11 == 0 && g.failures[b.Value(0)] < g.bad(b.Value(0)) // all of the batch fails with it
	for i, v := range b.Values() {
		if g.failures[v] < g.bad(v) {
			g.failures[v]++
			if !whole {
				b.Fail(i, errHandler)
			}
			continue
		}
		if !whole {
			g.settled[p][int(b.Offset(i))] = done
		}
	}
	if whole {
		if b.Value(0)%2 == 0 {
			panic("the whole batch")
		}
		return errHandler
	}
	return nil
}

// take takes dead letters, not at every call.
func (g *runGroup) take(_ context.Context, events ...penstock.Event[int]) error {
	m := g.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if g.handed++; g.handed%4 == 1 {
		return errors.New("no room for dead letters")
	}
	for _, e := range events {
		p, o := e.Origin.Partition, int(e.Origin.Offset)
		if o >= len(m.parts[p]) || m.parts[p][o] != e.Value || g.settled[p][o] != "" {
			m.faultf("group %s: dead letter %d says it is event %d of partition %d: %q", g.name, e.Value, o, p, g.settled[p][o])
			continue
		}
		if g.config.Retry.Attempts > e.Attempt && !g.stopped {
			m.faultf("group %s: event %d of partition %d is given up after %d attempts", g.name, o, p, e.Attempt)
		}
		g.settled[p][o] = dead
	}
	return nil
}

// used is what counts against the capacity: what some group has not committed.
func (m *runModel) used() int {
	if len(m.topic.Stats().Groups) == 0 {
		return -1 // the marks stand still
	}
	return int(m.topic.Stats().Retained)
}

func (m *runModel) produce(t *rapid.T) {
	n := rapid.SampledFrom([]int{1, 1, 2, 3, 8, m.capacity}).Draw(t, "n")
	key := rapid.IntRange(0, modelKeys-1).Draw(t, "key")
	var values []int
	for i := range n {
		values = append(values, (m.next+i)*modelKeys+key)
	}
	used := m.used()
	m.mu.Lock()
	receipt, err := m.topic.ProduceAsync(t.Context(), values...)
	if err != nil {
		m.mu.Unlock()
		if !errors.Is(err, penstock.ErrFull) || used >= 0 && used+n <= m.capacity {
			t.Fatalf("%d events beside %d in %d: %v", n, used, m.capacity, err)
		}
		return
	}
	ack, err := receipt.Wait(t.Context())
	if err != nil || len(ack.Parts) != 1 {
		m.mu.Unlock()
		t.Fatalf("ack %+v, %v", ack, err)
	}
	at := ack.Parts[0]
	if int(at.First) != len(m.parts[at.Partition]) || at.Count != n {
		m.faultf("%d events are said to be at %+v, %d are there", n, at, len(m.parts[at.Partition]))
	}
	m.parts[at.Partition] = append(m.parts[at.Partition], values...)
	for range values {
		m.times[at.Partition] = append(m.times[at.Partition], time.Now())
	}
	m.next += n
	m.mu.Unlock()
	if used >= 0 && used+n > m.capacity {
		t.Fatalf("%d events were taken beside %d in %d", n, used, m.capacity)
	}
}

func (m *runModel) add(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	g := m.groups[name]
	if g != nil && g.open {
		t.Skip("open")
	}
	config := queue.GroupConfig{
		Consumers: rapid.IntRange(1, len(m.parts)).Draw(t, "consumers"),
		BatchMax:  rapid.SampledFrom([]int{1, 2, 5, 100}).Draw(t, "max"),
		Linger:    rapid.SampledFrom([]time.Duration{0, 0, 30 * time.Millisecond}).Draw(t, "linger"),
		OnFail:    rapid.SampledFrom([]queue.OnFail{queue.ParkKey, queue.ParkKey, queue.Block}).Draw(t, "on fail"),
		Retry: settle.Policy{
			Attempts: rapid.IntRange(1, 5).Draw(t, "attempts"),
			Backoff:  settle.Backoff{Min: 20 * time.Millisecond, Max: 400 * time.Millisecond, Factor: 2, Jitter: -1},
		},
	}
	config.Workers = rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(t, "workers")
	config.AutoCommit = rapid.IntRange(0, 3).Draw(t, "auto") == 0
	if rapid.IntRange(0, 3).Draw(t, "rated") == 0 {
		config.Rate, config.Burst = 200, 5
	}
	if g != nil { // what is parked stays with a group that parks
		config.OnFail, config.AutoCommit = g.config.OnFail, g.config.AutoCommit
	}
	if config.OnFail == queue.ParkKey {
		config.ParkAfter = rapid.SampledFrom([]time.Duration{time.Millisecond, 50 * time.Millisecond, 0}).Draw(t, "park after")
	}
	if g == nil {
		g = &runGroup{m: m, name: name, failures: map[int]int{}, seeks: make([]int, len(m.parts))}
		for range m.parts {
			g.settled, g.inHand = append(g.settled, map[int]string{}), append(g.inHand, map[int]bool{})
		}
	}
	g.config, g.open, g.run, g.ran, g.consumers = config, true, nil, false, config.Consumers
	g.paused, g.pausedParts = false, make([]bool, len(m.parts))
	group, err := m.topic.Group(name, config, queue.DeadLetter(g.take))
	if err != nil {
		t.Fatal(err)
	}
	g.group = group
	if m.groups[name] == nil {
		for _, p := range group.Stats().Partitions {
			g.from = append(g.from, int(p.Committed))
		}
		m.groups[name] = g
	}
}

// pick returns a group that is open, and whose running is as asked.
func (m *runModel) pick(t *rapid.T, runs bool) *runGroup {
	g := m.groups[rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")]
	if g == nil || !g.open || (g.run != nil) != runs {
		t.Skip("no such group")
	}
	return g
}

func (m *runModel) startRun(t *rapid.T) {
	g := m.pick(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	g.run, g.ran = &running{cancel: cancel, done: make(chan struct{})}, true
	r := g.run
	go func() { // ends with cancel or with the group; end waits for it
		defer close(r.done)
		r.err = g.group.Run(ctx, g.handle)
	}()
}

func (m *runModel) stopRun(t *rapid.T) { m.pick(t, true).end(t, true) }

// end ends a run. A drain leaves nothing in hands; what it leaves comes again.
func (g *runGroup) end(t *rapid.T, mayStop bool) {
	if g.run == nil {
		return
	}
	err := g.run.stop()
	g.run, g.stopped = nil, true
	if mayStop && err != nil && !errors.As(err, new(*penstock.DrainError)) {
		t.Fatalf("group %s: Run: %v", g.name, err)
	}
	if !mayStop {
		wantErr(t, err, penstock.ErrClosed)
	}
}

// closeGroup closes a group, at work or not. In memory it is gone; on disk it
// stays known, and is either opened again or deleted.
func (m *runModel) closeGroup(t *rapid.T) { m.remove(t, m.pick(t, rapid.Bool().Draw(t, "runs"))) }

func (m *runModel) remove(t *rapid.T, g *runGroup) {
	if m.s.name == "file" {
		g.end(t, true) // what is settled and not stored may come again otherwise
	}
	if err := g.group.Close(); err != nil {
		t.Fatal(err)
	}
	g.end(t, false)
	g.open = false
	if m.s.name != "file" {
		delete(m.groups, g.name)
		return
	}
	if rapid.Bool().Draw(t, "delete") {
		if err := m.topic.DeleteGroup(g.name); err != nil {
			t.Fatal(err)
		}
		delete(m.groups, g.name)
	}
}

func (m *runModel) pass(t *rapid.T) {
	time.Sleep(rapid.SampledFrom([]time.Duration{time.Millisecond, 25 * time.Millisecond, 110 * time.Millisecond, time.Second}).Draw(t, "time"))
}

// quiet lets time pass until nothing is left to do, and checks that every group
// that runs has settled everything, each event in the way that its failures say.
func (m *runModel) quiet(t *rapid.T) {
	for _, g := range m.sorted() {
		g.resume(t)
	}
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.sorted() {
		if g.run == nil {
			continue
		}
		st := g.group.Stats()
		if st.Lag != 0 || st.Run.Unsettled != 0 || st.Parked.Events != 0 || st.Parked.Keys != 0 {
			t.Fatalf("group %s has work left after ten minutes: %+v", g.name, st)
		}
		for p, values := range m.parts {
			for o := g.from[p]; o < len(values); o++ {
				if g.settled[p][o] == "" {
					t.Fatalf("group %s: event %d of partition %d was never settled: %+v", g.name, o, p, st)
				}
			}
		}
	}
}

func (m *runModel) sorted() (all []*runGroup) {
	for _, name := range []string{"a", "b", "c"} {
		if g := m.groups[name]; g != nil && g.open {
			all = append(all, g)
		}
	}
	return all
}

// check compares when nothing moves.
func (m *runModel) check(t *rapid.T) {
	synctest.Wait()
	s := m.topic.Stats()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault != "" {
		t.Fatal(m.fault)
	}
	if s.Retained > uint64(m.capacity) {
		t.Fatalf("%d events in a capacity of %d", s.Retained, m.capacity)
	}
	for _, g := range m.sorted() {
		i := slices.IndexFunc(s.Groups, func(x queue.GroupStats) bool { return x.Name == g.name })
		if i < 0 {
			t.Fatalf("group %s is not in the stats", g.name)
		}
		if s.Groups[i].Consumers != g.consumers {
			t.Fatalf("group %s has %d consumers, want %d", g.name, s.Groups[i].Consumers, g.consumers)
		}
		parked := s.Groups[i].Parked.Events
		for p, ps := range s.Groups[i].Partitions {
			if int(ps.End) != len(m.parts[p]) {
				t.Fatalf("partition %d ends at %d, want %d", p, ps.End, len(m.parts[p]))
			}
			for o := g.from[p]; o < int(ps.Committed); o++ {
				if g.settled[p][o] == "" {
					parked--
				}
			}
		}
		if parked < 0 && g.run != nil {
			t.Fatalf("group %s: %d events below the commit are neither settled nor parked: %+v", g.name, -parked, s.Groups[i])
		}
	}
}

// TestTopicUnderRunFollowsTheModel: groups that come, run, stop, go and come
// again while events fail, are parked and are given up. A group settles every
// event once, keys keep their order, commits pass only what is settled or
// parked, and the capacity is exact.
func TestTopicUnderRunFollowsTheModel(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		modelFor(t, func(t *testing.T) {
			checks := 0
			synctest.Test(t, func(t *testing.T) {
				// Without the test's Deadline, which has no meaning in a bubble.
				rapid.Check(struct{ rapid.TB }{t}, func(rt *rapid.T) {
					checks++
					if s.name == "file" && checks > 20 && os.Getenv("PENSTOCK_MODEL") == "" {
						return // the disk is slow; make model goes on
					}
					runTheModel(t, rt, s)
				})
			})
		})
	})
}

func runTheModel(t *testing.T, rt *rapid.T, s storage) {
	m := &runModel{
		s: s, capacity: rapid.SampledFrom([]int{1, 7, 40, 300}).Draw(rt, "capacity"),
		parts:  make([][]int, rapid.IntRange(1, 3).Draw(rt, "partitions")),
		groups: map[string]*runGroup{},
	}
	m.times = make([][]time.Time, len(m.parts))
	c := queue.Config[int]{
		Name: "topic", Partitions: len(m.parts), Capacity: m.capacity, WhenFull: queue.Fail, Key: keyOf,
		SegmentSize: rapid.SampledFrom([]int{0, 1, 16}).Draw(rt, "segment size"),
	}
	if s.name == "file" {
		dir, err := os.MkdirTemp(t.TempDir(), "topic")
		if err != nil {
			rt.Fatal(err)
		}
		c.Dir = dir
		c = onDisk(t, c)
		c.Durability = penstock.Written
	}
	c.Logger = slog.New(slog.DiscardHandler)
	topic, err := queue.Open(c)
	if err != nil {
		rt.Fatal(err)
	}
	m.topic = topic
	defer func() {
		for _, g := range m.groups {
			if g.run != nil {
				_ = g.run.stop()
			}
		}
		if err := topic.Close(); err != nil {
			rt.Error(err)
		}
	}()
	rt.Repeat(map[string]func(*rapid.T){
		"produce": m.produce, "produce more": m.produce, "produce even more": m.produce,
		"add": m.add, "run": m.startRun, "run more": m.startRun, "stop": m.stopRun, "close": m.closeGroup,
		"pass": m.pass, "pass more": m.pass, "quiet": m.quiet, "": m.check,
		"pause": m.pause, "resume": m.resume, "resize": m.resize, "resize more": m.resize,
		"seek": m.seekOffset, "seek time": m.seekTime, "stop for good": m.stopForGood,
	})
}
