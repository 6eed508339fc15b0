package remote

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// Version is the version of the protocol, which both ends tell first.
const Version = 1

// kind is the type of a frame.
type kind string

const (
	kindHello kind = "hello" // both, first: who it is and what it can do
	kindBye   kind = "bye"   // both, last: why the connection ends

	kindDemand   kind = "demand"   // of a subscriber: how much it accepts, and until when
	kindPosition kind = "position" // of a subscriber: the answer to a handshake
	kindAnswer   kind = "answer"   // of a subscriber: the answer to a delivery or a notice
	kindError    kind = "error"    // of a subscriber: a call that failed
	kindLeave    kind = "leave"    // of a subscriber: it takes no more

	kindAlive     kind = "alive"     // of an owner, for each demand
	kindHandshake kind = "handshake" // of an owner: a call
	kindDeliver   kind = "deliver"   // of an owner: a call
	kindNotice    kind = "notice"    // of an owner: a call
	kindCancel    kind = "cancel"    // of an owner: it does not wait for a call any more
	kindLeft      kind = "left"      // of an owner: nothing follows that counts on demand
)

// frame is one line. Which fields it has follows from its kind; see check.
type frame struct {
	Kind kind `json:"type"`

	Version int    `json:"version,omitempty"`  // hello
	ID      text   `json:"id,omitempty"`       // hello: of this end, new with each Owner and Subscriber
	History text   `json:"history,omitempty"`  // hello of an owner
	Demand  int    `json:"demand,omitempty"`   // hello of a subscriber: the most events that it ever accepts at a time
	MaxLine int    `json:"max_line,omitempty"` // hello: the longest line that this end accepts, in bytes
	Limit   uint64 `json:"limit,omitempty"`    // demand: events accepted over the connection so far
	TTL     int64  `json:"ttl_ms,omitempty"`   // demand: what is left of it is void after so long
	Final   bool   `json:"final,omitempty"`    // bye: connecting again would not help

	Call         uint64        `json:"call,omitempty"` // number of a call, and of its answer
	Subscription *subscription `json:"subscription,omitempty"`
	Queue        *queueID      `json:"queue,omitempty"`
	Request      uint64        `json:"request,omitempty"`
	Placed       uint64        `json:"placed,omitempty"`     // handshake: the request whose answer was taken last
	Containers   []container   `json:"containers,omitempty"` // deliver
	Notice       *notice       `json:"notice,omitempty"`

	Position *position `json:"position,omitempty"` // position; of an answer: a rewind
	Failed   []failure `json:"failed,omitempty"`   // answer
	Error    text      `json:"error,omitempty"`    // error, bye
	Gone     bool      `json:"gone,omitempty"`     // error: stream.ErrConsumerGone
	Away     bool      `json:"away,omitempty"`     // error: nothing was handed over
}

type subscription struct {
	Provider    text   `json:"provider"`
	Namespace   text   `json:"namespace"`
	Key         text   `json:"key,omitempty"`
	Name        text   `json:"name"`
	Filter      text   `json:"filter,omitempty"`
	Implicit    bool   `json:"implicit,omitempty"`
	Incarnation uint64 `json:"incarnation,omitempty"`
	Attached    uint64 `json:"attached,omitempty"`
}

type queueID struct {
	Name   text   `json:"name"`
	Number int    `json:"number"`
	Ring   uint32 `json:"ring,omitempty"`
}

type position struct {
	Kind  string         `json:"kind"`
	Token penstock.Token `json:"token,omitzero"`
	Time  time.Time      `json:"time,omitzero"`
}

type failure struct {
	Index int  `json:"index"`
	Error text `json:"error,omitempty"`
}

type notice struct {
	Kind   uint8          `json:"kind"`
	Token  penstock.Token `json:"token,omitzero"`
	Events int            `json:"events,omitempty"`
	Error  text           `json:"error,omitempty"`
}

// container holds the events of a container that are delivered, which are not
// all of them when others are settled.
type container struct {
	Namespace text           `json:"namespace"`
	Key       text           `json:"key,omitempty"`
	Token     penstock.Token `json:"token"`
	Time      time.Time      `json:"time,omitzero"`
	Header    header         `json:"header,omitempty"`
	Attempts  int            `json:"attempts,omitempty"`
	Items     []item         `json:"items"`
}

type item struct {
	Index       uint32    `json:"index,omitempty"` // of the event in its container
	Attempt     int       `json:"attempt"`
	ID          text      `json:"id,omitempty"`
	Time        time.Time `json:"time,omitzero"`
	Key         text      `json:"key,omitempty"`
	Header      header    `json:"header,omitempty"`
	ContentType text      `json:"content_type,omitempty"`
	Schema      text      `json:"schema,omitempty"`
	Namespace   text      `json:"namespace,omitempty"`
	StreamKey   text      `json:"stream_key,omitempty"`
	Producer    uint64    `json:"producer,string,omitempty"`
	Failed      int       `json:"failed_attempt,omitempty"`
	Origin      *origin   `json:"origin,omitempty"`
	Value       []byte    `json:"value,omitempty"`
}

type origin struct {
	Topic     text            `json:"topic,omitempty"`
	Partition int             `json:"partition,omitempty"`
	Offset    penstock.Offset `json:"offset,omitempty"`
	Group     text            `json:"group,omitempty"`
	Cause     text            `json:"cause,omitempty"`
	Time      time.Time       `json:"time,omitzero"`
}

type header [][2]text

// text is a string of JSON, or {"base64": ...} when its bytes are not UTF-8,
// which a string of JSON cannot hold.
type text string

type encoded struct {
	Base64 []byte `json:"base64"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(encoded{Base64: []byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var e encoded
		err := json.Unmarshal(b, &e)
		*t = text(e.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}

// Kinds of positions by their words on the wire.
var positionKinds = []string{"none", "latest", "earliest", "at", "after", "resume", "at_time"}

func (p *position) to() (stream.Position, error) {
	for i, k := range positionKinds {
		if k == p.Kind {
			return stream.Position{Kind: stream.PositionKind(i), Token: p.Token, Time: p.Time}, nil
		}
	}
	return stream.Position{}, bad("position %q is unknown", cut(p.Kind, 32))
}

func fromPosition(p stream.Position) (*position, error) {
	if int(p.Kind) >= len(positionKinds) {
		return nil, fmt.Errorf("position %s cannot be sent: %w", p, penstock.ErrUnsupported)
	}
	at := p.Time.UTC()
	if y := at.Year(); y < 0 || y > 9999 { // of four digits on the wire
		return nil, fmt.Errorf("position %s cannot be sent: %w", p, penstock.ErrUnsupported)
	}
	return &position{Kind: positionKinds[p.Kind], Token: p.Token, Time: at}, nil
}

// check says what is missing in a frame that the other end has sent. owner
// tells which end that is.
func (f *frame) check(owner bool) error {
	switch {
	case f.Kind == kindHello:
		return f.checkHello(owner)
	case f.Kind == kindBye:
		return nil
	case owner:
		return f.checkOfOwner()
	}
	return f.checkOfSubscriber()
}

func (f *frame) checkHello(owner bool) error {
	switch {
	case f.Version < 1:
		return bad("hello without a version")
	case f.Version != Version:
		return nil // the rest may look different; who reads it refuses it
	case f.ID == "":
		return bad("hello without an id")
	case f.MaxLine < minLine:
		return bad("hello with max_line %d, which is below %d", f.MaxLine, minLine)
	case owner && f.History == "":
		return bad("hello of an owner without a history")
	case !owner && f.Demand < 1:
		return bad("hello of a subscriber without demand")
	}
	return nil
}

func (f *frame) checkOfSubscriber() error {
	switch f.Kind {
	case kindDemand:
		if f.TTL < 1 || f.TTL > maxExpiry.Milliseconds() {
			return bad("demand with ttl_ms %d, which is not in [1, %d]", f.TTL, maxExpiry.Milliseconds())
		}
		return nil
	case kindLeave:
		return nil
	case kindPosition, kindAnswer, kindError:
	default:
		return bad("type %q is unknown from a subscriber", cut(string(f.Kind), 32))
	}
	if f.Call == 0 {
		return bad("%s without a call", f.Kind)
	}
	if f.Kind == kindPosition && f.Position == nil {
		return bad("position without one")
	}
	if f.Position != nil {
		if _, err := f.Position.to(); err != nil {
			return err
		}
	}
	last := -1
	for _, x := range f.Failed {
		if x.Index <= last {
			return bad("answer that fails item %d behind item %d", x.Index, last)
		}
		last = x.Index
	}
	return nil
}

func (f *frame) checkOfOwner() error {
	switch f.Kind {
	case kindAlive, kindLeft:
		return nil
	case kindCancel, kindHandshake, kindDeliver, kindNotice:
	default:
		return bad("type %q is unknown from an owner", cut(string(f.Kind), 32))
	}
	switch {
	case f.Call == 0:
		return bad("%s without a call", f.Kind)
	case f.Kind == kindCancel:
		return nil
	case f.Subscription == nil || f.Queue == nil:
		return bad("%s without subscription or queue", f.Kind)
	case f.Kind == kindNotice && f.Notice == nil:
		return bad("notice without one")
	case f.Kind == kindDeliver && len(f.Containers) == 0:
		return bad("deliver without containers")
	}
	for i := range f.Containers {
		if err := f.Containers[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *container) check() error {
	if len(c.Items) == 0 || len(c.Items) > stream.MaxContainerEvents {
		return bad("container with %d items", len(c.Items))
	}
	for i := range c.Items {
		switch {
		case c.Items[i].Index >= stream.MaxContainerEvents:
			return bad("item with index %d", c.Items[i].Index)
		case i > 0 && c.Items[i].Index <= c.Items[i-1].Index:
			return bad("item %d behind item %d", c.Items[i].Index, c.Items[i-1].Index)
		case c.Items[i].Attempt < 0:
			return bad("item with attempt %d", c.Items[i].Attempt)
		}
	}
	return nil
}

// cut bounds a text, at most n bytes of it, by whole characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
