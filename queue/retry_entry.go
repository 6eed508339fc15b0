package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/penstock/penstock"
)

// An entry of the retry log on disk is a record whose envelope says what has
// changed, and whose payload is the record of the event as it stands in the
// topic when the entry parks it (docs/format.md).
const retrySchema = "penstock.retry/1"

// Names of the header fields of an entry. A field that would say 0 is left out.
const (
	retryState    = "state"    // parked, dead or gone
	retrySize     = "size"     // of the event, in bytes
	retryHandOver = "handover" // failed attempts to hand a dead letter over
	retryRecord   = "record"   // of an entry with the event: bare or envelope
	retryTime     = "time"     // when the event was appended, in unix nanoseconds
	retryEpoch    = "epoch"    // of the writer of the event
)

// Words of the fields state and record.
const (
	stateParked    = "parked"
	stateDead      = "dead"
	stateGone      = "gone"
	recordBare     = "bare"
	recordEnvelope = "envelope"
)

// rawRecord is an event as it stands in a topic on disk.
type rawRecord struct {
	bytes     []byte
	enveloped bool
	time      int64
	epoch     uint32
}

// retryOrigin says whose entries a retry log holds.
type retryOrigin struct {
	topic     string
	partition int
	group     string
}

// appendEntry appends the record of an entry. raw is nil unless the entry is
// New.
func (o retryOrigin) appendEntry(dst []byte, e parkedEntry, raw *rawRecord) ([]byte, error) {
	m := penstock.Meta{
		Schema: retrySchema, Key: e.Key, Attempt: e.Attempt,
		Origin: &penstock.Origin{
			Topic: o.topic, Partition: o.partition, Offset: e.Offset, Group: o.group,
			Cause: causeText(e.Cause), Time: e.since,
		},
	}
	state := stateParked
	switch {
	case e.Gone:
		state = stateGone
	case e.Dead:
		state = stateDead
	}
	field := func(name, value string) { m.Header = append(m.Header, penstock.Field{Name: name, Value: value}) }
	number := func(name string, n int64) {
		if n != 0 {
			field(name, strconv.FormatInt(n, 10))
		}
	}
	field(retryState, state)
	number(retrySize, int64(e.Size))
	number(retryHandOver, int64(e.HandOver))
	if !e.Due.IsZero() {
		m.Time = storable(e.Due)
	}
	if raw == nil {
		return penstock.AppendEnvelope(dst, &m, nil)
	}
	record := recordBare
	if raw.enveloped {
		record = recordEnvelope
	}
	field(retryRecord, record)
	number(retryTime, raw.time)
	number(retryEpoch, int64(raw.epoch))
	return penstock.AppendEnvelope(dst, &m, raw.bytes)
}

// storable returns t, or the last moment that can be stored.
func storable(t time.Time) time.Time {
	if last := time.Unix(0, math.MaxInt64); t.After(last) {
		return last
	}
	return t
}

// decodeEntry is the inverse of appendEntry. The bytes of raw are a part of b.
func (o retryOrigin) decodeEntry(b []byte) (e parkedEntry, raw *rawRecord, err error) {
	m, payload, err := penstock.DecodeEnvelope(b)
	if err != nil {
		return e, nil, err
	}
	if m.Schema != retrySchema {
		return e, nil, fmt.Errorf("schema %q, want %q: %w", m.Schema, retrySchema, penstock.ErrUnsupported)
	}
	if m.Origin == nil || m.Origin.Topic != o.topic || m.Origin.Partition != o.partition || m.Origin.Group != o.group {
		return e, nil, fmt.Errorf("%w: an entry of another topic, partition or group", penstock.ErrCorrupt)
	}
	e.Offset, e.Key, e.Attempt, e.Due, e.since = m.Origin.Offset, m.Key, m.Attempt, m.Time, m.Origin.Time
	if m.Origin.Cause != "" {
		e.Cause = errors.New(m.Origin.Cause)
	}
	for _, f := range m.Header {
		var n int64
		switch f.Name {
		case retrySize, retryHandOver, retryTime, retryEpoch:
			if n, err = strconv.ParseInt(f.Value, 10, 64); err != nil || n < 0 && f.Name != retryTime {
				return e, nil, fmt.Errorf("%w: field %s is %q", penstock.ErrCorrupt, f.Name, f.Value)
			}
		}
		switch f.Name {
		case retryState:
			e.Gone, e.Dead = f.Value == stateGone, f.Value == stateDead
		case retrySize:
			e.Size = penstock.Bytes(n)
		case retryHandOver:
			e.HandOver = int(n)
		case retryRecord: // comes before time and epoch
			e.New = true
			raw = &rawRecord{bytes: payload, enveloped: f.Value == recordEnvelope}
		case retryTime, retryEpoch:
			if raw == nil {
				return e, nil, fmt.Errorf("%w: field %s without an event", penstock.ErrCorrupt, f.Name)
			}
			if f.Name == retryTime {
				raw.time = n
			} else {
				raw.epoch = uint32(n)
			}
		}
	}
	return e, raw, nil
}

// causeText returns the text of an error, cut to what is stored of it; "" for
// none. It survives an Error method that panics.
func causeText(err error) string {
	if err == nil {
		return ""
	}
	text := fmt.Sprintf("%v", err)
	if len(text) > maxCause {
		text = text[:maxCause]
	}
	return text
}

// parkedKeyMax bounds the text of a parked key, in bytes.
const parkedKeyMax = 1024

// parkedKey returns the key by which an event is parked: a long one is cut, and
// the hash of the whole stands for the rest.
func parkedKey(key string) string {
	if len(key) <= parkedKeyMax {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return key[:parkedKeyMax-2*len(sum)] + hex.EncodeToString(sum[:])
}
