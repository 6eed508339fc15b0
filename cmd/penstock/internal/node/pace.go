package node

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// pace lets events pass at a rate, all callers together. It stands for a slow
// service behind a handler.
//
// Invariant: next never goes back, so over any time t no more than rate*t
// events pass, but for one batch.
type pace struct {
	rate float64 // events per second

	mu   sync.Mutex
	next time.Time // when the next batch may pass
}

// wait blocks until n events may pass, or ctx ends.
func (p *pace) wait(ctx context.Context, n int) error {
	timer := time.NewTimer(time.Until(p.slot(n)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return penstock.ContextError(ctx)
	}
}

// slot takes the next slot of n events and returns when it ends.
func (p *pace) slot(n int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return p.next
}
