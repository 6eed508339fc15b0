package stream

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/debugpage"
)

// metric is a family of the Prometheus text format: one line per queue. Labels
// are names of providers and queues, a state, and for providers that share a
// name a number: there are no labels for streams and subscriptions, whose
// number nobody bounds.
type metric struct {
	debugpage.Metric
	of func(q *QueueStats) []debugpage.Value
}

func queueMetric(name, kind, help string, f func(*QueueStats) []debugpage.Value) metric {
	return metric{debugpage.Metric{Name: "penstock_stream_queue_" + name, Kind: kind, Help: help}, f}
}

func queueCount(name, kind, help string, f func(*QueueStats) uint64) metric {
	return queueMetric(name, kind, help, func(q *QueueStats) []debugpage.Value { return debugpage.One(float64(f(q))) })
}

// providersMetric is the one family that is not about a queue.
var providersMetric = debugpage.Metric{Name: "penstock_stream_providers", Kind: "gauge", Help: "Open providers."}

// metrics are all that the handler tells, in the order of the text.
var metrics = []metric{
	queueCount("lag_events", "gauge", "Events read that some subscription has not settled, each counted once.", func(q *QueueStats) uint64 { return q.Lag }),
	queueMetric("lag_seconds", "gauge", "Age of the oldest of them.", func(q *QueueStats) []debugpage.Value { return debugpage.One(q.LagTime.Seconds()) }),
	queueMetric("unread_containers", "gauge", "Containers in the queue that were not read. Not there when the adapter cannot tell.", func(q *QueueStats) []debugpage.Value {
		if q.Unread < 0 {
			return nil
		}
		return debugpage.One(float64(q.Unread))
	}),
	queueMetric("running", "gauge", "1 while the agent of the queue runs here.", func(q *QueueStats) []debugpage.Value { return debugpage.Truth(q.Running) }),
	queueCount("streams", "gauge", "Streams in memory.", func(q *QueueStats) uint64 { return uint64(q.Streams) }),
	queueCount("busy_streams", "gauge", "Streams with something outstanding.", func(q *QueueStats) uint64 { return uint64(q.Busy) }),
	queueCount("subscriptions", "gauge", "Subscriptions attached, or being attached.", func(q *QueueStats) uint64 { return uint64(q.Subscriptions) }),
	queueCount("cached_containers", "gauge", "Containers in the cache.", func(q *QueueStats) uint64 { return uint64(q.Cached) }),
	queueMetric("under_pressure", "gauge", "1 when the cache pauses reading.", func(q *QueueStats) []debugpage.Value { return debugpage.Truth(q.UnderPressure) }),
	queueCount("read_containers_total", "counter", "Containers read since the agent was started.", func(q *QueueStats) uint64 { return q.Read }),
	queueCount("read_events_total", "counter", "Events in them.", func(q *QueueStats) uint64 { return q.ReadEvents }),
	queueCount("read_failures_total", "counter", "Failed reads.", func(q *QueueStats) uint64 { return q.ReadFailures }),
	queueCount("delivered_events_total", "counter", "Events settled by a consumer, once per subscription.", func(q *QueueStats) uint64 { return q.Delivered }),
	queueCount("failed_events_total", "counter", "Failed attempts, in events.", func(q *QueueStats) uint64 { return q.Failed }),
	queueCount("skipped_events_total", "counter", "Events passed without delivery, by a verdict.", func(q *QueueStats) uint64 { return q.Skipped }),
	queueCount("dead_lettered_events_total", "counter", "Events taken as dead letters.", func(q *QueueStats) uint64 { return q.DeadLettered }),
	queueCount("faulted_subscriptions_total", "counter", "Subscriptions given up.", func(q *QueueStats) uint64 { return q.Faulted }),
	queueCount("filtered_events_total", "counter", "Events that the filter passed over, once per subscription.", func(q *QueueStats) uint64 { return q.Filtered }),
	queueCount("filter_errors_total", "counter", "Failures of the filter.", func(q *QueueStats) uint64 { return q.FilterErrors }),
	queueCount("unattended_events_total", "counter", "Events passed over because nobody handled their subscription.", func(q *QueueStats) uint64 { return q.Unattended }),
	queueCount("missed_places_total", "counter", "Times that a subscription's place was no longer in the cache.", func(q *QueueStats) uint64 { return q.Missed }),
	queueCount("refused_containers_total", "counter", "Containers that the cache could never keep.", func(q *QueueStats) uint64 { return q.Refused }),
	queueCount("empty_containers_total", "counter", "Containers without events, or without a stream, which nobody can be given; the queue gets them back as delivered.", func(q *QueueStats) uint64 { return q.Empty }),
	queueMetric("severity", "gauge", "0 fine, 1 notice, 2 warning, 3 alarm.", func(q *QueueStats) []debugpage.Value {
		return debugpage.One(float64(q.Condition.Severity()))
	}),
	queueMetric("state", "gauge", "1 for the state that the queue is in; docs/observability.md lists the states.", func(q *QueueStats) []debugpage.Value {
		return []debugpage.Value{debugpage.With("state", q.Condition.String(), 1)}
	}),
}

// Metrics implements debugpage.View.
func (v *debugView) Metrics(b *strings.Builder) {
	begun := false
	providersMetric.Write(b, &begun, "", debugpage.One(float64(len(v.providers))))
	labels := make([]string, len(v.providers))
	for i := range v.providers {
		labels[i] = debugpage.Label("provider", v.providers[i].name)
		if n := v.providers[i].copy; n > 0 {
			labels[i] += "," + debugpage.Label("copy", strconv.Itoa(n))
		}
	}
	for i := range metrics {
		m := &metrics[i]
		begun := false
		for j := range v.providers {
			for k := range v.providers[j].queues {
				q := &v.providers[j].queues[k]
				m.Write(b, &begun, labels[j]+","+debugpage.Label("queue", q.Queue.String()), m.of(q))
			}
		}
	}
}
