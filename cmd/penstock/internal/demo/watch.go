package demo

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

const (
	pollEvery      = 200 * time.Millisecond
	pollTimeout    = 2 * time.Second
	rateOver       = 2 * time.Second // window of the rates that are shown
	plainEvery     = 5 * time.Second // status lines where there is no terminal
	maxStatsAnswer = 1 << 20
)

// watcher polls the node and shows the status.
type watcher struct {
	child  *child
	record *record
	screen *screen
	full   func() bool
	client *http.Client

	mu      sync.Mutex
	phase   string
	nodeRSS int64 // largest that a node told of itself
	last    wire.Stats
	samples []sample
}

// sample is what was settled at one moment.
type sample struct {
	at       time.Time
	produced uint64
	settled  map[string]uint64
}

func newWatcher(c *child, r *record, s *screen, full func() bool) *watcher {
	return &watcher{child: c, record: r, screen: s, full: full,
		client: &http.Client{Timeout: pollTimeout, Transport: &http.Transport{}}}
}

// setPhase names what the run is doing, "" while it produces.
func (w *watcher) setPhase(phase string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = phase
}

// run polls and shows until ctx ends.
func (w *watcher) run(ctx context.Context) {
	defer w.client.CloseIdleConnections()
	beat := time.NewTicker(pollEvery)
	defer beat.Stop()
	shown := time.Now()
	for {
		select {
		case <-beat.C:
		case <-ctx.Done():
			return
		}
		up := w.poll(ctx)
		s := w.snapshot(up)
		if w.screen.terminal || time.Since(shown) >= plainEvery {
			w.screen.status(s.rows())
			shown = time.Now()
		}
	}
}

// poll asks the node for its stats and notes the lags. up is false when no
// node answers.
func (w *watcher) poll(ctx context.Context) (up bool) {
	ask, cancel := context.WithTimeout(ctx, pollEvery)
	defer cancel()
	url, err := w.child.wait(ask)
	if err != nil {
		return false
	}
	ctx, cancelGet := context.WithTimeout(ctx, pollTimeout)
	defer cancelGet()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+wire.PathStats, nil)
	if err != nil {
		return false
	}
	resp, err := w.client.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var stats wire.Stats
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxStatsAnswer)).Decode(&stats); err != nil {
		return false
	}
	w.record.with(func(l *judge.Ledger) {
		for _, g := range stats.Groups {
			l.Lag(g.Name, g.Lag)
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = stats
	w.nodeRSS = max(w.nodeRSS, int64(stats.MemoryBytes))
	return true
}

// snapshot takes the state of the run at this moment.
func (w *watcher) snapshot(up bool) snapshot {
	now := time.Now()
	s := snapshot{elapsed: now.Sub(w.record.start), nodeUp: up, starting: w.child.starting(), full: w.full()}
	this := sample{at: now, settled: map[string]uint64{}}
	w.record.with(func(l *judge.Ledger) {
		s.produced, s.crashes, s.unanswered = l.Produced(), l.Crashes(), l.Unanswered()
		this.produced = s.produced
		for _, name := range wire.Groups {
			handled, dead := l.Settled(name)
			this.settled[name] = handled + dead
			s.groups = append(s.groups, groupView{
				name: name, dead: dead,
				behind: w.record.ackLog.behind(s.elapsed, handled+dead),
			})
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	s.phase, s.diskBytes = w.phase, w.last.DiskBytes
	w.samples = append(w.samples, this)
	for len(w.samples) > 2 && now.Sub(w.samples[0].at) > rateOver {
		w.samples = w.samples[1:]
	}
	first := w.samples[0]
	secs := max(now.Sub(first.at).Seconds(), 0.001)
	s.rateIn = float64(this.produced-first.produced) / secs
	if s.phase != "" {
		s.rateIn = 0 // of the last two seconds it would be a figure of the past
	}
	for i := range s.groups {
		g := &s.groups[i]
		g.rateOut = float64(this.settled[g.name]-first.settled[g.name]) / secs
		g.lag = this.produced - min(this.settled[g.name], this.produced)
		for _, told := range w.last.Groups {
			if told.Name == g.name {
				g.stats = told
			}
		}
	}
	return s
}

// rss returns the largest memory that a node told of itself, in bytes.
func (w *watcher) rss() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodeRSS
}
