package queue

import (
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
)

// metric is a family of the Prometheus text format: one line per topic or per
// group. Labels are names of topics and groups, a state and a reason, and for
// topics that share a name a number: there are no labels for partitions, keys
// or offsets, whose number nobody bounds. All values are in base units.
type metric struct {
	debugpage.Metric
	topic func(s *Stats) []debugpage.Value
	group func(v *debugView, g *GroupStats) []debugpage.Value
}

func topicMetric(name, kind, help string, f func(*Stats) []debugpage.Value) metric {
	return metric{Metric: debugpage.Metric{Name: "penstock_queue_topic_" + name, Kind: kind, Help: help}, topic: f}
}

func groupMetric(name, kind, help string, f func(*debugView, *GroupStats) []debugpage.Value) metric {
	return metric{Metric: debugpage.Metric{Name: "penstock_queue_group_" + name, Kind: kind, Help: help}, group: f}
}

// metrics are all that the handler tells, in the order of the text.
var metrics = []metric{
	topicMetric("produced_events_total", "counter", "Events ever appended; on disk by earlier processes too.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.Produced)) }),
	topicMetric("refused_events_total", "counter", "Events not accepted for want of capacity.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.Refused)) }),
	topicMetric("retained_events", "gauge", "Events that some group has not committed.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.Retained)) }),
	topicMetric("capacity_events", "gauge", "Limit of the retained events. Not there when unbounded.", func(s *Stats) []debugpage.Value { return debugpage.Known(float64(s.Capacity)) }),
	topicMetric("used_bytes", "gauge", "Bytes of the capacity in bytes that are taken.", func(s *Stats) []debugpage.Value {
		if s.CapacityBytes == 0 {
			return nil
		}
		return debugpage.One(float64(s.UsedBytes))
	}),
	topicMetric("capacity_bytes", "gauge", "Limit of the used bytes. Not there when unbounded.", func(s *Stats) []debugpage.Value { return debugpage.Known(float64(s.CapacityBytes)) }),
	topicMetric("used_disk_bytes", "gauge", "What the segment files take and have claimed. Not there in memory.", func(s *Stats) []debugpage.Value { return debugpage.Known(float64(s.UsedDisk)) }),
	topicMetric("capacity_disk_bytes", "gauge", "Limit of what the segment files take. Not there when unbounded.", func(s *Stats) []debugpage.Value { return debugpage.Known(float64(s.CapacityDisk)) }),
	topicMetric("waiting_producers", "gauge", "Requests of producers in line for capacity.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.WaitingProducers)) }),
	topicMetric("key_panics_total", "counter", "Looks at events on which Config.Key panicked.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.KeyPanics)) }),
	topicMetric("size_panics_total", "counter", "Looks at events on which Config.Size panicked in a run.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.SizePanics)) }),
	topicMetric("skipped_events_total", "counter", "Events past which limits have moved groups, summed over the groups.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.Skipped)) }),
	topicMetric("expired_events_total", "counter", "Events that limits have taken from a topic without a group.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.Expired)) }),
	topicMetric("forgotten_groups_total", "counter", "Groups that were forgotten because nobody used them.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.Forgotten)) }),
	topicMetric("partitions", "gauge", "Partitions.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(len(s.Partitions))) }),
	topicMetric("faulted_partitions", "gauge", "Partitions on disk that take no events: damage, or a write that failed.", func(s *Stats) []debugpage.Value {
		n := 0
		for i := range s.Partitions {
			if s.Partitions[i].Fault != nil {
				n++
			}
		}
		return debugpage.One(float64(n))
	}),
	topicMetric("disk_bytes", "gauge", "Bytes of the log on disk. Not there in memory.", func(s *Stats) []debugpage.Value {
		n := 0.0
		for i := range s.Partitions {
			n += float64(s.Partitions[i].Bytes)
		}
		if s.Storage != "disk" {
			return nil
		}
		return debugpage.One(n)
	}),
	topicMetric("disk_full", "gauge", "1 when the last append found the disk full.", func(s *Stats) []debugpage.Value { return debugpage.Truth(s.DiskFull) }),
	topicMetric("severity", "gauge", "0 fine, 1 notice, 2 warning, 3 alarm.", func(s *Stats) []debugpage.Value { return debugpage.One(float64(s.State.Severity())) }),

	groupMetric("lag_events", "gauge", "Events not committed.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Lag)) }),
	groupMetric("lag_seconds", "gauge", "Since the oldest event that is not committed was appended.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(g.LagTime.Seconds()) }),
	groupMetric("committed_events_total", "counter", "Events committed since the group was opened.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Committed)) }),
	groupMetric("delivered_events_total", "counter", "Events given to the handler, retries included.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Run.Delivered)) }),
	groupMetric("failed_events_total", "counter", "Deliveries that failed.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Run.Failed)) }),
	groupMetric("dead_lettered_events_total", "counter", "Events taken as dead letters.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Run.DeadLettered)) }),
	groupMetric("dropped_events_total", "counter", "Events that failed and do not come again, because of AutoCommit.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Run.Dropped)) }),
	groupMetric("discarded_events_total", "counter", "Parked events given up by DiscardParked.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Discarded)) }),
	groupMetric("redriven_events_total", "counter", "Dead letters that Redrive has sent back.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Redriven)) }),
	groupMetric("undecodable_events_total", "counter", "Events that could not be decoded, and were handed to the dead letters or dropped.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Undecodable)) }),
	groupMetric("read_errors_total", "counter", "Failed attempts to read a partition.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.ReadErrors)) }),
	groupMetric("skipped_events_total", "counter", "Events past which limits have moved the group.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Skipped)) }),
	groupMetric("unreadable_partitions", "gauge", "Partitions that Run cannot read on, or has stopped.", func(_ *debugView, g *GroupStats) []debugpage.Value {
		return debugpage.One(float64(len(g.Run.Unreadable)))
	}),
	groupMetric("batches_total", "counter", "Batches given to the handler, by why they were delivered with their size.", func(_ *debugView, g *GroupStats) []debugpage.Value {
		return []debugpage.Value{
			debugpage.With("reason", "count", float64(g.Run.FlushedByCount)), debugpage.With("reason", "bytes", float64(g.Run.FlushedByBytes)),
			debugpage.With("reason", "linger", float64(g.Run.FlushedByLinger)), debugpage.With("reason", "retry", float64(g.Run.Retries)),
		}
	}),
	groupMetric("handler_seconds_total", "counter", "Time in calls of the handler that have returned.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(g.Run.HandlerTime.Seconds()) }),
	groupMetric("handler_busy_seconds", "gauge", "How long the call of the handler has been running that began first.", func(v *debugView, g *GroupStats) []debugpage.Value {
		if len(g.Run.Calls) == 0 {
			return debugpage.One(0)
		}
		return debugpage.One(max(0, v.now.Sub(g.Run.Calls[0].Since).Seconds()))
	}),
	groupMetric("in_hand_events", "gauge", "Events that handlers have now.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Run.InHand)) }),
	groupMetric("retrying_events", "gauge", "Events that failed and wait to come again.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Run.Waiting)) }),
	groupMetric("blocked_partitions", "gauge", "Partitions that wait for an event in their way.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(len(g.Run.Blocked))) }),
	groupMetric("parked_keys", "gauge", "Keys in the retry log.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Parked.Keys)) }),
	groupMetric("parked_events", "gauge", "Events in the retry log.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Parked.Events)) }),
	groupMetric("parked_bytes", "gauge", "Bytes in the retry log.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Parked.Bytes)) }),
	groupMetric("parked_oldest_seconds", "gauge", "How long the event that is parked the longest has been.", func(v *debugView, g *GroupStats) []debugpage.Value {
		return debugpage.One(since(v.now, g.Parked.Oldest))
	}),
	groupMetric("consumers", "gauge", "Consumers; 0 when the group is only stored.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Consumers)) }),
	groupMetric("resizes_total", "counter", "How often Resize has changed the number of consumers.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Resized)) }),
	groupMetric("resizing_to_consumers", "gauge", "Consumers that a Resize waits to change the group to; 0 when none waits.", func(_ *debugView, g *GroupStats) []debugpage.Value {
		return debugpage.One(float64(g.ResizingTo))
	}),
	groupMetric("running", "gauge", "1 while Run has not returned.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.Truth(g.Run.Running) }),
	groupMetric("paused", "gauge", "1 while the group is paused.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.Truth(g.Paused) }),
	groupMetric("paused_partitions", "gauge", "Partitions that are paused by themselves.", func(_ *debugView, g *GroupStats) []debugpage.Value {
		return debugpage.One(float64(len(g.PausedPartitions)))
	}),
	groupMetric("rate_limit_events_per_second", "gauge", "Limit of the group's rate. Not there without one.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.Known(debugpage.Finite(g.Rate)) }),
	groupMetric("holds_back", "gauge", "1 when the topic is full because of this group.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.Truth(g.HoldsBack) }),
	groupMetric("last_error_timestamp_seconds", "gauge", "Unix time of the last failure. Not there without one.", func(_ *debugView, g *GroupStats) []debugpage.Value {
		if g.LastError == nil {
			return nil
		}
		return debugpage.One(float64(g.LastError.Time.UnixMilli()) / 1000)
	}),
	groupMetric("severity", "gauge", "0 fine, 1 notice, 2 warning, 3 alarm.", func(_ *debugView, g *GroupStats) []debugpage.Value { return debugpage.One(float64(g.Severity())) }),
	groupMetric("state", "gauge", "1 for the state that the group is in; docs/observability.md lists the states.", func(_ *debugView, g *GroupStats) []debugpage.Value {
		return []debugpage.Value{debugpage.With("state", g.State.String(), 1)}
	}),
}

func since(now, t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, now.Sub(t).Seconds())
}

// openTopicsMetric is the one family that is not about a topic.
var openTopicsMetric = debugpage.Metric{Name: "penstock_queue_topics", Kind: "gauge", Help: "Open topics."}

// Metrics implements debugpage.View.
func (v *debugView) Metrics(b *strings.Builder) {
	begun := false
	openTopicsMetric.Write(b, &begun, "", debugpage.One(float64(len(v.topics))))
	labels := make([]string, len(v.topics))
	for i := range v.topics {
		labels[i] = debugpage.Label("topic", v.topics[i].Name)
		if v.copies[i] > 0 {
			labels[i] += "," + debugpage.Label("copy", strconv.Itoa(v.copies[i]))
		}
	}
	for i := range metrics {
		m := &metrics[i]
		begun := false
		for j := range v.topics {
			s := &v.topics[j]
			if m.topic != nil {
				m.Write(b, &begun, labels[j], m.topic(s))
				continue
			}
			for _, list := range [][]GroupStats{s.Groups, s.Stored} {
				for k := range list {
					m.Write(b, &begun, labels[j]+","+debugpage.Label("group", list[k].Name), m.group(v, &list[k]))
				}
			}
		}
	}
}
