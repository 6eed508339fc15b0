package queue_test

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/vfs"
	"github.com/penstock/penstock/queue"
)

// topicModel is a bounded topic as plain slices: what requirements A2 to A6 of
// the queue say, without a thought for speed.
type topicModel struct {
	config   queue.Config[int]
	topic    *queue.Topic[int]
	capacity int
	turn     int
	next     int // value of the next event
	parts    []partModel
	groups   map[string]*groupModel
	stored   map[string][]int // on disk: what groups that are not open have committed
}

type partModel struct {
	events []int
	mark   int // the committed mark: the capacity of what lies below was given back
	opened int // on disk: how many events were there when the topic was opened
}

type groupModel struct {
	group     *queue.Group[int]
	auto      bool
	consumers []consumerModel
	committed []int  // per partition
	held      []bool // per partition: paused
	paused    bool
}

type consumerModel struct {
	from, to int // partitions
	turn     int
	last     int // partition of the last pull, or one of those below
	end      int // what committing it moves to
}

// What a consumer has when it has no batch to commit.
const (
	noBatch = -1
	lostIt  = -2 // its partition was moved to another consumer
)

func (m *topicModel) used() (n int) {
	for _, p := range m.parts {
		n += len(p.events) - p.mark
	}
	return n
}

func (m *topicModel) onDisk() bool { return m.config.Dir != "" }

// known returns what the groups that hold events have committed.
func (m *topicModel) known() (all [][]int) {
	for _, g := range m.groups {
		all = append(all, g.committed)
	}
	return slices.AppendSeq(all, maps.Values(m.stored))
}

// remark raises the committed marks to the minimum over the groups.
func (m *topicModel) remark() {
	for i := range m.parts {
		least := -1
		for _, committed := range m.known() {
			if least < 0 || committed[i] < least {
				least = committed[i]
			}
		}
		m.parts[i].mark = max(m.parts[i].mark, least)
	}
}

func (m *topicModel) produce(t *rapid.T) {
	n := rapid.SampledFrom([]int{1, 1, 1, 2, 3, 5, 9, m.capacity, m.capacity + 1}).Draw(t, "n")
	if left := m.capacity - m.used(); left > 0 && rapid.Bool().Draw(t, "all that is left") {
		n = left
	}
	events := seq(m.next, m.next+n)
	ok, err := m.topic.TryProduce(t.Context(), events...)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.used()+n <= m.capacity; ok != want {
		t.Fatalf("TryProduce of %d with %d of %d used = %v", n, m.used(), m.capacity, ok)
	}
	if !ok {
		return
	}
	m.next += n
	for _, v := range events {
		m.parts[m.turn].events = append(m.parts[m.turn].events, v)
		m.turn = (m.turn + 1) % len(m.parts)
	}
}

func (m *topicModel) open(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	if m.groups[name] != nil {
		t.Skip("open")
	}
	g := &groupModel{auto: rapid.Bool().Draw(t, "auto")}
	start := rapid.SampledFrom([]queue.Start{queue.Earliest, queue.Earliest, queue.Latest}).Draw(t, "start")
	n := rapid.IntRange(1, len(m.parts)).Draw(t, "consumers")
	group, err := m.topic.Group(name, queue.GroupConfig{Consumers: n, AutoCommit: g.auto, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	g.group = group
	for i, p := range m.parts {
		at := p.mark
		if start == queue.Latest {
			at = len(m.parts[i].events)
		}
		g.committed = append(g.committed, at)
	}
	if at := m.stored[name]; at != nil { // it goes on where it was
		g.committed = at
		delete(m.stored, name)
	}
	for i := range n {
		from, to := group.Consumer(i).Partitions()
		g.consumers = append(g.consumers, consumerModel{from: from, to: to, last: noBatch})
	}
	g.held = make([]bool, len(m.parts))
	m.groups[name] = g
	m.remark()
}

func (m *topicModel) pick(t *rapid.T) (string, *groupModel) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	if m.groups[name] == nil {
		t.Skip("not open")
	}
	return name, m.groups[name]
}

func (m *topicModel) close(t *rapid.T) {
	name, g := m.pick(t)
	if err := g.group.Close(); err != nil {
		t.Fatal(err)
	}
	m.forget(name)
	m.remark()
}

// forget takes a group away that is closed; on disk its commit stays.
func (m *topicModel) forget(name string) {
	if m.onDisk() {
		m.stored[name] = m.groups[name].committed
	}
	delete(m.groups, name)
}

// drop deletes a group.
func (m *topicModel) drop(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	switch err := m.topic.DeleteGroup(name); {
	case m.groups[name] != nil:
		wantErr(t, err, penstock.ErrExists)
	case m.stored[name] == nil:
		wantErr(t, err, penstock.ErrNotFound)
	case err != nil:
		t.Fatal(err)
	default:
		delete(m.stored, name)
		m.remark()
	}
}

// reopen closes the topic and opens it again. Without a group all that is still
// on disk counts, which is told by segments, so there has to be one.
func (m *topicModel) reopen(t *rapid.T) {
	if !m.onDisk() || len(m.known()) == 0 {
		t.Skip("nothing tells what counts")
	}
	if err := m.topic.Close(); err != nil {
		t.Fatal(err)
	}
	for name := range m.groups {
		m.forget(name)
	}
	topic, err := queue.Open(m.config)
	if err != nil {
		t.Fatal(err)
	}
	m.topic, m.turn = topic, 0
	for i := range m.parts {
		m.parts[i].opened = len(m.parts[i].events)
	}
}

func (m *topicModel) pull(t *rapid.T) {
	_, g := m.pick(t)
	i := rapid.IntRange(0, len(g.consumers)-1).Draw(t, "consumer")
	size := rapid.SampledFrom([]int{1, 1, 2, 3, 7, 100}).Draw(t, "max")
	c := &g.consumers[i]
	var want []int
	at := -1
	for range c.to - c.from {
		p := c.from + c.turn
		c.turn = (c.turn + 1) % (c.to - c.from)
		if g.paused || g.held[p] {
			continue
		}
		if left := m.parts[p].events[g.committed[p]:]; len(left) > 0 {
			want, at = left[:min(size, len(left))], p
			break
		}
	}
	b, ok, err := g.group.Consumer(i).TryPull(size)
	if err != nil {
		t.Fatal(err)
	}
	if ok != (at >= 0) {
		t.Fatalf("TryPull = %v, want events of partition %d", ok, at)
	}
	if !ok {
		return
	}
	if now := m.parts[at].opened; b.Len() < len(want) && g.committed[at] < now {
		want = want[:max(b.Len(), min(len(want), now-g.committed[at]))] // a batch is of one epoch
	}
	if diff := cmp.Diff(want, b.Values()); diff != "" || b.Partition() != at || int(b.Offset(0)) != g.committed[at] {
		t.Fatalf("batch at %d of partition %d, want %d of %d: %s", b.Offset(0), b.Partition(), g.committed[at], at, diff)
	}
	if g.auto {
		g.committed[at] += len(want)
		m.remark()
		return
	}
	c.last, c.end = at, g.committed[at]+len(want)
}

func (m *topicModel) commit(t *rapid.T) {
	_, g := m.pick(t)
	i := rapid.IntRange(0, len(g.consumers)-1).Draw(t, "consumer")
	c := &g.consumers[i]
	err := g.group.Consumer(i).Commit()
	switch {
	case g.auto:
		wantErr(t, err, queue.ErrAutoCommit)
	case c.last == lostIt:
		wantErr(t, err, queue.ErrReassigned)
	case c.last < 0:
		wantErr(t, err, queue.ErrNothingPulled)
	case err != nil:
		t.Fatal(err)
	default:
		g.committed[c.last] = c.end
		c.last = noBatch
		m.remark()
	}
}

// resize shares the partitions out anew. A batch of one that moves is lost.
func (m *topicModel) resize(t *rapid.T) {
	_, g := m.pick(t)
	n := rapid.IntRange(1, len(m.parts)).Draw(t, "consumers")
	var old []*queue.Consumer[int]
	for i := range g.consumers {
		old = append(old, g.group.Consumer(i))
	}
	if err := g.group.Resize(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	before := g.consumers
	g.consumers = nil
	base, more, at := len(m.parts)/n, len(m.parts)%n, 0
	for i := range n {
		c := consumerModel{from: at, to: at + base, last: noBatch}
		if i < more {
			c.to++
		}
		at = c.to
		if from, to := g.group.Consumer(i).Partitions(); from != c.from || to != c.to {
			t.Fatalf("consumer %d of %d has [%d, %d), want [%d, %d)", i, n, from, to, c.from, c.to)
		}
		if i < len(before) {
			if g.group.Consumer(i) != old[i] {
				t.Fatalf("consumer %d of %d is another one", i, n)
			}
			was := before[i]
			c.last, c.end = was.last, was.end
			if was.from == c.from && was.to == c.to {
				c.turn = was.turn
			}
			if c.last >= 0 && (c.last < c.from || c.last >= c.to) {
				c.last = lostIt
			}
		}
		g.consumers = append(g.consumers, c)
	}
	for i := n; i < len(old); i++ {
		_, _, err := old[i].TryPull(1)
		wantErr(t, err, queue.ErrReassigned)
	}
}

func (m *topicModel) pause(t *rapid.T) {
	_, g := m.pick(t)
	p := rapid.IntRange(-1, len(m.parts)-1).Draw(t, "partition")
	if p < 0 {
		g.group.Pause()
		g.paused = true
		return
	}
	if err := g.group.PausePartition(p); err != nil {
		t.Fatal(err)
	}
	g.held[p] = true
}

func (m *topicModel) resume(t *rapid.T) {
	_, g := m.pick(t)
	g.group.Resume()
	for p := range g.held {
		if err := g.group.ResumePartition(p); err != nil {
			t.Fatal(err)
		}
	}
	g.paused = false
	clear(g.held)
}

// seek moves a group in one partition; what was in hand of it is abandoned.
func (m *topicModel) seek(t *rapid.T) {
	_, g := m.pick(t)
	p := rapid.IntRange(0, len(m.parts)-1).Draw(t, "partition")
	to := rapid.IntRange(0, len(m.parts[p].events)+1).Draw(t, "to")
	err := g.group.SeekOffset(t.Context(), p, penstock.Offset(to))
	if to < m.parts[p].mark || to > len(m.parts[p].events) {
		wantErr(t, err, penstock.ErrOffsetOutOfRange)
		return
	}
	if err != nil {
		t.Fatalf("seek partition %d to %d in [%d, %d]: %v", p, to, m.parts[p].mark, len(m.parts[p].events), err)
	}
	g.committed[p] = to
	for i := range g.consumers {
		if c := &g.consumers[i]; c.last == p {
			c.last = noBatch
		}
	}
	m.remark()
}

func (m *topicModel) check(t *rapid.T) {
	s := m.topic.Stats()
	if int(s.Retained) != m.used() || int(s.Produced) != m.next {
		t.Fatalf("retained %d, produced %d, want %d, %d", s.Retained, s.Produced, m.used(), m.next)
	}
	if len(s.Groups) != len(m.groups) || len(s.Stored) != len(m.stored) {
		t.Fatalf("%d groups are open and %d stored, want %d and %d", len(s.Groups), len(s.Stored), len(m.groups), len(m.stored))
	}
	for _, g := range s.Stored {
		for p, ps := range g.Partitions {
			if int(ps.Committed) != m.stored[g.Name][p] {
				t.Fatalf("stored group %s, partition %d: committed %d, want %d", g.Name, p, ps.Committed, m.stored[g.Name][p])
			}
		}
	}
	for _, g := range s.Groups {
		for p, ps := range g.Partitions {
			if int(ps.Committed) != m.groups[g.Name].committed[p] {
				t.Fatalf("group %s, partition %d: committed %d, want %d", g.Name, p, ps.Committed, m.groups[g.Name].committed[p])
			}
		}
	}
}

// modelFor runs a check of a model once, and again until the time that the
// environment variable PENSTOCK_MODEL says is over (make model).
func modelFor(t *testing.T, check func(t *testing.T)) {
	var long time.Duration
	if s := os.Getenv("PENSTOCK_MODEL"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("PENSTOCK_MODEL: %v", err)
		}
		long = d
	}
	begin := time.Now()
	for rounds := 1; !t.Failed(); rounds++ {
		// A loop without a wait keeps the time of a bubble from passing.
		timer := time.AfterFunc(5*time.Minute, func() { panic(t.Name() + ": one check took five minutes") })
		check(t)
		timer.Stop()
		if time.Since(begin) >= long {
			t.Logf("%d rounds", rounds)
			return
		}
	}
}

func TestTopicFollowsTheModel(t *testing.T) {
	forEachStorage(t, func(t *testing.T, s storage) {
		modelFor(t, func(t *testing.T) { checkTopicModel(t, s) })
	})
}

func checkTopicModel(t *testing.T, s storage) {
	checks := 0
	rapid.Check(t, func(t *rapid.T) {
		if checks++; s.name == "file" && checks > 25 && os.Getenv("PENSTOCK_MODEL") == "" {
			return // make model goes on
		}
		m := &topicModel{
			capacity: rapid.SampledFrom([]int{1, 7, 40, 200, 700}).Draw(t, "capacity"),
			parts:    make([]partModel, rapid.IntRange(1, 4).Draw(t, "partitions")),
			groups:   map[string]*groupModel{},
			stored:   map[string][]int{},
		}
		size := rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "segment size")
		m.config = queue.Config[int]{
			Name: "topic", Partitions: len(m.parts), Capacity: m.capacity, WhenFull: queue.Fail, SegmentSize: size, Logger: quiet(),
		}
		if s.name == "file" {
			c := queue.WithFS(m.config, vfs.NewMem())
			c.Dir, c.Codec, c.SegmentBytes = "data", penstock.JSON[int](), 32*penstock.KiB
			c.SegmentSize, c.SegmentEvents = 0, size
			m.config = c
		}
		topic, err := queue.Open(m.config)
		if err != nil {
			t.Fatal(err)
		}
		m.topic = topic
		defer func() {
			if err := m.topic.Close(); err != nil {
				t.Error(err)
			}
		}()
		t.Repeat(map[string]func(*rapid.T){
			"produce": m.produce, "produce more": m.produce, "open": m.open, "close": m.close,
			"pull": m.pull, "pull more": m.pull, "commit": m.commit, "": m.check,
			"resize": m.resize, "pause": m.pause, "resume": m.resume, "seek": m.seek,
			"drop": m.drop, "reopen": m.reopen,
		})
	})
}
