package queue

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// desk is a schedule between a settlement machine and workers.
type desk struct {
	t testing.TB
	m *settle.Machine
	s schedule
	n uint64
}

func newDesk(t testing.TB) *desk {
	m, err := settle.New(settle.Config{Beside: true, Rand: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	return &desk{t: t, m: m}
}

// take takes all that is due, keyed by the runes of keys; a blank is no key.
func (d *desk) take(now time.Time, keys string) {
	for {
		span, ok := d.m.Next(now, penstock.Offset(len(keys)), 100)
		if !ok {
			return
		}
		d.n++
		for o := span.From; o < span.To; o++ {
			key := keys[o : o+1]
			if key == " " {
				key = ""
			}
			d.s.add(key, task{span: span.Part(o, o+1), batch: d.n, size: 10})
		}
	}
}

func offsets(tasks []task) (all []int) {
	for _, t := range tasks {
		for o := t.span.From; o < t.span.To; o++ {
			all = append(all, int(o))
		}
	}
	return all
}

func (d *desk) pick(max int, want ...int) []task {
	d.t.Helper()
	tasks, _ := d.s.pick(max, 0, false, nil)
	if got := offsets(tasks); !slices.Equal(got, want) {
		d.t.Errorf("picked %v, want %v", got, want)
	}
	return tasks
}

func (d *desk) finish(now time.Time, tasks []task, failed ...int) {
	d.t.Helper()
	var outcomes []settle.Outcome
	var parts []settle.Span
	for i := range tasks {
		t := &tasks[i]
		parts = append(parts, t.span)
		for _, f := range failed {
			if o := penstock.Offset(f); o >= t.span.From && o < t.span.To {
				outcomes = append(outcomes, settle.Outcome{From: o, To: o + 1, Verdict: settle.Retry})
				d.s.fail(t, o)
			}
		}
	}
	if err := d.m.SettleParts(now, parts, outcomes...); err != nil {
		d.t.Error(err)
	}
	d.s.finish(tasks)
}

func TestScheduleKeepsKeysApart(t *testing.T) {
	d, now := newDesk(t), time.Unix(0, 0)
	d.take(now, "abab c a")
	first := d.pick(2, 0, 2)     // the lowest offset, and what follows of its key
	second := d.pick(3, 1, 3, 4) // a is busy
	third := d.pick(9, 5, 6)
	d.pick(9)
	d.finish(now, second)
	d.pick(9)
	d.finish(now, first)
	last := d.pick(9, 7)
	if got := d.m.Committed(); got != 5 {
		t.Errorf("committed %d, want 5", got)
	}
	d.finish(now, last)
	d.finish(now, third)
	if got := d.m.Committed(); got != 8 || len(d.s.lines) != 0 || d.s.events != 0 {
		t.Errorf("committed %d with %d lines and %d events, want 8 and nothing left", got, len(d.s.lines), d.s.events)
	}
}

func TestScheduleBringsARetryBeforeLaterEventsOfItsKey(t *testing.T) {
	d, now := newDesk(t), time.Unix(0, 0)
	d.take(now, "aabba ")
	d.finish(now, d.pick(2, 0, 1), 0, 1)
	d.take(now, "aabba ")
	d.finish(now, d.pick(9, 2, 3, 5)) // others go on, 4 waits
	d.pick(9)
	now = now.Add(time.Second)
	d.take(now, "aabba a")
	again := d.pick(9, 0, 1)
	d.finish(now, again, 1)
	d.pick(9)
	now = now.Add(time.Second)
	d.take(now, "aabba a")
	d.finish(now, d.pick(9, 1))
	d.finish(now, d.pick(9, 4, 6))
	if got := d.m.Committed(); got != 7 || d.s.failing != 0 {
		t.Errorf("committed %d, %d failing", got, d.s.failing)
	}
}

func TestScheduleGivesWhatFollowsAParkedEventBack(t *testing.T) {
	d, now := newDesk(t), time.Unix(0, 0)
	d.take(now, "aabaa")
	tasks := d.pick(1, 0)
	d.finish(now, tasks, 0)
	back := d.s.recheck(func(o penstock.Offset) bool { return o == 0 }, nil)
	var got []penstock.Offset
	for _, s := range back {
		got = append(got, s.From)
	}
	if want := []penstock.Offset{1, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("given back %v, want %v", got, want)
	}
	d.pick(9, 2)
	if d.s.events != 0 || d.s.failing != 0 {
		t.Errorf("%d events, %d failing, want none", d.s.events, d.s.failing)
	}
}

func TestScheduleCutsBySizeAndJoinsOnlyWhatFits(t *testing.T) {
	d, now := newDesk(t), time.Unix(0, 0)
	d.take(now, "abcd")
	tasks, bySize := d.s.pick(9, 25, false, nil)
	if got := offsets(tasks); !slices.Equal(got, []int{0, 1}) || !bySize {
		t.Errorf("picked %v, by size %v, want 0 and 1 of 10 bytes each", got, bySize)
	}
	d.finish(now, tasks, 0)
	d.take(now.Add(time.Hour), "abcd")
	if tasks, _ = d.s.pick(9, 0, true, nil); !slices.Equal(offsets(tasks), []int{0}) {
		t.Errorf("picked %v, want the retry alone", offsets(tasks))
	}
	if again, _ := d.s.pick(9, 0, true, nil); len(again) != 0 {
		t.Errorf("picked %v, want no new events", offsets(again))
	}
	d.s.add("e", task{span: settle.Span{From: 9, To: 10, Attempt: 1}, epoch: 1})
	if tasks, _ = d.s.pick(9, 0, false, nil); !slices.Equal(offsets(tasks), []int{2, 3}) {
		t.Errorf("picked %v, want those of one epoch", offsets(tasks))
	}
}

// TestScheduleModel lets workers take, finish and fail at random: no key is in
// two hands, its events come in order, a retry before what follows, nothing is
// lost, and what may start is found.
func TestScheduleModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const events = 300
		d, now := newDesk(t), time.Unix(0, 0)
		keys := make([]string, events)
		for i := range keys {
			if k := rapid.IntRange(0, 6).Draw(rt, "key"); k > 0 {
				keys[i] = strconv.Itoa(k)
			}
		}
		done, in := make([]bool, events), make([]bool, events)
		waits := make(map[int]bool)
		var hands [][]task
		end := 0
		take := func() {
			for {
				span, ok := d.m.Next(now, penstock.Offset(end), 40)
				if !ok {
					return
				}
				d.n++
				for o := span.From; o < span.To; {
					to := o + 1
					for to < span.To && keys[to] == keys[o] {
						to++
					}
					for i := o; i < to; i++ {
						in[i] = true
						delete(waits, int(i))
					}
					d.s.add(keys[o], task{span: span.Part(o, to), batch: d.n})
					o = to
				}
			}
		}
		heldBy := func(key string) int {
			n := 0
			for _, h := range hands {
				if slices.ContainsFunc(h, func(t task) bool { return keys[t.span.From] == key }) {
					n++
				}
			}
			return n
		}
		pick := func() {
			max := rapid.IntRange(1, 30).Draw(rt, "max")
			tasks, _ := d.s.pick(max, 0, false, nil)
			got := offsets(tasks)
			if len(got) > max || !slices.IsSorted(got) {
				rt.Fatalf("picked %v of at most %d", got, max)
			}
			for _, o := range got {
				if key := keys[o]; key != "" {
					if heldBy(key) > 0 {
						rt.Fatalf("key %s of %d is in two hands", key, o)
					}
					for i := range o {
						if keys[i] == key && !done[i] && !slices.Contains(got, i) {
							rt.Fatalf("%d was picked before %d of its key", o, i)
						}
					}
				}
				if !in[o] {
					rt.Fatalf("%d was picked and not taken in", o)
				}
				in[o] = false
			}
			if len(got) == 0 {
				for o := range end {
					if !in[o] || keys[o] != "" && heldBy(keys[o]) > 0 {
						continue
					}
					free := true
					for i := range o {
						free = free && (keys[i] != keys[o] || keys[o] == "" || done[i])
					}
					if free {
						rt.Fatalf("%d may start and was not picked", o)
					}
				}
				return
			}
			hands = append(hands, tasks)
		}
		finish := func() {
			if len(hands) == 0 {
				rt.Skip("nothing in hands")
			}
			i := rapid.IntRange(0, len(hands)-1).Draw(rt, "hand")
			tasks := hands[i]
			hands = slices.Delete(hands, i, i+1)
			var failed []int
			for _, o := range offsets(tasks) {
				if rapid.IntRange(0, 4).Draw(rt, "fails") == 0 && tasks[0].span.Attempt < 4 {
					failed = append(failed, o)
					waits[o] = true
				} else {
					done[o] = true
				}
			}
			d.finish(now, tasks, failed...)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"produce": func(*rapid.T) { end = min(events, end+rapid.IntRange(1, 40).Draw(rt, "more")); take() },
			"pick":    func(*rapid.T) { pick() },
			"pick2":   func(*rapid.T) { pick() },
			"finish":  func(*rapid.T) { finish() },
			"wait": func(*rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(rt, "ms")) * time.Millisecond)
				take()
			},
			"": func(*rapid.T) {
				held := 0
				for _, h := range in {
					if h {
						held++
					}
				}
				if d.s.events != held {
					rt.Fatalf("the schedule counts %d events, want %d", d.s.events, held)
				}
				commit := slices.Index(append(slices.Clone(done), false), false)
				if got := d.m.Committed(); int(got) != commit {
					rt.Fatalf("committed %d, want %d", got, commit)
				}
			},
		})
	})
}
