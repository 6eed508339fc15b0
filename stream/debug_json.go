package stream

import (
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/debugpage"
)

// debugSchema is the number of the JSON's shape. Fields may be added under the
// same number; a field that goes or changes its meaning raises it.
const debugSchema = 1

// The JSON of the debug handler; see docs/observability.md. Times are in
// seconds, everything else is counted in events unless its name says otherwise.
// A list is never null; a place that there is none of is "".
type (
	jsonView struct {
		Schema    int            `json:"schema"`
		Time      time.Time      `json:"time"`
		Severity  string         `json:"severity"`
		Verdict   string         `json:"verdict"`
		Providers []jsonProvider `json:"providers"`
	}
	jsonProvider struct {
		Name   string      `json:"name"`
		Copy   int         `json:"copy,omitempty"`
		Agents string      `json:"agents"`
		Queues []jsonQueue `json:"queues"`
		Busy   []jsonBusy  `json:"busy"`
	}
	jsonQueue struct {
		Name               string  `json:"name"`
		Running            bool    `json:"running"`
		State              string  `json:"state"`
		Severity           string  `json:"severity"`
		Why                string  `json:"why"`
		Lag                uint64  `json:"lag"`
		LagSeconds         float64 `json:"lag_seconds"`
		Unread             int64   `json:"unread_containers"`
		Newest             string  `json:"newest"`
		Committed          string  `json:"committed"`
		ReadPerSecond      float64 `json:"read_per_second"`
		DeliveredPerSecond float64 `json:"delivered_per_second"`
		RateSeconds        float64 `json:"rate_seconds"`
		Cached             int     `json:"cached_containers"`
		UnderPressure      bool    `json:"under_pressure"`
		Streams            int     `json:"streams"`
		BusyStreams        int     `json:"busy_streams"`
		Subscriptions      int     `json:"subscriptions"`
		ReadContainers     uint64  `json:"read_containers"`
		Read               uint64  `json:"read"`
		ReadFailures       uint64  `json:"read_failures"`
		Delivered          uint64  `json:"delivered"`
		Failed             uint64  `json:"failed"`
		Skipped            uint64  `json:"skipped"`
		DeadLettered       uint64  `json:"dead_lettered"`
		Faulted            uint64  `json:"faulted_subscriptions"`
		Filtered           uint64  `json:"filtered"`
		FilterErrors       uint64  `json:"filter_errors"`
		Unattended         uint64  `json:"unattended"`
		Missed             uint64  `json:"missed_places"`
		Refused            uint64  `json:"refused_containers"`
		Empty              uint64  `json:"empty_containers"`
	}
	jsonBusy struct {
		Namespace    string  `json:"namespace"`
		Key          string  `json:"key"`
		Queue        string  `json:"queue"`
		Subscription string  `json:"subscription"`
		Implicit     bool    `json:"implicit"`
		State        string  `json:"state"`
		Severity     string  `json:"severity"`
		Why          string  `json:"why"`
		Lag          uint64  `json:"lag"`
		LagSeconds   float64 `json:"lag_seconds"`
		Newest       string  `json:"newest"`
		Delivered    string  `json:"delivered"`
		Committed    string  `json:"committed"`
		InFlight     int     `json:"in_flight"`
		Attempts     int     `json:"attempts"`
		Settled      uint64  `json:"settled"`
		IdleSeconds  float64 `json:"idle_seconds"`
	}
)

// JSON implements debugpage.View.
func (v *debugView) JSON() any {
	severity, verdict := v.Verdict()
	out := jsonView{Schema: debugSchema, Time: v.now.UTC(), Severity: severity.String(), Verdict: verdict, Providers: []jsonProvider{}}
	for i := range v.providers {
		p := &v.providers[i]
		j := jsonProvider{Name: p.name, Copy: p.copy, Agents: p.state.String(), Queues: []jsonQueue{}, Busy: []jsonBusy{}}
		for k := range p.queues {
			j.Queues = append(j.Queues, p.queues[k].json())
		}
		for k := range p.busy {
			j.Busy = append(j.Busy, p.busy[k].json())
		}
		out.Providers = append(out.Providers, j)
	}
	return out
}

func (q *QueueStats) json() jsonQueue {
	return jsonQueue{
		Name: q.Queue.String(), Running: q.Running, State: q.Condition.String(), Severity: q.Condition.Severity().String(),
		Why: debugpage.Bounded(q.Reason), Lag: q.Lag, LagSeconds: q.LagTime.Seconds(), Unread: q.Unread,
		Newest: text(q.Newest), Committed: text(q.Checkpoint),
		ReadPerSecond: debugpage.Finite(q.ReadPerSecond), DeliveredPerSecond: debugpage.Finite(q.DeliveredPerSecond), RateSeconds: q.Over.Seconds(),
		Cached: q.Cached, UnderPressure: q.UnderPressure, Streams: q.Streams, BusyStreams: q.Busy, Subscriptions: q.Subscriptions,
		ReadContainers: q.Read, Read: q.ReadEvents, ReadFailures: q.ReadFailures, Delivered: q.Delivered, Failed: q.Failed,
		Skipped: q.Skipped, DeadLettered: q.DeadLettered, Faulted: q.Faulted, Filtered: q.Filtered, FilterErrors: q.FilterErrors,
		Unattended: q.Unattended, Missed: q.Missed, Refused: q.Refused, Empty: q.Empty,
	}
}

func (b *busyView) json() jsonBusy {
	lag, oldest := b.lag()
	out := jsonBusy{
		Namespace: b.stream.Stream.Namespace, Key: b.stream.Stream.Key, Queue: b.stream.Queue.String(),
		State: b.condition().String(), Severity: b.condition().Severity().String(), Why: debugpage.Bounded(b.why()),
		Lag: lag, LagSeconds: oldest.Seconds(), Newest: text(b.stream.Newest), IdleSeconds: b.stream.Idle.Seconds(),
	}
	if s := b.sub; s != nil {
		out.Subscription, out.Implicit = s.Name, s.Implicit
		out.Delivered, out.Committed = text(s.Offered), text(s.Processed)
		out.InFlight, out.Attempts, out.Settled = s.InFlight, s.Attempts, s.Settled
	}
	return out
}

// text writes a place; "" when there is none.
func text(t penstock.Token) string {
	if t == (penstock.Token{}) {
		return ""
	}
	return t.String()
}

// place is text for people.
func place(t penstock.Token) string {
	if s := text(t); s != "" {
		return s
	}
	return "–"
}

// age writes how old something is; nothing has no age.
func age(d time.Duration) string {
	if d <= 0 {
		return "–"
	}
	return debugpage.Span(d)
}

// rate writes a rate for people.
func (q *QueueStats) rate(value float64) string {
	if q.Over == 0 {
		return "?"
	}
	return strings.TrimSuffix(debugpage.Rate(value), "/s")
}
