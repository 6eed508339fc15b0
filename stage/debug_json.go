package stage

import (
	"math"
	"time"

	"github.com/penstock/penstock/internal/debugpage"
)

// debugSchema is the number of the JSON's shape. Fields may be added under the
// same number; a field that goes or changes its meaning raises it.
const debugSchema = 1

// The JSON of the debug handler; see docs/observability.md. Times are in
// seconds, everything else is counted in events unless its name says otherwise.
// A list is never null.
type (
	jsonView struct {
		Schema     int         `json:"schema"`
		Time       time.Time   `json:"time"`
		Severity   string      `json:"severity"`
		Verdict    string      `json:"verdict"`
		State      string      `json:"state"`
		Constraint string      `json:"constraint"`
		Stages     []jsonStage `json:"stages"`
		Edges      []jsonEdge  `json:"edges"`
	}
	jsonStage struct {
		Name            string  `json:"name"`
		Kind            string  `json:"kind"`
		State           string  `json:"state"`
		Severity        string  `json:"severity"`
		Why             string  `json:"why"`
		In              int64   `json:"in"`
		Out             int64   `json:"out"`
		Sent            int64   `json:"sent"`
		InPerSecond     float64 `json:"in_per_second"`
		OutPerSecond    float64 `json:"out_per_second"`
		RateSeconds     float64 `json:"rate_seconds"`
		Buffered        int64   `json:"buffered"`
		Discarded       int64   `json:"discarded"`
		Filtered        int64   `json:"filtered"`
		Dropped         int64   `json:"dropped"`
		Held            int64   `json:"held"`
		Failed          int64   `json:"failed"`
		Undelivered     int64   `json:"undelivered"`
		Messages        int64   `json:"messages"`
		MessagesWaiting int64   `json:"messages_waiting"`
		MessagesLost    int64   `json:"messages_lost"`
		Slots           int     `json:"slots"`
		ChildRestarts   int64   `json:"child_restarts"`
		FilteredOut     int64   `json:"filtered_out"`
		CutOff          int64   `json:"cut_off"`
		Abandoned       int64   `json:"abandoned"`
		Restarts        int64   `json:"restarts"`
		Resumed         int64   `json:"resumed"`
		RestartSeconds  float64 `json:"restart_in_seconds"`
		Failure         string  `json:"last_failure,omitempty"`
		Consumers       int     `json:"consumers"`
		CallbackSeconds float64 `json:"callback_seconds"`
		UserCodeSeconds float64 `json:"user_code_seconds"`
		Goroutine       int     `json:"goroutine"`
		Ended           bool    `json:"ended"`
		Error           string  `json:"error,omitempty"`
	}
	jsonEdge struct {
		From       string `json:"from"`
		To         string `json:"to"`
		Partition  int    `json:"partition"`
		Max        int    `json:"max"`
		Min        int    `json:"min"`
		Mode       string `json:"mode"`
		Manual     bool   `json:"manual"`
		Cancelled  bool   `json:"cancelled"`
		Asked      int64  `json:"asked"`
		Sent       int64  `json:"sent"`
		Processed  int64  `json:"processed"`
		Open       int64  `json:"open"`
		InFlight   int64  `json:"in_flight"`
		Constraint bool   `json:"constraint"`
	}
)

// JSON implements debugpage.View.
func (v *debugView) JSON() any {
	severity, verdict := v.Verdict()
	out := jsonView{
		Schema: debugSchema, Time: v.Status.Time.UTC(), Severity: severity.String(), Verdict: verdict,
		State: v.State.String(), Constraint: v.Constraint, Stages: []jsonStage{}, Edges: []jsonEdge{},
	}
	for i := range v.Stages {
		s := &v.Stages[i]
		out.Stages = append(out.Stages, jsonStage{
			Name: s.Name, Kind: s.Kind.String(), State: s.State.String(), Severity: s.State.Severity().String(), Why: s.Why,
			In: s.entered(), Out: s.left(), Sent: s.Sent,
			InPerSecond: debugpage.Finite(s.InPerSecond), OutPerSecond: debugpage.Finite(s.OutPerSecond), RateSeconds: s.Over.Seconds(),
			Buffered: s.Buffered, Discarded: s.Discarded, Filtered: s.Filtered, Dropped: s.Dropped, Held: s.Held,
			Failed: s.Failed, Undelivered: s.Undelivered, Messages: s.Messages, MessagesWaiting: s.MessagesWaiting, MessagesLost: s.MessagesLost,
			Consumers: s.Consumers,
			Slots:     s.Slots, ChildRestarts: s.ChildRestarts, Abandoned: s.Abandoned,
			Restarts: s.Restarts, Resumed: s.Resumed, RestartSeconds: v.restartIn(s), Failure: s.Failure,
			FilteredOut: s.FilteredOut, CutOff: s.CutOff,
			CallbackSeconds: v.callback(s), UserCodeSeconds: s.InUserCode.Seconds(), Goroutine: s.Executor,
			Ended: s.Ended, Error: s.Error,
		})
	}
	for i := range v.Edges {
		e := &v.Edges[i]
		out.Edges = append(out.Edges, jsonEdge{
			From: e.From, To: e.To, Partition: e.Partition, Max: e.Max, Min: e.Min, Mode: e.Mode.String(), Manual: e.Manual,
			Cancelled: e.Cancelled, Asked: e.Asked, Sent: e.Sent, Processed: e.Processed, Open: e.Open, InFlight: e.InFlight, Constraint: e.Constraint,
		})
	}
	return out
}

// restartIn returns in how many seconds the stage is restarted; 0 when it does
// not wait for that.
func (v *debugView) restartIn(s *StageStatus) float64 {
	if s.RestartAt.IsZero() {
		return 0
	}
	return math.Max(0, s.RestartAt.Sub(v.Status.Time).Seconds())
}

// callback returns for how long the user code that runs now has been running,
// in seconds.
func (v *debugView) callback(s *StageStatus) float64 {
	if s.Since.IsZero() {
		return 0
	}
	return math.Max(0, v.Status.Time.Sub(s.Since).Seconds())
}
