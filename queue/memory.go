package queue

import (
	"slices"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/seglog"
)

// memory is the source of a cursor on a partition in memory.
type memory[T any] struct {
	log    *seglog.Log[T]
	cursor seglog.Cursor[T]
	times  []penstock.TimeRun
	time0  [1]penstock.TimeRun // backs times until it must be longer

	// What fill copies together when a run of max events crosses segments.
	values []T
	metas  []penstock.Meta
	copied penstock.Offset // values holds events below it
}

func newMemory[T any](log *seglog.Log[T]) *memory[T] {
	m := &memory[T]{log: log, cursor: log.Cursor()}
	m.times = m.time0[:0]
	return m
}

func (m *memory[T]) end() penstock.Offset                    { return m.log.End() }
func (m *memory[T]) endBy(look *seglog.Look) penstock.Offset { return m.log.EndBy(look) }

// fill returns a view of one segment, or a copy when the events asked for lie
// in more than one. A lasting window is always a view.
func (m *memory[T]) fill(at, limit penstock.Offset, max int, lasting bool) (window[T], error) {
	span := m.cursor.View(at, limit)
	m.times = m.cursor.Times(m.times[:0], span)
	if len(span.Values) == 0 { // nothing new, or the group is closed and its events are gone
		return window[T]{First: at}, nil
	}
	if end := at + penstock.Offset(len(span.Values)); lasting || len(span.Values) >= max || end == limit {
		w := window[T]{First: at, Values: span.Values, Metas: span.Metas, Times: m.times}
		if span.Metas == nil && !m.log.HoldsPointers() {
			w.Whole = m.cursor.SegmentEnd()
		}
		return w, nil
	}
	return m.gather(span, limit, max), nil
}

// gather copies up to max events together, span first.
func (m *memory[T]) gather(span seglog.Span[T], limit penstock.Offset, max int) window[T] {
	first := span.First
	m.forget()
	m.values = slices.Grow(m.values, min(max, int(limit-first)))
	for {
		k := min(len(span.Values), max-len(m.values))
		if span.Metas != nil {
			for len(m.metas) < len(m.values) {
				m.metas = append(m.metas, penstock.Meta{})
			}
			m.metas = append(m.metas, span.Metas[:k]...)
		}
		m.values = append(m.values, span.Values[:k]...)
		m.copied = first + penstock.Offset(len(m.values))
		if k == 0 || len(m.values) == max || m.copied == limit {
			break
		}
		span = m.cursor.View(m.copied, limit)
		m.times = m.cursor.Times(m.times, span)
	}
	w := window[T]{First: first, Values: m.values, Times: m.times}
	if len(m.metas) > 0 {
		for len(m.metas) < len(m.values) {
			m.metas = append(m.metas, penstock.Meta{})
		}
		w.Metas = m.metas
	}
	return w
}

// release drops the copy when it lies below low.
func (m *memory[T]) release(low penstock.Offset) {
	if low >= m.copied {
		m.forget()
	}
	m.cursor.Leave(low)
}

// forget empties the copy, so that it keeps nothing alive.
func (m *memory[T]) forget() {
	if m.log.HoldsPointers() {
		clear(m.values)
	}
	clear(m.metas)
	m.values, m.metas = m.values[:0], m.metas[:0]
}

func (m *memory[T]) store(penstock.Offset, []byte) error { return nil }
func (m *memory[T]) close()                              {}
