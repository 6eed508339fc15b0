package queue

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// metric is a family of the Prometheus text format: one line per topic or per
// group. Labels are names of topics and groups, a state and a reason, and for
// topics that share a name a number: there are no labels for partitions, keys
// or offsets, whose number nobody bounds. All values are in base units.
type metric struct {
	name  string
	kind  string // gauge or counter
	help  string
	topic func(s *Stats) []labelled
	group func(v *debugView, g *GroupStats) []labelled
}

// labelled is a value with one further label, or without when name is "".
type labelled struct {
	name, label string
	value       float64
}

func one(f float64) []labelled { return []labelled{{value: f}} }

func truth(b bool) []labelled {
	if b {
		return one(1)
	}
	return one(0)
}

func topicMetric(name, kind, help string, f func(*Stats) []labelled) metric {
	return metric{name: "penstock_queue_topic_" + name, kind: kind, help: help, topic: f}
}

func groupMetric(name, kind, help string, f func(*debugView, *GroupStats) []labelled) metric {
	return metric{name: "penstock_queue_group_" + name, kind: kind, help: help, group: f}
}

// metrics are all that the handler tells, in the order of the text.
var metrics = []metric{
	topicMetric("produced_events_total", "counter", "Events ever appended; on disk by earlier processes too.", func(s *Stats) []labelled { return one(float64(s.Produced)) }),
	topicMetric("refused_events_total", "counter", "Events not accepted for want of capacity.", func(s *Stats) []labelled { return one(float64(s.Refused)) }),
	topicMetric("retained_events", "gauge", "Events that some group has not committed.", func(s *Stats) []labelled { return one(float64(s.Retained)) }),
	topicMetric("capacity_events", "gauge", "Limit of the retained events. Not there when unbounded.", func(s *Stats) []labelled { return known(float64(s.Capacity)) }),
	topicMetric("used_bytes", "gauge", "Bytes of the capacity in bytes that are taken.", func(s *Stats) []labelled {
		if s.CapacityBytes == 0 {
			return nil
		}
		return one(float64(s.UsedBytes))
	}),
	topicMetric("capacity_bytes", "gauge", "Limit of the used bytes. Not there when unbounded.", func(s *Stats) []labelled { return known(float64(s.CapacityBytes)) }),
	topicMetric("waiting_producers", "gauge", "Requests of producers in line for capacity.", func(s *Stats) []labelled { return one(float64(s.WaitingProducers)) }),
	topicMetric("key_panics_total", "counter", "Looks at events on which Config.Key panicked.", func(s *Stats) []labelled { return one(float64(s.KeyPanics)) }),
	topicMetric("partitions", "gauge", "Partitions.", func(s *Stats) []labelled { return one(float64(len(s.Partitions))) }),
	topicMetric("faulted_partitions", "gauge", "Partitions on disk that take no events: damage, or a write that failed.", func(s *Stats) []labelled {
		n := 0
		for i := range s.Partitions {
			if s.Partitions[i].Fault != nil {
				n++
			}
		}
		return one(float64(n))
	}),
	topicMetric("disk_bytes", "gauge", "Bytes of the log on disk. Not there in memory.", func(s *Stats) []labelled {
		n := 0.0
		for i := range s.Partitions {
			n += float64(s.Partitions[i].Bytes)
		}
		if s.Storage != "disk" {
			return nil
		}
		return one(n)
	}),
	topicMetric("disk_full", "gauge", "1 when the last append found the disk full.", func(s *Stats) []labelled { return truth(s.DiskFull) }),
	topicMetric("severity", "gauge", "0 fine, 1 notice, 2 warning, 3 alarm.", func(s *Stats) []labelled { return one(float64(s.State.Severity())) }),

	groupMetric("lag_events", "gauge", "Events not committed.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Lag)) }),
	groupMetric("lag_seconds", "gauge", "Since the oldest event that is not committed was appended.", func(_ *debugView, g *GroupStats) []labelled { return one(g.LagTime.Seconds()) }),
	groupMetric("committed_events_total", "counter", "Events committed since the group was opened.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Committed)) }),
	groupMetric("delivered_events_total", "counter", "Events given to the handler, retries included.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Run.Delivered)) }),
	groupMetric("failed_events_total", "counter", "Deliveries that failed.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Run.Failed)) }),
	groupMetric("dead_lettered_events_total", "counter", "Events taken as dead letters.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Run.DeadLettered)) }),
	groupMetric("dropped_events_total", "counter", "Events that failed and do not come again, because of AutoCommit.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Run.Dropped)) }),
	groupMetric("discarded_events_total", "counter", "Parked events given up by DiscardParked.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Discarded)) }),
	groupMetric("redriven_events_total", "counter", "Dead letters that Redrive has sent back.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Redriven)) }),
	groupMetric("batches_total", "counter", "Batches given to the handler, by why they were delivered with their size.", func(_ *debugView, g *GroupStats) []labelled {
		return []labelled{
			{"reason", "count", float64(g.Run.FlushedByCount)}, {"reason", "bytes", float64(g.Run.FlushedByBytes)},
			{"reason", "linger", float64(g.Run.FlushedByLinger)}, {"reason", "retry", float64(g.Run.Retries)},
		}
	}),
	groupMetric("handler_seconds_total", "counter", "Time in calls of the handler that have returned.", func(_ *debugView, g *GroupStats) []labelled { return one(g.Run.HandlerTime.Seconds()) }),
	groupMetric("handler_busy_seconds", "gauge", "How long the call of the handler has been running that began first.", func(v *debugView, g *GroupStats) []labelled {
		if len(g.Run.Calls) == 0 {
			return one(0)
		}
		return one(max(0, v.now.Sub(g.Run.Calls[0].Since).Seconds()))
	}),
	groupMetric("in_hand_events", "gauge", "Events that handlers have now.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Run.InHand)) }),
	groupMetric("retrying_events", "gauge", "Events that failed and wait to come again.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Run.Waiting)) }),
	groupMetric("blocked_partitions", "gauge", "Partitions that wait for an event in their way.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(len(g.Run.Blocked))) }),
	groupMetric("parked_keys", "gauge", "Keys in the retry log.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Parked.Keys)) }),
	groupMetric("parked_events", "gauge", "Events in the retry log.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Parked.Events)) }),
	groupMetric("parked_bytes", "gauge", "Bytes in the retry log.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Parked.Bytes)) }),
	groupMetric("parked_oldest_seconds", "gauge", "How long the event that is parked the longest has been.", func(v *debugView, g *GroupStats) []labelled { return one(since(v.now, g.Parked.Oldest)) }),
	groupMetric("consumers", "gauge", "Consumers; 0 when the group is only stored.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Consumers)) }),
	groupMetric("running", "gauge", "1 while Run has not returned.", func(_ *debugView, g *GroupStats) []labelled { return truth(g.Run.Running) }),
	groupMetric("paused", "gauge", "1 while the group is paused.", func(_ *debugView, g *GroupStats) []labelled { return truth(g.Paused) }),
	groupMetric("paused_partitions", "gauge", "Partitions that are paused by themselves.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(len(g.PausedPartitions))) }),
	groupMetric("rate_limit_events_per_second", "gauge", "Limit of the group's rate. Not there without one.", func(_ *debugView, g *GroupStats) []labelled { return known(finite(g.Rate)) }),
	groupMetric("holds_back", "gauge", "1 when the topic is full because of this group.", func(_ *debugView, g *GroupStats) []labelled { return truth(g.HoldsBack) }),
	groupMetric("last_error_timestamp_seconds", "gauge", "Unix time of the last failure. Not there without one.", func(_ *debugView, g *GroupStats) []labelled {
		if g.LastError == nil {
			return nil
		}
		return one(float64(g.LastError.Time.UnixMilli()) / 1000)
	}),
	groupMetric("severity", "gauge", "0 fine, 1 notice, 2 warning, 3 alarm.", func(_ *debugView, g *GroupStats) []labelled { return one(float64(g.Severity())) }),
	groupMetric("state", "gauge", "1 for the state that the group is in; docs/observability.md lists the states.", func(_ *debugView, g *GroupStats) []labelled {
		return []labelled{{"state", g.State.String(), 1}}
	}),
}

// known is a value that is not told when it is 0.
func known(f float64) []labelled {
	if f == 0 {
		return nil
	}
	return one(f)
}

func since(now, t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, now.Sub(t).Seconds())
}

// writeMetrics writes the Prometheus text format.
func (v *debugView) writeMetrics(w io.Writer) {
	var b strings.Builder
	b.WriteString("# HELP penstock_queue_topics Open topics.\n# TYPE penstock_queue_topics gauge\npenstock_queue_topics ")
	b.WriteString(strconv.Itoa(len(v.topics)))
	b.WriteByte('\n')
	labels := make([]string, len(v.topics))
	for i := range v.topics {
		labels[i] = `topic="` + escapeLabel(v.topics[i].Name) + `"`
		if v.copies[i] > 0 {
			labels[i] += `,copy="` + strconv.Itoa(v.copies[i]) + `"`
		}
	}
	for i := range metrics {
		m := &metrics[i]
		begun := false
		for j := range v.topics {
			s := &v.topics[j]
			if m.topic != nil {
				m.write(&b, &begun, labels[j], m.topic(s))
				continue
			}
			for _, list := range [][]GroupStats{s.Groups, s.Stored} {
				for k := range list {
					m.write(&b, &begun, labels[j]+`,group="`+escapeLabel(list[k].Name)+`"`, m.group(v, &list[k]))
				}
			}
		}
	}
	_, _ = io.WriteString(w, b.String()) // to memory
}

// write writes the lines of one topic or group, and before the first of the
// family what it is.
func (m *metric) write(b *strings.Builder, begun *bool, labels string, values []labelled) {
	if len(values) > 0 && !*begun {
		*begun = true
		b.WriteString("# HELP " + m.name + " " + m.help + "\n# TYPE " + m.name + " " + m.kind + "\n")
	}
	for _, v := range values {
		b.WriteString(m.name + "{" + labels)
		if v.name != "" {
			b.WriteString("," + v.name + `="` + escapeLabel(v.label) + `"`)
		}
		b.WriteString("} " + strconv.FormatFloat(v.value, 'g', -1, 64) + "\n")
	}
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// escapeLabel writes a name as the value of a label. The format is UTF-8; a
// byte that is not becomes the text \xff, and a backslash before an x becomes
// \x5c, so that no two names have one label.
func escapeLabel(s string) string {
	if utf8.ValidString(s) && !strings.Contains(s, `\x`) {
		return labelEscapes.Replace(s)
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 || strings.HasPrefix(s, `\x`) {
			fmt.Fprintf(&b, `\\x%02x`, s[0])
		} else {
			b.WriteString(labelEscapes.Replace(s[:n]))
		}
		s = s[n:]
	}
	return b.String()
}
