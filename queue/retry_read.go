package queue

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// How a retry log on disk reads: itself, and the events that it is to take.

// readAll returns the last entry of each event that is parked, and notes where
// the events are.
func (r *fileRetry[T]) readAll() (map[penstock.Offset]parkedEntry, error) {
	last := make(map[penstock.Offset]parkedEntry)
	if err := r.seek(r.log.Earliest()); err != nil {
		return nil, err
	}
	for {
		records, err := r.reader.Next(1 << 16)
		if err != nil || records.N == 0 {
			return last, err
		}
		for i := range records.N {
			e, raw, err := r.origin.decodeEntry(records.At(i))
			if err != nil {
				return nil, fmt.Errorf("record %d: %w", records.First+penstock.Offset(i), err)
			}
			if e.Gone {
				delete(last, e.Offset)
				delete(r.where, e.Offset)
				delete(r.since, e.Offset)
				continue
			}
			if raw != nil {
				r.where[e.Offset] = records.First + penstock.Offset(i)
				r.since[e.Offset] = e.since
			}
			last[e.Offset] = e
		}
	}
}

func (r *fileRetry[T]) read(o penstock.Offset) (e parkedEvent[T], err error) {
	at, ok := r.where[o]
	if !ok {
		return e, r.wrap(fmt.Errorf("offset %d is not there: %w", o, penstock.ErrNotFound))
	}
	raw, err := r.readRaw(at, o)
	if err != nil {
		return e, r.wrap(err)
	}
	if e, err = r.decode(raw); err != nil {
		bad := &UndecodableError{Offset: o, Err: err, epoch: raw.epoch, unixNano: raw.time}
		bad.take(raw.bytes, raw.enveloped)
		e = parkedEvent[T]{meta: bad.Meta, unixNano: raw.time, epoch: raw.epoch, bad: bad}
	}
	return e, nil
}

// readRaw reads the event that was parked with the record at an offset. The
// bytes belong to the reader.
func (r *fileRetry[T]) readRaw(at, want penstock.Offset) (*rawRecord, error) {
	if err := r.seek(at); err != nil {
		return nil, err
	}
	records, err := r.reader.Next(1)
	if err != nil {
		return nil, err
	}
	if records.N == 0 {
		return nil, fmt.Errorf("record %d cannot be read: %w", at, penstock.ErrOffsetOutOfRange)
	}
	e, raw, err := r.origin.decodeEntry(records.At(0))
	if err == nil && (raw == nil || e.Offset != want) {
		err = fmt.Errorf("%w: record %d is not the event of offset %d", penstock.ErrCorrupt, at, want)
	}
	return raw, err
}

// decode turns a record into an event with memory of its own.
func (r *fileRetry[T]) decode(raw *rawRecord) (e parkedEvent[T], err error) {
	defer r.engine.caught(&err)
	payload := slices.Clone(raw.bytes)
	e.unixNano, e.epoch = raw.time, raw.epoch
	if raw.enveloped {
		if e.meta, payload, err = penstock.DecodeEnvelope(payload); err != nil {
			return e, err
		}
	}
	return e, r.engine.codec.Decode(payload, &e.value)
}

// size reads the record of the event, as it was produced, whatever a handler
// did to its value.
func (r *fileRetry[T]) size(o penstock.Offset, _ *view[T]) (penstock.Bytes, error) {
	raw, err := r.fetch(o)
	if err != nil {
		return 0, err
	}
	return penstock.Bytes(len(raw.bytes)), nil
}

func (r *fileRetry[T]) fetch(o penstock.Offset) (_ *rawRecord, err error) {
	if raw := r.raw[o]; raw != nil {
		return raw, nil
	}
	switch {
	case r.source == nil:
		r.source, err = r.part.NewReader(o)
	case r.source.Offset() != o:
		err = r.source.Seek(o)
	}
	var records segfile.Records
	if err == nil {
		records, err = r.source.Next(1)
	}
	if err == nil && records.N == 0 {
		err = fmt.Errorf("offset %d cannot be read: %w", o, penstock.ErrOffsetOutOfRange)
	}
	if err != nil {
		return nil, err
	}
	raw := &rawRecord{bytes: slices.Clone(records.At(0)), enveloped: records.Enveloped(), time: records.Time, epoch: records.Epoch}
	r.raw[o] = raw
	return raw, nil
}

// seek makes the log's reader stand at an offset.
func (r *fileRetry[T]) seek(at penstock.Offset) (err error) {
	if r.reader == nil {
		r.reader, err = r.log.NewReader(at)
		return err
	}
	return r.reader.Seek(at)
}

// rest closes the readers, so that no consumed segment is held by them.
func (r *fileRetry[T]) rest() {
	for _, reader := range []**segfile.Reader{&r.reader, &r.source} {
		if *reader == nil {
			continue
		}
		if err := (*reader).Close(); err != nil {
			r.engine.topic.logger.Warn("segment did not close", "group", r.origin.group, "partition", r.origin.partition, "err", err)
		}
		*reader = nil
	}
}
