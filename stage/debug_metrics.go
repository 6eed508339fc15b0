package stage

import (
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/debugpage"
)

// metric is a family of the Prometheus text format: one line per stage or per
// subscription of the graph. Labels are names of stages, a state, and the number
// of a partition.
type metric struct {
	debugpage.Metric
	stage func(v *debugView, s *StageStatus) []debugpage.Value
	edge  func(e *EdgeStatus) []debugpage.Value
}

func stageMetric(name, kind, help string, f func(*debugView, *StageStatus) []debugpage.Value) metric {
	return metric{Metric: debugpage.Metric{Name: "penstock_stage_" + name, Kind: kind, Help: help}, stage: f}
}

func stageCount(name, kind, help string, f func(*StageStatus) int64) metric {
	return stageMetric(name, kind, help, func(_ *debugView, s *StageStatus) []debugpage.Value { return debugpage.One(float64(f(s))) })
}

func edgeCount(name, kind, help string, f func(*EdgeStatus) int64) metric {
	return metric{
		Metric: debugpage.Metric{Name: "penstock_stage_edge_" + name, Kind: kind, Help: help},
		edge:   func(e *EdgeStatus) []debugpage.Value { return debugpage.One(float64(max(0, f(e)))) },
	}
}

// stagesMetric is the one family that is not about a stage.
var stagesMetric = debugpage.Metric{Name: "penstock_stage_stages", Kind: "gauge", Help: "Stages of the graph that have not ended."}

// metrics are all that the handler tells, in the order of the text.
var metrics = []metric{
	stageCount("in_events_total", "counter", "Events that came in: given to callbacks; of a source emitted and pushed.", (*StageStatus).entered),
	stageCount("out_events_total", "counter", "Events that went out; of a sink that were processed.", (*StageStatus).left),
	stageCount("sent_events_total", "counter", "Events sent to consumers; one to several counts for each.", func(s *StageStatus) int64 { return s.Sent }),
	stageCount("buffered_events", "gauge", "Events held that nobody has asked for.", func(s *StageStatus) int64 { return s.Buffered }),
	stageCount("discarded_events_total", "counter", "Events dropped by the overflow policy, or held when the stage ended.", func(s *StageStatus) int64 { return s.Discarded }),
	stageCount("filtered_events_total", "counter", "Events that an operator let go, as it is there to do.", func(s *StageStatus) int64 { return s.Filtered }),
	stageCount("dropped_events_total", "counter", "Events that an operator dropped by its policy, or had in hands when the stage ended.", func(s *StageStatus) int64 { return s.Dropped }),
	stageCount("held_events", "gauge", "Events that an operator has in hands.", func(s *StageStatus) int64 { return s.Held }),
	stageCount("failed_events_total", "counter", "Events of calls that failed.", func(s *StageStatus) int64 { return s.Failed }),
	stageCount("undelivered_events_total", "counter", "Events sent to a consumer that left, or was interrupted, before it had processed them.", func(s *StageStatus) int64 { return s.Undelivered }),
	stageCount("restarts_total", "counter", "Times the stage began anew after a failure, its own or that of a stage before it.", func(s *StageStatus) int64 { return s.Restarts }),
	stageCount("resumed_total", "counter", "Failures after which the stage went on.", func(s *StageStatus) int64 { return s.Resumed }),
	stageMetric("restart_seconds", "gauge", "In how long the stage is restarted; 0 when it does not wait for that.", func(v *debugView, s *StageStatus) []debugpage.Value {
		return debugpage.One(v.restartIn(s))
	}),
	stageCount("messages_total", "counter", "Messages that the stage's handler was given.", func(s *StageStatus) int64 { return s.Messages }),
	stageCount("messages_waiting", "gauge", "Messages in the stage's mailbox.", func(s *StageStatus) int64 { return s.MessagesWaiting }),
	stageCount("messages_lost_total", "counter", "Messages in the mailbox when the stage failed, was aborted, or could wait no longer.", func(s *StageStatus) int64 { return s.MessagesLost }),
	stageCount("slots", "gauge", "Slots for children, or workers of a pool, over all subscriptions; held_events of them are in use.", func(s *StageStatus) int64 { return int64(s.Slots) }),
	stageCount("child_restarts_total", "counter", "How often a child was started again.", func(s *StageStatus) int64 { return s.ChildRestarts }),
	stageCount("abandoned_children_total", "counter", "Children that did not stop in time.", func(s *StageStatus) int64 { return s.Abandoned }),
	stageCount("filtered_out_events_total", "counter", "Events that the dispatcher had no partition for.", func(s *StageStatus) int64 { return s.FilteredOut }),
	stageCount("cut_off_subscriptions_total", "counter", "Subscriptions that a broadcast has cut off.", func(s *StageStatus) int64 { return s.CutOff }),
	stageCount("consumers", "gauge", "Subscriptions that the stage serves.", func(s *StageStatus) int64 { return int64(s.Consumers) }),
	stageMetric("user_code_seconds_total", "counter", "Time in user code that has returned, short calls by sampling.", func(_ *debugView, s *StageStatus) []debugpage.Value {
		return debugpage.One(s.InUserCode.Seconds())
	}),
	stageMetric("callback_seconds", "gauge", "How long the user code that runs now has been running.", func(v *debugView, s *StageStatus) []debugpage.Value {
		return debugpage.One(v.callback(s))
	}),
	stageMetric("severity", "gauge", "0 fine, 1 notice, 2 warning, 3 alarm.", func(_ *debugView, s *StageStatus) []debugpage.Value {
		return debugpage.One(float64(s.State.Severity()))
	}),
	stageMetric("state", "gauge", "1 for the state that the stage is in; docs/observability.md lists the states.", func(_ *debugView, s *StageStatus) []debugpage.Value {
		return []debugpage.Value{debugpage.With("state", s.State.String(), 1)}
	}),
	edgeCount("asked_events_total", "counter", "Events asked for.", func(e *EdgeStatus) int64 { return e.Asked }),
	edgeCount("sent_events_total", "counter", "Events sent.", func(e *EdgeStatus) int64 { return e.Sent }),
	edgeCount("processed_events_total", "counter", "Events processed.", func(e *EdgeStatus) int64 { return e.Processed }),
	edgeCount("open_events", "gauge", "Events asked for and not sent yet.", func(e *EdgeStatus) int64 { return e.Open }),
	edgeCount("in_flight_events", "gauge", "Events sent and not processed yet.", func(e *EdgeStatus) int64 { return e.InFlight }),
	edgeCount("constraint", "gauge", "1 for the subscription that holds the graph up.", func(e *EdgeStatus) int64 {
		if e.Constraint {
			return 1
		}
		return 0
	}),
}

// Metrics implements debugpage.View.
func (v *debugView) Metrics(b *strings.Builder) {
	live := 0
	for i := range v.Stages {
		if !v.Stages[i].Ended {
			live++
		}
	}
	begun := false
	stagesMetric.Write(b, &begun, "", debugpage.One(float64(live)))
	for i := range metrics {
		m := &metrics[i]
		begun := false
		if m.stage != nil {
			for j := range v.Stages {
				s := &v.Stages[j]
				m.Write(b, &begun, debugpage.Label("stage", s.Name), m.stage(v, s))
			}
			continue
		}
		for j := range v.Edges {
			e := &v.Edges[j]
			labels := debugpage.Label("from", e.From) + "," + debugpage.Label("to", e.To)
			if e.Partition >= 0 {
				labels += "," + debugpage.Label("partition", strconv.Itoa(e.Partition))
			}
			m.Write(b, &begun, labels, m.edge(e))
		}
	}
}
