package demo

import (
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/penstock/penstock"
)

// Defaults and bounds of a run.
const (
	DefaultRate  = 5000.0
	DefaultDrain = 40 * time.Second
	MaxRate      = 1_000_000.0

	partitions    = 8
	lanes         = 8
	customers     = 500              // different keys of generated events
	slowShare     = 0.9              // of the rate: what the slow group takes
	capacitySecs  = 15               // of the rate: what the topic holds before it answers 429
	minCapacity   = 20_000           // at least, so that a request always fits
	startTimeout  = 30 * time.Second // for a node to become ready, recovery included
	stopTimeout   = 10 * time.Second // for a node to end after it was asked to
	nodeDrain     = 2 * time.Second  // for its handlers: the driver drains before, and a node without a driver drains for nothing
	failOneIn     = 50               // webhook calls
	refuseOneIn   = 5000             // ids that the webhook never takes
	maxLine       = 1<<20 - 4<<10    // of an input line, so that it fits the edge with its id
	heldBytes     = 32 << 20         // of events made and not yet acknowledged
	lingerRequest = 10 * time.Millisecond
	maxRequest    = 500 // events in one request
	maxBody       = 1 << 20
)

// Config says what a run does. The zero value of each number means its default.
type Config struct {
	For        time.Duration // how long to produce; 0 = until the input or ctx ends
	Rate       float64       // events per second
	Input      io.Reader     // NDJSON to send instead of generated events; nil = generate
	Lines      int           // lines in Input when known, for the moments of the crashes; 0 = unknown
	Key        string        // field of the input lines that is their key; "" = none
	Dir        string        // data directory; "" = a temporary one, removed at the end
	Durability penstock.Durability
	Crash      int // how many times to kill the node
	Seed       uint64
	Drain      time.Duration // how long to wait for the groups at the end

	// Now ends the run at once when it is closed: the node is killed and nothing
	// is drained. nil = never.
	Now <-chan struct{}

	// Command returns a new, unstarted command that runs a node.
	Command func() *exec.Cmd
	Out     Output
}

// Output is where a run talks to people. All of it may be zero: then it is silent.
type Output struct {
	Text     io.Writer  // header and summary; nil = none
	Status   io.Writer  // status lines, and what the node logs; nil = none
	Terminal bool       // Status is a terminal: one line, rewritten
	Width    func() int // of the terminal, in columns; nil = 80
}

func (c *Config) validate() error {
	bad := func(field, format string, args ...any) error {
		return &penstock.FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	if c.Rate == 0 {
		c.Rate = DefaultRate
	}
	if c.Drain == 0 {
		c.Drain = DefaultDrain
	}
	if c.Durability == penstock.DurabilityDefault {
		c.Durability = penstock.Synced
	}
	switch {
	case c.For < 0:
		return bad("--for", "%v is negative", c.For)
	case !(c.Rate >= 1 && c.Rate <= MaxRate): // also refuses NaN
		return bad("--rate", "%v is not between 1 and %.0f events per second", c.Rate, MaxRate)
	case c.Crash < 0:
		return bad("--crash", "%d is negative", c.Crash)
	case c.Drain < 0:
		return bad("--drain", "%v is negative", c.Drain)
	case c.Durability == penstock.Memory:
		return bad("--durability", "memory does not survive the crashes that the demo is about; use written or synced")
	case c.Key != "" && c.Input == nil:
		return bad("--key", "names a field of input lines and needs --input")
	case c.Command == nil:
		return bad("Command", "is required")
	}
	return nil
}

// capacity returns how many events the topic holds before it answers 429.
func (c *Config) capacity() int { return max(minCapacity, int(c.Rate*capacitySecs)) }
