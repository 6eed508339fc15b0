package queue

import (
	"time"

	"github.com/penstock/penstock/internal/debugpage"
)

// debugSchema is the number of the JSON's shape. Fields may be added under the
// same number; a field that goes or changes its meaning raises it.
const debugSchema = 1

// The JSON of the debug handler; see docs/observability.md. Times are in
// seconds, sizes in bytes, everything else is counted in events unless its name
// says otherwise. A list is never null.
type (
	jsonView struct {
		Schema   int         `json:"schema"`
		Time     time.Time   `json:"time"`
		Severity string      `json:"severity"`
		Verdict  string      `json:"verdict"`
		Topics   []jsonTopic `json:"topics"`
	}
	jsonTopic struct {
		Name             string          `json:"name"`
		Copy             int             `json:"copy,omitempty"`
		Storage          string          `json:"storage"`
		AgeSeconds       float64         `json:"age_seconds"`
		State            string          `json:"state"`
		Severity         string          `json:"severity"`
		Why              string          `json:"why"`
		WhenFull         string          `json:"when_full"`
		Capacity         int             `json:"capacity"`
		CapacityBytes    int64           `json:"capacity_bytes"`
		UsedBytes        int64           `json:"used_bytes"`
		CapacityDisk     int64           `json:"capacity_disk"`
		UsedDisk         int64           `json:"used_disk"`
		Produced         uint64          `json:"produced"`
		Refused          uint64          `json:"refused"`
		Retained         uint64          `json:"retained"`
		WaitingProducers int             `json:"waiting_producers"`
		KeyPanics        uint64          `json:"key_panics"`
		SizePanics       uint64          `json:"size_panics"`
		Skipped          uint64          `json:"skipped"`
		Expired          uint64          `json:"expired"`
		ForgottenGroups  uint64          `json:"forgotten_groups"`
		DiskFull         bool            `json:"disk_full"`
		DiskBytes        int64           `json:"disk_bytes"`
		InPerSecond      float64         `json:"in_per_second"`
		OutPerSecond     float64         `json:"out_per_second"`
		RateSeconds      float64         `json:"rate_seconds"`
		Partitions       []jsonPartition `json:"partitions"`
		Groups           []jsonGroup     `json:"groups"`
	}
	jsonPartition struct {
		Earliest  uint64 `json:"earliest"`
		End       uint64 `json:"end"`
		Retained  uint64 `json:"retained"`
		DiskBytes int64  `json:"disk_bytes"`
		WritePath string `json:"write_path,omitempty"`
		Fault     string `json:"fault,omitempty"`
	}
	jsonGroup struct {
		Name             string               `json:"name"`
		Open             bool                 `json:"open"`
		State            string               `json:"state"`
		Severity         string               `json:"severity"`
		Why              string               `json:"why"`
		Use              string               `json:"use"`
		Running          bool                 `json:"running"`
		Consumers        int                  `json:"consumers"`
		Resized          uint64               `json:"resized"`
		ResizingTo       int                  `json:"resizing_to"`
		Lag              uint64               `json:"lag"`
		LagSeconds       float64              `json:"lag_seconds"`
		Committed        uint64               `json:"committed"`
		InPerSecond      float64              `json:"in_per_second"`
		OutPerSecond     float64              `json:"out_per_second"`
		RateSeconds      float64              `json:"rate_seconds"`
		StillSeconds     float64              `json:"still_seconds"`
		DrainSeconds     *float64             `json:"drain_seconds"`
		HoldsBack        bool                 `json:"holds_back"`
		Paused           bool                 `json:"paused"`
		PausedPartitions []int                `json:"paused_partitions"`
		RateLimit        float64              `json:"rate_limit"`
		RateLimited      bool                 `json:"rate_limited"`
		InHand           int                  `json:"in_hand"`
		Waiting          int                  `json:"waiting"`
		Delivered        uint64               `json:"delivered"`
		Failed           uint64               `json:"failed"`
		DeadLettered     uint64               `json:"dead_lettered"`
		Dropped          uint64               `json:"dropped"`
		Discarded        uint64               `json:"discarded"`
		Redriven         uint64               `json:"redriven"`
		Undecodable      uint64               `json:"undecodable"`
		ReadErrors       uint64               `json:"read_errors"`
		Skipped          uint64               `json:"skipped"`
		LastSkip         *jsonSkip            `json:"last_skip,omitempty"`
		Batches          jsonBatches          `json:"batches"`
		HandlerSeconds   float64              `json:"handler_seconds"`
		Calls            []jsonCall           `json:"calls"`
		Blocked          []jsonBlocked        `json:"blocked"`
		Unreadable       []jsonUnreadable     `json:"unreadable"`
		Parked           jsonParked           `json:"parked"`
		LastError        *jsonError           `json:"last_error"`
		EndedBy          string               `json:"ended_by,omitempty"`
		Partitions       []jsonGroupPartition `json:"partitions"`
	}
	jsonBatches struct {
		Count  uint64 `json:"count"`
		Bytes  uint64 `json:"bytes"`
		Linger uint64 `json:"linger"`
		Retry  uint64 `json:"retry"`
	}
	jsonCall struct {
		Partition int     `json:"partition"`
		Offset    uint64  `json:"offset"`
		Events    int     `json:"events"`
		Seconds   float64 `json:"seconds"`
	}
	jsonBlocked struct {
		Partition  int     `json:"partition"`
		Offset     uint64  `json:"offset"`
		Attempts   int     `json:"attempts"`
		DueSeconds float64 `json:"due_seconds"`
		Reason     string  `json:"reason"`
	}
	jsonUnreadable struct {
		Partition   int     `json:"partition"`
		Offset      uint64  `json:"offset"`
		Seconds     float64 `json:"seconds"`
		Attempts    int     `json:"attempts"`
		Stopped     bool    `json:"stopped"`
		NextSeconds float64 `json:"next_seconds"`
		Reason      string  `json:"reason"`
	}
	jsonParked struct {
		Keys          int     `json:"keys"`
		Events        int     `json:"events"`
		Bytes         int64   `json:"bytes"`
		OldestSeconds float64 `json:"oldest_seconds"`
		Reason        string  `json:"reason,omitempty"`
	}
	jsonError struct {
		Kind      string    `json:"kind"`
		Partition int       `json:"partition"`
		Offset    uint64    `json:"offset"`
		Text      string    `json:"text"`
		DiskFull  bool      `json:"disk_full"`
		Time      time.Time `json:"time"`
	}
	jsonSkip struct {
		Partition int       `json:"partition"`
		From      uint64    `json:"from"`
		To        uint64    `json:"to"`
		Events    uint64    `json:"events"`
		Time      time.Time `json:"time"`
	}
	jsonGroupPartition struct {
		Committed  uint64  `json:"committed"`
		End        uint64  `json:"end"`
		Lag        uint64  `json:"lag"`
		LagSeconds float64 `json:"lag_seconds"`
	}
)

// JSON implements debugpage.View.
func (v *debugView) JSON() any {
	severity, verdict := v.Verdict()
	out := jsonView{Schema: debugSchema, Time: v.now.UTC(), Severity: severity.String(), Verdict: verdict, Topics: make([]jsonTopic, 0, len(v.topics))}
	for i := range v.topics {
		out.Topics = append(out.Topics, v.jsonTopic(&v.topics[i], v.copies[i]))
	}
	return out
}

func (v *debugView) jsonTopic(s *Stats, copies int) jsonTopic {
	t := jsonTopic{
		Name: s.Name, Copy: copies, Storage: s.Storage, AgeSeconds: s.Age.Seconds(),
		State: s.State.String(), Severity: s.State.Severity().String(), Why: s.Why, WhenFull: s.WhenFull.String(),
		Capacity: s.Capacity, CapacityBytes: int64(s.CapacityBytes), UsedBytes: int64(s.UsedBytes),
		CapacityDisk: int64(s.CapacityDisk), UsedDisk: int64(s.UsedDisk),
		Produced: s.Produced, Refused: s.Refused, Retained: s.Retained, WaitingProducers: s.WaitingProducers, KeyPanics: s.KeyPanics, SizePanics: s.SizePanics, DiskFull: s.DiskFull,
		Skipped: s.Skipped, Expired: s.Expired, ForgottenGroups: s.Forgotten,
		InPerSecond: debugpage.Finite(s.In), OutPerSecond: debugpage.Finite(s.Out), RateSeconds: s.Over.Seconds(),
		Partitions: make([]jsonPartition, len(s.Partitions)), Groups: make([]jsonGroup, 0, len(s.Groups)+len(s.Stored)),
	}
	for i := range s.Partitions {
		p := &s.Partitions[i]
		t.Partitions[i] = jsonPartition{Earliest: uint64(p.Earliest), End: uint64(p.End), Retained: p.Retained, DiskBytes: int64(p.Bytes), WritePath: p.WritePath}
		if p.Fault != nil {
			t.Partitions[i].Fault = debugpage.ErrorText(p.Fault)
		}
		t.DiskBytes += int64(p.Bytes)
	}
	for _, g := range s.bySeverity() {
		t.Groups = append(t.Groups, v.jsonGroup(g))
	}
	return t
}

func (v *debugView) jsonGroup(s *GroupStats) jsonGroup {
	g := jsonGroup{
		Name: s.Name, Open: s.Consumers > 0, State: s.State.String(), Severity: s.Severity().String(), Why: s.Why, Use: s.Use,
		Running: s.Run.Running, Consumers: s.Consumers, Lag: s.Lag, LagSeconds: s.LagTime.Seconds(), Committed: s.Committed,
		InPerSecond: debugpage.Finite(s.In), OutPerSecond: debugpage.Finite(s.Out), RateSeconds: s.Over.Seconds(), StillSeconds: s.Still.Seconds(),
		HoldsBack: s.HoldsBack, Paused: s.Paused, PausedPartitions: append([]int{}, s.PausedPartitions...),
		RateLimit: debugpage.Finite(s.Rate), RateLimited: s.RateLimited, InHand: s.Run.InHand, Waiting: s.Run.Waiting,
		Delivered: s.Run.Delivered, Failed: s.Run.Failed, DeadLettered: s.Run.DeadLettered, Dropped: s.Run.Dropped,
		Discarded: s.Discarded, Redriven: s.Redriven, Resized: s.Resized, ResizingTo: s.ResizingTo,
		Undecodable: s.Undecodable, ReadErrors: s.ReadErrors, Skipped: s.Skipped,
		Batches:        jsonBatches{s.Run.FlushedByCount, s.Run.FlushedByBytes, s.Run.FlushedByLinger, s.Run.Retries},
		HandlerSeconds: s.Run.HandlerTime.Seconds(), EndedBy: s.Run.EndedBy,
		Parked: jsonParked{Keys: s.Parked.Keys, Events: s.Parked.Events, Bytes: int64(s.Parked.Bytes), Reason: s.Parked.Reason},
		Calls:  make([]jsonCall, 0, len(s.Run.Calls)), Blocked: make([]jsonBlocked, 0, len(s.Run.Blocked)),
		Unreadable: make([]jsonUnreadable, 0, len(s.Run.Unreadable)),
		Partitions: make([]jsonGroupPartition, len(s.Partitions)),
	}
	if s.Drain != NeverDrains {
		drain := s.Drain.Seconds()
		g.DrainSeconds = &drain
	}
	if !s.Parked.Oldest.IsZero() {
		g.Parked.OldestSeconds = max(0, v.now.Sub(s.Parked.Oldest).Seconds())
	}
	for _, c := range s.Run.Calls {
		g.Calls = append(g.Calls, jsonCall{c.Partition, uint64(c.Offset), c.Events, max(0, v.now.Sub(c.Since).Seconds())})
	}
	for _, b := range s.Run.Blocked {
		due := 0.0
		if !b.Due.IsZero() {
			due = max(0, b.Due.Sub(v.now).Seconds())
		}
		g.Blocked = append(g.Blocked, jsonBlocked{b.Partition, uint64(b.Offset), b.Attempts, due, b.Reason})
	}
	for _, u := range s.Run.Unreadable {
		out := jsonUnreadable{Partition: u.Partition, Offset: uint64(u.Offset), Seconds: max(0, v.now.Sub(u.Since).Seconds()), Attempts: u.Attempts, Stopped: u.Next.IsZero(), Reason: u.Reason}
		if !out.Stopped {
			out.NextSeconds = max(0, u.Next.Sub(v.now).Seconds())
		}
		g.Unreadable = append(g.Unreadable, out)
	}
	if e := s.LastError; e != nil {
		g.LastError = &jsonError{e.Kind, e.Partition, uint64(e.Offset), e.Text, e.DiskFull, e.Time.UTC()}
	}
	if k := s.LastSkip; k != nil {
		g.LastSkip = &jsonSkip{k.Partition, uint64(k.From), uint64(k.To), k.Events, k.Time.UTC()}
	}
	for i, p := range s.Partitions {
		g.Partitions[i] = jsonGroupPartition{uint64(p.Committed), uint64(p.End), p.Lag, p.LagTime.Seconds()}
	}
	return g
}
