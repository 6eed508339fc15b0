package demo

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/judge"
)

// record is what the driver writes down: the ledger in memory, which is
// judged, and the journal on disk, for whoever wants to look afterwards. It is
// safe for concurrent use.
//
// Invariant: an id is in both before the request that carries it leaves.
type record struct {
	journal *os.File // each entry is one write, so entries of several lanes do not mix
	start   time.Time

	mu     sync.Mutex
	ledger *judge.Ledger
	ackLog ackLog
}

// entry is one line of the journal.
type entry struct {
	Seconds     float64 `json:"t"`  // since the start of the run
	Op          string  `json:"op"` // invoke, ok, fail, kill, start
	Lane        int     `json:"lane,omitempty"`
	Request     int     `json:"request,omitempty"`
	Try         int     `json:"try,omitempty"`
	IDs         []int   `json:"ids,omitempty"` // of the first try
	Why         string  `json:"why,omitempty"`
	Incarnation int     `json:"incarnation,omitempty"`
}

func newRecord(path string, groups []string) (*record, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &record{journal: f, start: time.Now(), ledger: judge.NewLedger(groups...)}, nil
}

func (r *record) note(e entry) error {
	e.Seconds = time.Since(r.start).Seconds()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.journal.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// invoke notes a try of a request. Its events are sent from here on.
func (r *record) invoke(q *request) error {
	e := entry{Op: "invoke", Lane: q.lane, Request: q.number, Try: q.tries}
	if q.tries == 1 {
		for _, it := range q.items {
			e.IDs = append(e.IDs, int(it.id))
		}
	}
	if err := r.note(e); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range q.items {
		r.ledger.Sent(it.id, it.key)
	}
	return nil
}

// ok notes that a request was acknowledged.
func (r *record) ok(q *request) error {
	r.mu.Lock()
	for _, it := range q.items {
		r.ledger.Acked(it.id)
	}
	r.ackLog.add(time.Since(r.start), r.ledger.Produced())
	r.mu.Unlock()
	return r.note(entry{Op: "ok", Lane: q.lane, Request: q.number, Try: q.tries})
}

// fail notes a try whose outcome is not known, or that was refused.
func (r *record) fail(q *request, why string) error {
	return r.note(entry{Op: "fail", Lane: q.lane, Request: q.number, Try: q.tries, Why: why})
}

// with runs f on the ledger. f must not block.
func (r *record) with(f func(*judge.Ledger)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.ledger)
}

func (r *record) close() error { return r.journal.Close() }
