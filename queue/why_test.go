package queue

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// whyCase is a picture of a group and what is said about it.
type whyCase struct {
	name  string
	group GroupStats
	facts topicFacts
	state State
	say   string // in the text
}

// running is a group under Run with a lag.
func running(change func(*GroupStats)) GroupStats {
	s := GroupStats{
		Name: "billing", Consumers: 1, Use: "Run", Lag: 1200, LagTime: 90 * time.Second, Drain: NeverDrains,
		Partitions: []GroupPartitionStats{{Committed: 100, End: 1300, Lag: 1200}, {Committed: 50, End: 50}, {}},
		Run:        RunStats{Running: true},
	}
	change(&s)
	return s
}

func whyCases(now time.Time) []whyCase {
	blocked := func(k settle.Reason, partition int, due time.Duration, reason string) BlockedPartition {
		b := BlockedPartition{Partition: partition, Offset: 100, Kind: k, Reason: reason}
		if due != 0 {
			b.Due = now.Add(due)
		}
		return b
	}
	call := func(age time.Duration) func(*GroupStats) {
		return func(s *GroupStats) {
			s.Run.Calls = []HandlerCall{{Partition: 2, Offset: 1234, Events: 10, Since: now.Add(-age)}}
		}
	}
	return []whyCase{
		{"nothing to read", running(func(s *GroupStats) { s.Lag, s.LagTime = 0, 0 }), topicFacts{}, Idle, "nothing to read"},
		{"a group that was never used and has nothing to read", GroupStats{Consumers: 1, Use: "nobody"}, topicFacts{}, Idle, "nothing to read"},
		{"closed", running(func(*GroupStats) {}), topicFacts{closed: true}, Closed, "closed"},
		{"nobody runs it", running(func(s *GroupStats) { s.Use = "nobody"; s.Run.Running = false }), topicFacts{}, NoConsumer,
			"no consumer is running; 1,200 events wait, the oldest for 1m30s"},
		{"Run has returned", running(func(s *GroupStats) { s.Run.Running = false }), topicFacts{}, NoConsumer, "no consumer is running"},
		{"only stored", running(func(s *GroupStats) { s.Consumers, s.Use = 0, "nobody" }), topicFacts{}, NoConsumer,
			"the group is not open; its position is stored on disk; 1,200 events wait"},
		{"paused", running(func(s *GroupStats) { s.Paused = true }), topicFacts{}, Paused, "paused by Pause; 1,200 events wait"},
		{"paused with nothing to read", running(func(s *GroupStats) { s.Lag, s.LagTime, s.Paused = 0, 0, true }), topicFacts{}, Paused, "paused by Pause"},
		{"the partition with all of the lag is paused", running(func(s *GroupStats) { s.PausedPartitions = []int{0, 2} }), topicFacts{}, Paused,
			"paused partitions: 0, 2; 1,200 events wait"},
		{"a partition without lag is paused", running(func(s *GroupStats) { s.PausedPartitions = []int{1} }), topicFacts{}, Moving, "moving"},
		{"handler runs", running(call(3 * time.Second)), topicFacts{}, Busy, "handler has been running for 3s on partition 2 offset 1234; 1,200 events wait"},
		{"handler hangs", running(call(3*time.Minute + 2*time.Second)), topicFacts{}, Stuck, "handler has been running for 3m2s on partition 2 offset 1234"},
		{"handler runs for a moment", running(func(s *GroupStats) { call(100 * time.Millisecond)(s); s.Out = 10 }), topicFacts{}, Moving, "moving"},
		{"a hanging handler with nothing behind it", running(func(s *GroupStats) { s.Lag = 0; call(time.Minute)(s) }), topicFacts{}, Stuck,
			"handler has been running for 1m0s on partition 2 offset 1234"},
		{"retry", running(func(s *GroupStats) {
			s.Run.Blocked = []BlockedPartition{blocked(settle.Retrying, 0, 12*time.Second, "offset 100 waits for attempt 4 of 8: no route")}
		}), topicFacts{}, Retrying, "partition 0: offset 100 waits for attempt 4 of 8: no route, due in 12s"},
		{"retry that is due", running(func(s *GroupStats) {
			s.Run.Blocked = []BlockedPartition{blocked(settle.Retrying, 0, -time.Second, "offset 100 waits for attempt 4 of 8: no route")}
		}), topicFacts{}, Retrying, "no route"},
		{"the worst of several partitions", running(func(s *GroupStats) {
			s.Run.Blocked = []BlockedPartition{
				blocked(settle.Retrying, 0, time.Second, "retry"), blocked(settle.RetryLogFull, 2, 0, "the retry log has no room"), blocked(settle.WindowFull, 1, 0, "window"),
			}
		}), topicFacts{}, RetryLogFull, "partition 2: the retry log has no room; 2 more partitions wait likewise"},
		{"dead letter is not taken", running(func(s *GroupStats) {
			s.Run.Blocked = []BlockedPartition{blocked(settle.DeadLettering, 0, 0, "waits to be handed over")}
		}), topicFacts{}, NotTaken, "handed over"},
		{"window full", running(func(s *GroupStats) {
			s.Run.Blocked = []BlockedPartition{blocked(settle.WindowFull, 0, 0, "offset 100 is not settled")}
		}), topicFacts{}, WindowFull, "not settled"},
		{"retry log does not store", running(func(s *GroupStats) {
			s.Run.Blocked = []BlockedPartition{blocked(settle.NotLogged, 0, 0, "not stored in the retry log yet")}
		}), topicFacts{}, NotLogged, "not stored"},
		{"fault of the settlement", running(func(s *GroupStats) {
			s.Paused = true
			s.Run.Blocked = []BlockedPartition{blocked(settle.Faulted, 0, 0, "stopped by a fault")}
		}), topicFacts{}, Faulted, "stopped by a fault"},
		{"partition faulted", running(func(*GroupStats) {}), topicFacts{fault: errors.New("checksum"), faulted: 2}, Faulted, "partition 2 is faulted: checksum"},
		{"Run ended", running(func(s *GroupStats) {
			s.Run.Running, s.Run.Ended, s.Run.EndedBy = false, now.Add(-time.Hour), "read: no such thing"
		}), topicFacts{}, Ended, "Run ended 1h0m ago and nobody runs the group: read: no such thing"},
		{"commit fails", running(func(s *GroupStats) {
			s.LastError = &GroupError{Kind: KindCommit, Partition: 0, Offset: 200, Text: "input/output error", Time: now.Add(-time.Second)}
		}), topicFacts{}, CommitFailed, "the commit of partition 0 to offset 200 failed 1s ago: input/output error"},
		{"a later commit did not fail", running(func(s *GroupStats) {
			s.LastError = &GroupError{Kind: KindCommit, Partition: 0, Offset: 100, Text: "input/output error", Time: now}
		}), topicFacts{}, Moving, "moving"},
		{"a partition is stopped", running(func(s *GroupStats) {
			s.Run.Unreadable = []UnreadablePartition{{Partition: 1, Offset: 50, Next: now.Add(time.Second)}, {Partition: 0, Offset: 100, Attempts: 1, Reason: "event 100 cannot be decoded: schema is unknown"}}
		}), topicFacts{}, Faulted, "partition 0 is stopped at offset 100: event 100 cannot be decoded: schema is unknown; 1,200 events wait"},
		{"a partition is tried again", running(func(s *GroupStats) {
			s.Run.Unreadable = []UnreadablePartition{{Partition: 0, Offset: 100, Since: now.Add(-time.Minute), Next: now.Add(5 * time.Second), Attempts: 7, Reason: "input/output error"}}
		}), topicFacts{}, Unreadable, "partition 0 cannot be read at offset 100 for 1m0s: input/output error; next attempt in 5s"},
		{"a pull cannot read", running(func(s *GroupStats) {
			s.Use, s.Run.Running, s.LastError = "pull consumers", false, &GroupError{Kind: KindRead, Partition: 0, Offset: 100, Text: "bad event", Time: now.Add(-time.Second)}
		}), topicFacts{}, Unreadable, "partition 0 could not be read at offset 100 1s ago: bad event"},
		{"a pull has read on", running(func(s *GroupStats) {
			s.Use, s.Run.Running, s.LastError = "pull consumers", false, &GroupError{Kind: KindRead, Partition: 0, Offset: 99, Text: "bad event", Time: now}
		}), topicFacts{}, Moving, "moving"},
		{"disk full", running(func(s *GroupStats) {
			s.LastError = &GroupError{Kind: KindCommit, Partition: 0, Offset: 200, Text: "no space left", DiskFull: true, Time: now}
		}), topicFacts{}, DiskFull, "the disk is full: the commit of partition 0 to offset 200 could not be stored: no space left"},
		{"rate limit", running(func(s *GroupStats) { s.RateLimited, s.Rate = true, 1500 }), topicFacts{}, RateLimited, "held to 1,500/s by Rate; 1,200 events wait"},
		{"parked", running(func(s *GroupStats) {
			s.Lag = 0
			s.Parked = ParkedStats{Keys: 3, Events: 40, Oldest: now.Add(-time.Minute), Reason: "no such customer"}
		}), topicFacts{}, Parked, "all is read; 3 keys are parked, the longest for 1m0s: no such customer"},
		{"falls behind", running(func(s *GroupStats) {
			s.In, s.Out, s.Over = 1000, 12.5, 10*time.Second
			s.Run.Batches, s.Run.Delivered, s.Run.HandlerTime = 10, 45, 2*time.Second
		}), topicFacts{}, Behind, "falls behind: takes 12.5/s of the 1,000/s that come in, its handler takes 200ms for 4.5 events; 1,200 events wait"},
		{"has committed all that came", running(func(s *GroupStats) { s.Lag, s.LagTime, s.In, s.Out, s.Over = 0, 0, 5000, 5000, 10*time.Second }), topicFacts{}, Moving,
			"keeps up: all 5,000/s are committed"},
		{"drains", running(func(s *GroupStats) { s.In, s.Out, s.Over, s.Drain = 10, 100, 10*time.Second, 13*time.Second }), topicFacts{}, Moving, "moving, drains in 13s"},
		{"keeps up", running(func(s *GroupStats) { s.In, s.Out, s.Over, s.Drain = 5000, 4990, 10*time.Second, time.Second }), topicFacts{}, Moving, "keeps up: 4,990/s of 5,000/s are committed"},
		{"pull consumers do not commit", running(func(s *GroupStats) { s.Use, s.Run.Running, s.Still = "pull consumers", false, time.Minute }), topicFacts{}, Stalled,
			"nothing has been committed for 1m0s by its pull consumers; 1,200 events wait"},
		{"readers do not commit", running(func(s *GroupStats) { s.Use, s.Run.Running, s.Still = "readers", false, time.Minute }), topicFacts{}, Stalled, "by its readers"},
		{"nothing moves and no reason is known", running(func(s *GroupStats) { s.Still = time.Minute }), topicFacts{}, Stalled, "nothing has been committed for 1m0s"},
		{"new events of a quiet topic", running(func(s *GroupStats) { s.Still, s.LagTime = time.Hour, time.Millisecond }), topicFacts{}, Moving, "moving"},
		{"holds producers back", running(func(s *GroupStats) { s.Paused, s.HoldsBack = true, true }), topicFacts{full: true, waiting: 3}, Paused,
			"paused by Pause; 1,200 events wait, the oldest for 1m30s; the topic is full because of this group; 3 requests of producers wait"},
	}
}

func TestWhyNamesTheReason(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var seen []State
	for _, c := range whyCases(now) {
		t.Run(c.name, func(t *testing.T) {
			c.group.explain(now, c.facts)
			if c.group.State != c.state || !strings.Contains(c.group.Why, c.say) {
				t.Errorf("%s: %q, want %s: %q", c.group.State, c.group.Why, c.state, c.say)
			}
		})
		seen = append(seen, c.state)
	}
	ofTopics := []State{NoGroup, Full}
	for s := State(0); s < states; s++ {
		if !slices.Contains(seen, s) && !slices.Contains(ofTopics, s) {
			t.Errorf("no case leads to %s", s)
		}
	}
}

func TestTopicSaysWhatAilsIt(t *testing.T) {
	lagging := func(name string, lag uint64) GroupStats {
		return GroupStats{Name: name, Consumers: 1, Use: "nobody", Lag: lag, Partitions: []GroupPartitionStats{{Lag: lag}}}
	}
	for _, c := range []struct {
		name  string
		s     Stats
		state State
		say   string
	}{
		{"empty", Stats{Partitions: make([]PartitionStats, 1)}, Idle, "nothing to read"},
		{"working", Stats{Retained: 5, Capacity: 10, Groups: []GroupStats{lagging("a", 5)}}, Moving, "takes events"},
		{"closed", Stats{Closed: true, Capacity: 10, Retained: 10}, Closed, "closed"},
		{"full", Stats{Capacity: 10, Retained: 10, WaitingProducers: 1, Groups: []GroupStats{lagging("a", 3), lagging("b", 10)}}, Full,
			"the topic is full; group b has the most to commit; 1 request of a producer waits"},
		{"full for a group that is not open", Stats{Capacity: 10, Retained: 10, Groups: []GroupStats{lagging("a", 3)}, Stored: []GroupStats{lagging("old", 10)}}, Full,
			"group old has the most to commit"},
		{"full in bytes", Stats{CapacityBytes: 10, UsedBytes: 10, Retained: 1, Groups: []GroupStats{lagging("a", 1)}}, Full, "group a"},
		{"full for a moment", Stats{Capacity: 10, Retained: 8, WaitingProducers: 1, Groups: []GroupStats{lagging("a", 0)}}, Full,
			"the topic is full; 1 request of a producer waits"},
		{"full without a group", Stats{Capacity: 10, Retained: 10, WaitingProducers: 2}, NoGroup, "has no group to make room; 2 requests of producers wait"},
		{"bounded without a group", Stats{Capacity: 10, Retained: 1}, NoGroup, "no group reads the topic"},
		{"unbounded without a group", Stats{Retained: 1}, Moving, "takes events"},
		{"disk full", Stats{DiskFull: true, Groups: []GroupStats{lagging("a", 1)}}, DiskFull, "disk was full"},
		{"faulted", Stats{Partitions: []PartitionStats{{}, {Fault: &penstock.CorruptError{Topic: "t", Partition: 1, Cause: errors.New("checksum")}}}}, Faulted, "partition 1 takes no events: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.s.explain(time.Now())
			if c.s.State != c.state || !strings.Contains(c.s.Why, c.say) {
				t.Errorf("%s: %q, want %s: %q", c.s.State, c.s.Why, c.state, c.say)
			}
			holding := 0
			for _, g := range slices.Concat(c.s.Groups, c.s.Stored) {
				if g.HoldsBack {
					holding++
					if !strings.Contains(c.s.Why, g.Name) || g.Severity() != Alarm {
						t.Errorf("%s holds back, with %s", g.Name, g.Severity())
					}
				}
			}
			if want := c.state == Full && strings.Contains(c.say, "group"); (holding == 1) != want {
				t.Errorf("%d groups hold back", holding)
			}
		})
	}
}

func TestStatesAndSeveritiesHaveNames(t *testing.T) {
	names := map[string]bool{}
	for s := State(0); s < states; s++ {
		if n := s.String(); n == "" || names[n] || strings.ContainsAny(n, " -()") {
			t.Errorf("state %d is called %q", uint8(s), n)
		}
		names[s.String()] = true
	}
	if states.String() != "state(23)" || Severity(9).String() != "severity(9)" {
		t.Errorf("%s, %s", states, Severity(9))
	}
	for s, want := range map[State]Severity{
		Idle: Fine, Moving: Fine, Paused: Notice, Busy: Notice, Behind: Warning, Stuck: Warning, Full: Alarm, Faulted: Alarm, NoConsumer: Warning,
	} {
		if s.Severity() != want {
			t.Errorf("%s is %s, want %s", s, s.Severity(), want)
		}
	}
}

func TestTextsForPeople(t *testing.T) {
	if got := partitionList([]int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}); got != "1, 2, 3, 4, 5, 6, 7, 8 and 2 more" {
		t.Error(got)
	}
}
