// Package wire holds what the two processes of a demo say to each other: the
// driver, which produces and judges and is never killed, and the node, which
// is.
//
// The driver starts the node and writes one [NodeConfig] as a line of JSON to
// its standard input. The node answers with one [Ready] line on its standard
// output. The input then stays open: the line [Stop] asks for a graceful stop,
// and the end of the input means that the driver is gone. All else goes over
// HTTP on loopback: events to the node's ingest edge, a [Report] from each
// handler to the driver before it returns, a webhook call from the node, [Stats]
// to whoever asks, and the events of the streams to the consumer that the driver
// has of its own, in the protocol of package stream/remote.
//
// The package holds data and pure functions only; all of it is safe for
// concurrent use.
package wire

import (
	"strconv"
	"strings"
	"time"
)

// Paths of the HTTP calls between the two.
const (
	PathReport  = "/v1/report"  // driver, POST a Report
	PathWebhook = "/v1/webhook" // driver, POST a batch of events as NDJSON; answers WebhookAnswer
	PathStats   = "/v1/stats"   // node, GET Stats
	PathTopics  = "/v1/topics/" // node, POST events
	PathStreams = "/v1/streams" // node, at Ready.Streams: the two POSTs of a connection of stream/remote
)

// Stop is the line on the node's standard input that asks it to stop.
const Stop = "stop"

// Topic is the topic that the demo produces into, DeadTopic the one that holds
// what a group gave up.
const (
	Topic     = "orders"
	DeadTopic = "orders.dead"
)

// Groups of the demo. Feed and Remote are subscriptions of the same streams,
// behind a forwarding group: the handler of Feed is in the node, that of Remote in
// the driver, across a connection.
const (
	Billing  = "billing"
	Emails   = "emails"
	Webhook  = "webhook"
	Feed     = "feed"
	Remote   = "remote"
	Pipeline = "pipeline"
)

// Groups lists the groups in the order in which they are shown.
var Groups = []string{Billing, Emails, Webhook, Feed, Remote, Pipeline}

// NodeConfig is what the driver tells a node at its start.
type NodeConfig struct {
	Run         string        `json:"run"`         // names this run; part of every event id
	Incarnation int           `json:"incarnation"` // 1 for the first start, one more after each crash
	Dir         string        `json:"dir"`         // data directory
	Log         string        `json:"log"`         // file that the node's log is appended to; "" = standard error gets all of it
	Durability  string        `json:"durability"`  // written or synced
	Partitions  int           `json:"partitions"`
	Capacity    int           `json:"capacity"`   // events in the topic before it answers 429
	SlowRate    float64       `json:"slow_rate"`  // events per second that the slow group takes
	DriverURL   string        `json:"driver_url"` // where reports and webhook calls go
	Secret      string        `json:"secret"`     // bearer token of every call to the driver
	Drain       time.Duration `json:"drain"`      // nanoseconds for a graceful stop
}

// Ready is the one line that a node prints when it serves.
type Ready struct {
	URL     string `json:"url"`     // of the edge, for example http://127.0.0.1:40121
	Streams string `json:"streams"` // of the server for consumers across a connection
}

// Report says which events a handler took. The driver answers 204 when it has
// noted them; only then may the handler return.
type Report struct {
	Group       string   `json:"group"`
	Incarnation int      `json:"incarnation"`
	Dead        bool     `json:"dead,omitempty"`    // the events came out of the dead-letter topic
	IDs         []uint32 `json:"ids"`               // numbers of events of this run
	Foreign     int      `json:"foreign,omitempty"` // events that an earlier run or another producer sent
}

// WebhookAnswer names the events of a call that the receiver refuses for good.
// The others were taken.
type WebhookAnswer struct {
	Refused []string `json:"refused,omitempty"`
}

// Stats is the state of a node at one moment.
type Stats struct {
	Incarnation int          `json:"incarnation"`
	Level       string       `json:"level"`
	Groups      []GroupStats `json:"groups"`
	DiskBytes   int64        `json:"disk_bytes"`
	MemoryBytes uint64       `json:"memory_bytes"` // held by the Go runtime
}

// GroupStats is the state of one group.
type GroupStats struct {
	Name      string `json:"name"`
	Lag       uint64 `json:"lag"`       // events not committed yet
	Busy      int    `json:"busy"`      // handlers at work
	Consumers int    `json:"consumers"` // handlers that can be at work
	Failing   string `json:"failing"`   // why the latest batch failed; "" when it did not
}

// FormatID returns the id of event n of a run.
func FormatID(run string, n uint32) string {
	return run + "-" + strconv.FormatUint(uint64(n), 10)
}

// ParseID returns the number of an event; ok is false when the id is not one
// of the run.
func ParseID(run, id string) (n uint32, ok bool) {
	digits, ok := strings.CutPrefix(id, run)
	if !ok || len(digits) < 2 || digits[0] != '-' {
		return 0, false
	}
	v, err := strconv.ParseUint(digits[1:], 10, 32)
	if err != nil || FormatID(run, uint32(v)) != id {
		return 0, false
	}
	return uint32(v), true
}
