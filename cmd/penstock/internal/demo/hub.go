package demo

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/edge"
	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

const (
	maxReport = 8 << 20
	maxCall   = 16 << 20
)

// hub is the driver's own HTTP server, on loopback: it takes the reports of
// the handlers, and it is the partner that the webhook group calls.
type hub struct {
	run     string
	secret  string
	record  *record
	server  *http.Server
	url     string
	ended   chan struct{}
	foreign atomic.Uint64 // reported events of earlier runs or other producers

	refuse uint32 // ids with this remainder of refuseOneIn are never taken

	mu       sync.Mutex
	dice     *rand.Rand // decides which webhook calls fail
	taken    []uint64   // bit per id that the partner took in a call
	unbacked uint64     // reports of the webhook group without such a call
	unjust   uint64     // dead letters of what no partner refused
}

func startHub(run, secret string, seed uint64, rec *record) (*hub, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for reports: %w", err)
	}
	h := &hub{
		run: run, secret: secret, record: rec, url: "http://" + listener.Addr().String(),
		ended:  make(chan struct{}),
		dice:   rand.New(rand.NewPCG(seed, 2)),
		refuse: uint32(seed % refuseOneIn),
	}
	h.server = edge.NewServer(h.routes(), slog.Default())
	// Serves until close shuts the server down; close waits for it.
	go func() {
		defer close(h.ended)
		_ = h.server.Serve(listener) // always ErrServerClosed, from close
	}()
	return h, nil
}

func (h *hub) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if h.server.Shutdown(ctx) != nil {
		_ = h.server.Close() // a node that was killed may have left a request half sent
	}
	<-h.ended
}

func (h *hub) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathReport, h.report)
	mux.HandleFunc("POST "+wire.PathWebhook, h.webhook)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+h.secret)) != 1 {
			http.Error(w, "not the node of this run", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// report notes a report in the ledger, then answers.
func (h *hub) report(w http.ResponseWriter, r *http.Request) {
	var rep wire.Report
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport))
	d.DisallowUnknownFields()
	if err := d.Decode(&rep); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.foreign.Add(uint64(max(rep.Foreign, 0)))
	h.compare(rep)
	h.record.with(func(l *judge.Ledger) {
		for _, id := range rep.IDs {
			if rep.Dead {
				l.Dead(rep.Group, judge.ID(id))
			} else {
				l.Handled(rep.Group, judge.ID(id))
			}
		}
	})
	w.WriteHeader(http.StatusNoContent)
}

// webhook plays a partner's service: 1 call in 50 fails whole, and 1 id in
// 5,000 is never taken.
func (h *hub) webhook(w http.ResponseWriter, r *http.Request) {
	var ids []string
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCall))
	for d.More() {
		var e struct{ ID string }
		if err := d.Decode(&e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ids = append(ids, e.ID)
	}
	if h.fails() {
		http.Error(w, "the partner has a bad moment", http.StatusServiceUnavailable)
		return
	}
	var a wire.WebhookAnswer
	for _, id := range ids {
		switch n, ok := wire.ParseID(h.run, id); {
		case ok && h.refuses(n):
			a.Refused = append(a.Refused, id)
		case ok && n < judge.MaxEvents:
			h.take(n)
		}
	}
	w.Header().Set("Content-Type", edge.TypeJSON)
	_ = json.NewEncoder(w).Encode(a) // a caller that was killed needs no answer
}

func (h *hub) refuses(id uint32) bool { return id%refuseOneIn == h.refuse }

func (h *hub) take(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for int(id/64) >= len(h.taken) {
		h.taken = append(h.taken, 0)
	}
	h.taken[id/64] |= 1 << (id % 64)
}

// compare holds a report against what the partner saw: a node that gives up
// what nobody refused, or reports without having called, must not look good.
func (h *hub) compare(rep wire.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range rep.IDs {
		switch {
		case rep.Dead && (rep.Group != wire.Webhook || !h.refuses(id)):
			h.unjust++
		case !rep.Dead && rep.Group == wire.Webhook && (int(id/64) >= len(h.taken) || h.taken[id/64]&(1<<(id%64)) == 0):
			h.unbacked++
		}
	}
}

// faults returns what the partner has to say against the node.
func (h *hub) faults() (faults []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unbacked > 0 {
		faults = append(faults, fmt.Sprintf("group %s reported %d events that its partner never took", wire.Webhook, h.unbacked))
	}
	if h.unjust > 0 {
		faults = append(faults, fmt.Sprintf("%d events came out as dead letters that no partner refused", h.unjust))
	}
	return faults
}

func (h *hub) fails() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dice.IntN(failOneIn) == 0
}
