package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/stream"
)

// samples are frames of every kind, by the end that sends them.
func samples() (ofOwner, ofSubscriber []frame) {
	rec := &subscription{Provider: "shop", Namespace: "orders", Key: "k\xff", Name: "billing", Filter: "x", Incarnation: 3, Attached: 4}
	q := &queueID{Name: "shop", Number: 2, Ring: 1 << 31}
	at := penstock.Token{Hi: 1 << 63, Lo: 7}
	ofOwner = []frame{
		{Kind: kindHello, Version: Version, ID: "o", History: "h", MaxLine: minLine},
		{Kind: kindAlive},
		{Kind: kindHandshake, Call: 1, Subscription: rec, Queue: q, Request: 1},
		{Kind: kindDeliver, Call: 2, Subscription: rec, Queue: q, Request: 1, Containers: []container{{
			Namespace: "orders", Key: "7", Token: at, Time: time.Unix(9, 10).UTC(), Header: header{{"a", "b\xfe"}}, Attempts: 2,
			Items: []item{
				{Index: 1, Attempt: 3, Value: []byte("v\x00\xff")},
				{Index: 65535, Attempt: 1, ID: "id", Key: "k", Time: time.Unix(1, 2).UTC(), Header: header{{"h", "<v>"}}, ContentType: "c", Schema: "s",
					Namespace: "n", StreamKey: "sk", Producer: 1<<64 - 1, Failed: 5,
					Origin: &origin{Topic: "t", Partition: 1, Offset: 2, Group: "g", Cause: "c", Time: time.Unix(3, 4).UTC()}, Value: []byte{}},
			},
		}}},
		{Kind: kindNotice, Call: 3, Subscription: rec, Queue: q, Notice: &notice{Kind: 2, Token: at, Events: 3, Error: "broke"}},
		{Kind: kindCancel, Call: 2},
		{Kind: kindLeft},
		{Kind: kindBye, Error: "why", Final: true},
	}
	ofSubscriber = []frame{
		{Kind: kindHello, Version: Version, ID: "s", Demand: 10, MaxLine: minLine},
		{Kind: kindDemand, Limit: 1<<64 - 1, TTL: 15000},
		{Kind: kindPosition, Call: 1, Position: &position{Kind: "resume", Token: at}},
		{Kind: kindAnswer, Call: 2, Failed: []failure{{Index: 0, Error: "broke"}, {Index: 4}}},
		{Kind: kindAnswer, Call: 2, Position: &position{Kind: "at", Token: at}},
		{Kind: kindError, Call: 3, Error: "gone", Gone: true},
		{Kind: kindError, Call: 3, Error: "away", Away: true},
		{Kind: kindLeave},
		{Kind: kindBye},
	}
	return ofOwner, ofSubscriber
}

func TestFramesComeBackAsTheyWere(t *testing.T) {
	ofOwner, ofSubscriber := samples()
	for i, frames := range [][]frame{ofOwner, ofSubscriber} {
		owner := i == 0
		var lines []byte
		for _, f := range frames {
			var err error
			if lines, err = appendFrame(lines, &f); err != nil {
				t.Fatal(err)
			}
		}
		for name, r := range map[string]io.Reader{"whole": bytes.NewReader(lines), "byte by byte": iotest.OneByteReader(bytes.NewReader(lines))} {
			d := newDecoder(r, minLine, owner)
			for _, want := range frames {
				got, err := d.next()
				if err != nil {
					t.Fatalf("%s, owner %v: %s: %v", name, owner, want.Kind, err)
				}
				if want.Kind == kindDeliver { // an empty value is the same as none
					want.Containers[0].Items[1].Value = nil
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s, owner %v: got  %+v\nwant %+v", name, owner, got, want)
				}
			}
			if _, err := d.next(); err != io.EOF {
				t.Errorf("behind the last line: %v, want io.EOF", err)
			}
		}
	}
}

// Metadata, bytes that are not UTF-8 among them, survive the way there.
func TestDeliveryComesBackAsItWas(t *testing.T) {
	c := &stream.Container{
		Stream: penstock.StreamID{Namespace: "n\xff", Key: "k"}, Token: penstock.Token{Hi: 1, Lo: 2}, Time: time.Unix(5, 6).UTC(), Attempts: 1,
		Header: penstock.Header{{Name: "a", Value: "\xfe"}},
		Events: stream.EventsOf(penstock.Envelope{Value: []byte("0")}, penstock.Envelope{Value: []byte("\xff1"), Meta: penstock.Meta{
			ID: "\xfd", Time: time.Unix(7, 8).UTC(), Key: "k\x00", Header: penstock.Header{{Name: "", Value: "v"}}, ContentType: "c", Schema: "s",
			Stream: penstock.StreamID{Namespace: "x", Key: "y"}, Producer: 9, Attempt: 2,
			Origin: &penstock.Origin{Topic: "t", Partition: 3, Offset: 4, Group: "g", Cause: "c", Time: time.Unix(9, 1).UTC()},
		}}),
	}
	d := &stream.Delivery{
		Subscription: stream.SubscriptionRecord{Stream: stream.QualifiedStreamID{Provider: "p", StreamID: c.Stream}, Name: "\xfc", Filter: "f", Implicit: true, Incarnation: 1, Attached: 2},
		Queue:        stream.QueueID{Name: "q", Number: 1, Ring: 2}, Request: 3,
		Items: []stream.Item{{Token: penstock.Token{Hi: 1, Lo: 2, Index: 1}, Attempt: 4, From: c, Index: 1}},
	}
	f := frame{Kind: kindDeliver, Call: 1, Subscription: fromRecord(d.Subscription), Queue: fromQueue(d.Queue), Request: d.Request, Containers: fromItems(d.Items)}
	line, err := appendFrame(nil, &f)
	if err != nil {
		t.Fatal(err)
	}
	back, err := parseFrame(line, true)
	if err != nil {
		t.Fatal(err)
	}
	got := back.delivery()
	if !reflect.DeepEqual(got.Subscription, d.Subscription) || got.Queue != d.Queue || got.Request != d.Request || len(got.Items) != 1 {
		t.Fatalf("got %+v, want %+v", got, d)
	}
	it, want := got.Items[0], d.Items[0]
	if it.Token != want.Token || it.Attempt != want.Attempt || !reflect.DeepEqual(it.Event(), want.Event()) {
		t.Errorf("item %+v of %+v, want %+v of %+v", it, it.Event(), want, want.Event())
	}
	from := *it.From
	if from.Events = c.Events; !reflect.DeepEqual(from, *c) {
		t.Errorf("container %+v, want %+v", from, *c)
	}
}

func TestBadLinesAreToldApart(t *testing.T) {
	deliver := `{"type":"deliver","call":1,"subscription":{"provider":"p","namespace":"n","name":"x"},"queue":{"name":"q","number":0},"containers":[%s]}`
	for name, c := range map[string]struct {
		line  string
		owner bool
		want  error
		says  string
	}{
		"empty":                 {"\n", true, ErrProtocol, "line 1: not an object"},
		"no object":             {"7\n", true, ErrProtocol, "not an object"},
		"cut in itself":         {`{"type":"left"` + "\n", true, ErrProtocol, "unexpected end"},
		"two objects":           {"{}{}\n", true, ErrProtocol, "after top-level"},
		"not UTF-8":             {"{\"type\":\"\xff\"}\n", true, ErrProtocol, "UTF-8"},
		"without a type":        {"{}\n", true, ErrProtocol, `type "" is unknown from an owner`},
		"unknown type":          {`{"type":"push"}` + "\n", false, ErrProtocol, `type "push" is unknown from a subscriber`},
		"of the other end":      {`{"type":"leave"}` + "\n", true, ErrProtocol, `"leave" is unknown from an owner`},
		"end in a line":         {`{"type":`, true, io.ErrUnexpectedEOF, "cut short after 8 bytes"},
		"too long":              {strings.Repeat("x", minLine) + "\n", true, penstock.ErrTooLarge, "longer than 65536"},
		"hello without version": {`{"type":"hello"}` + "\n", true, ErrProtocol, "without a version"},
		"hello without id":      {`{"type":"hello","version":1}` + "\n", true, ErrProtocol, "without an id"},
		"hello, small lines":    {`{"type":"hello","version":1,"id":"x","max_line":9}` + "\n", true, ErrProtocol, "max_line 9"},
		"hello, no history":     {`{"type":"hello","version":1,"id":"x","max_line":65536}` + "\n", true, ErrProtocol, "history"},
		"hello, no demand":      {`{"type":"hello","version":1,"id":"x","max_line":65536}` + "\n", false, ErrProtocol, "demand"},
		"demand for ever":       {`{"type":"demand","limit":1,"ttl_ms":300001}` + "\n", false, ErrProtocol, "ttl_ms 300001"},
		"demand for no time":    {`{"type":"demand","limit":1}` + "\n", false, ErrProtocol, "ttl_ms 0"},
		"negative demand":       {`{"type":"demand","limit":-1,"ttl_ms":1}` + "\n", false, ErrProtocol, "limit"},
		"answer to nothing":     {`{"type":"answer"}` + "\n", false, ErrProtocol, "without a call"},
		"position without one":  {`{"type":"position","call":1}` + "\n", false, ErrProtocol, "position without one"},
		"unknown position":      {`{"type":"position","call":1,"position":{"kind":"middle"}}` + "\n", false, ErrProtocol, `"middle"`},
		"bad token":             {`{"type":"position","call":1,"position":{"kind":"at","token":"t2:1"}}` + "\n", false, ErrProtocol, "t1:HI:LO:INDEX"},
		"failures out of order": {`{"type":"answer","call":1,"failed":[{"index":1},{"index":1}]}` + "\n", false, ErrProtocol, "item 1 behind item 1"},
		"handshake of nobody":   {`{"type":"handshake","call":1}` + "\n", true, ErrProtocol, "without subscription"},
		"nothing delivered":     {fmt.Sprintf(deliver, "") + "\n", true, ErrProtocol, "without containers"},
		"container of nothing":  {fmt.Sprintf(deliver, `{"token":"t1:0:0:0"}`) + "\n", true, ErrProtocol, "container with 0 items"},
		"items out of order":    {fmt.Sprintf(deliver, `{"token":"t1:0:0:0","items":[{"index":2},{"index":1}]}`) + "\n", true, ErrProtocol, "item 1 behind item 2"},
		"index above the most":  {fmt.Sprintf(deliver, `{"token":"t1:0:0:0","items":[{"index":65536}]}`) + "\n", true, ErrProtocol, "index 65536"},
		"notice of nothing":     {strings.Replace(fmt.Sprintf(deliver, ""), "deliver", "notice", 1) + "\n", true, ErrProtocol, "notice without one"},
	} {
		d := newDecoder(strings.NewReader(c.line), minLine, c.owner)
		_, err := d.next()
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v that says %q", name, err, c.want, c.says)
		}
		if _, again := d.next(); again != err {
			t.Errorf("%s: the second call says %v, want the first error", name, again)
		}
	}
}

// What is not known of a later version is passed over.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	f, err := parseFrame([]byte(`{"type":"leave","colour":{"deep":[1,2]}}`), false)
	if err != nil || f.Kind != kindLeave {
		t.Errorf("%+v, %v", f, err)
	}
}

// A line that never ends takes no more memory than the limit.
func TestEndlessLineEndsAtTheLimit(t *testing.T) {
	d := newDecoder(endless{}, minLine, true)
	if _, err := d.next(); !errors.Is(err, penstock.ErrTooLarge) || !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	if cap(d.line) > 2*minLine {
		t.Errorf("%d bytes kept for a line of at most %d", cap(d.line), minLine)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func FuzzDecoder(f *testing.F) {
	ofOwner, ofSubscriber := samples()
	for i, frames := range [][]frame{ofOwner, ofSubscriber} {
		var all []byte
		for _, x := range frames {
			line, err := appendFrame(nil, &x)
			if err != nil {
				f.Fatal(err)
			}
			all = append(all, line...)
			f.Add(line, i == 0)
		}
		f.Add(all, i == 0)
	}
	f.Add([]byte("{}\n\n{\"type\":\"alive\"}"), true)
	f.Fuzz(func(t *testing.T, input []byte, owner bool) {
		d := newDecoder(bytes.NewReader(input), minLine, owner)
		for n := 0; ; n++ {
			got, err := d.next()
			if err != nil {
				known := errors.Is(err, ErrProtocol) || errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF
				if !known || n > bytes.Count(input, []byte("\n")) {
					t.Fatalf("after %d lines: %v", n, err)
				}
				return
			}
			if got.Kind == kindDeliver && got.delivery() == nil {
				t.Fatal("no delivery")
			}
			line, err := appendFrame(nil, &got)
			if err != nil {
				t.Fatalf("%+v was read and cannot be written: %v", got, err)
			}
			again, err := parseFrame(line, owner)
			if err != nil {
				t.Fatalf("%s was written and cannot be read: %v", line, err)
			}
			second, err := appendFrame(nil, &again)
			if err != nil || !bytes.Equal(line, second) {
				t.Fatalf("%s came back as %s, %v", line, second, err)
			}
		}
	})
}

// The lines of the guide are lines of the protocol.
func TestGuideShowsTheProtocol(t *testing.T) {
	text, err := os.ReadFile("../../docs/guide/remote.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[kind]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		owner := strings.HasPrefix(line, "> {")
		if !owner && !strings.HasPrefix(line, "< {") {
			continue
		}
		f, err := parseFrame([]byte(line[2:]), owner)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		kinds[f.Kind] = true
		back, err := appendFrame(nil, &f)
		if err != nil || string(back) != line[2:]+"\n" {
			t.Errorf("%s\nis written as\n%s%v", line[2:], back, err)
		}
	}
	if len(kinds) < 12 {
		t.Errorf("only %d kinds of lines are shown", len(kinds))
	}
}

// Every position that a consumer can answer with reaches the owner; one that
// was added to package stream later did not.
func TestEveryPositionCrosses(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 5, time.UTC)
	for kind := stream.PositionKind(0); !strings.HasPrefix((stream.Position{Kind: kind}).String(), "position("); kind++ {
		want := stream.Position{Kind: kind, Token: penstock.Token{Hi: 1, Lo: 2}, Time: at}
		sent, err := fromPosition(want)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		line, err := json.Marshal(sent)
		if err != nil {
			t.Fatal(err)
		}
		var read position
		if err := json.Unmarshal(line, &read); err != nil {
			t.Fatal(err)
		}
		if got, err := read.to(); err != nil || got != want {
			t.Errorf("%s came as %s: %v", want, got, err)
		}
	}
	if _, err := fromPosition(stream.Position{Kind: 200}); !errors.Is(err, penstock.ErrUnsupported) {
		t.Errorf("an unknown kind: %v", err)
	}
}
