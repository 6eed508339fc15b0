package demand_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

// budgetModel is the plain form of a budget: numbers and a slice in order.
type budgetModel struct {
	limitEvents, limitBytes int
	usedEvents, usedBytes   int
	freed, freedBytes       int // given up by holders, not yet seen by Refill
	line                    []*modelRequest
	closed                  bool
}

type modelRequest struct {
	events, bytes int
	real          *request
	want          error
	done          bool
}

func (m *budgetModel) fits(events, bytes int) bool {
	return (m.limitEvents == 0 || m.usedEvents-m.freed+events <= m.limitEvents) &&
		(m.limitBytes == 0 || m.usedBytes-m.freedBytes+bytes <= m.limitBytes)
}

func (m *budgetModel) serve() {
	for len(m.line) > 0 && m.fits(m.line[0].events, m.line[0].bytes) {
		r := m.line[0]
		m.line = m.line[1:]
		m.usedEvents += r.events
		m.usedBytes += r.bytes
		r.done, r.want = true, nil
	}
}

func (m *budgetModel) try(events, bytes int) bool {
	switch {
	case events == 0 && (bytes == 0 || m.limitBytes == 0):
	case m.closed || len(m.line) > 0 || !m.fits(events, bytes):
		return false
	}
	m.usedEvents += events
	m.usedBytes += bytes
	return true
}

// The budget does, operation by operation, what the model does: who is
// admitted, in which order, what is left, who waits.
func TestBudgetModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The wrapper hides Deadline, which may not be called in a bubble.
		rapid.Check(struct{ testing.TB }{t}, func(rt *rapid.T) { checkBudget(t, rt) })
	})
}

func checkBudget(t *testing.T, rt *rapid.T) {
	m := &budgetModel{
		limitEvents: rapid.SampledFrom([]int{0, 1, 3, 8}).Draw(rt, "events"),
		limitBytes:  rapid.SampledFrom([]int{0, 0, 5, 20}).Draw(rt, "bytes"),
	}
	b := newBudget(t, demand.BudgetConfig{
		Events: m.limitEvents, Bytes: penstock.Bytes(m.limitBytes),
		Refill: func() (int, penstock.Bytes) {
			e, by := m.freed, m.freedBytes
			m.usedEvents, m.usedBytes, m.freed, m.freedBytes = m.usedEvents-e, m.usedBytes-by, 0, 0
			return e, penstock.Bytes(by)
		},
	})
	var asked []*modelRequest
	draw := func(what string, limit int) int {
		if limit == 0 {
			limit = 5
		}
		return rapid.IntRange(0, limit).Draw(rt, what)
	}
	part := func(what string, of int) int { return rapid.IntRange(0, of).Draw(rt, what) }
	rt.Repeat(map[string]func(*rapid.T){
		"acquire": func(*rapid.T) {
			r := &modelRequest{events: draw("n", m.limitEvents), bytes: draw("size", m.limitBytes)}
			switch empty := r.events == 0 && (r.bytes == 0 || m.limitBytes == 0); {
			case empty:
				r.done = true
				r.events, r.bytes = 0, 0
			case m.closed:
				r.done, r.want = true, penstock.ErrClosed
			default:
				m.line = append(m.line, r)
			}
			asked = append(asked, r)
			m.serve()
			r.real = acquire(t, b, r.events, penstock.Bytes(r.bytes))
		},
		"try": func(rt *rapid.T) {
			n, size := draw("n", m.limitEvents), draw("size", m.limitBytes)
			want := m.try(n, size)
			if got := b.TryAcquire(n, penstock.Bytes(size)); got != want {
				rt.Fatalf("TryAcquire(%d, %d) = %v, want %v with %+v", n, size, got, want, m)
			}
		},
		"release": func(*rapid.T) {
			n, size := part("n", m.usedEvents-m.freed), part("size", m.usedBytes-m.freedBytes)
			m.usedEvents -= n
			m.usedBytes -= size
			m.serve()
			b.Release(n, penstock.Bytes(size))
		},
		"free": func(*rapid.T) {
			m.freed += part("n", m.usedEvents-m.freed)
			m.freedBytes += part("size", m.usedBytes-m.freedBytes)
			m.serve()
			if b.Waiting() > 0 {
				b.Poke()
			}
		},
		"cancel": func(rt *rapid.T) {
			if len(m.line) == 0 {
				rt.Skip("nobody waits")
			}
			i := part("who", len(m.line)-1)
			r := m.line[i]
			m.line = slices.Delete(m.line, i, i+1)
			r.done, r.want = true, context.Canceled
			m.serve()
			r.real.cancel()
		},
		"close": func(rt *rapid.T) {
			if m.closed || len(asked) < 10 {
				rt.Skip("not yet")
			}
			m.closed = true
			for _, r := range m.line {
				r.done, r.want = true, penstock.ErrClosed
			}
			m.line = nil
			b.Close()
		},
		"": func(rt *rapid.T) {
			synctest.Wait()
			if b.Waiting() != len(m.line) {
				rt.Fatalf("%d waiting, want %d", b.Waiting(), len(m.line))
			}
			for i, r := range asked {
				if r.real.waits() == r.done || r.done && !errors.Is(r.real.err, r.want) {
					rt.Fatalf("request %d (%d events, %d bytes): waits %v with %v, want done %v with %v",
						i, r.events, r.bytes, r.real.waits(), r.real.err, r.done, r.want)
				}
			}
			events, bytes := b.Available()
			if m.limitEvents > 0 && events != m.limitEvents-m.usedEvents ||
				m.limitBytes > 0 && int(bytes) != m.limitBytes-m.usedBytes {
				rt.Fatalf("available %d events and %d bytes with %+v", events, bytes, m)
			}
		},
	})
	b.Close()
	for _, r := range asked {
		r.real.cancel()
		<-r.real.done
	}
}
