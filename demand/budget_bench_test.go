package demand_test

import (
	"testing"

	"github.com/penstock/penstock/demand"
)

// The uncontended way in, beside a channel used as a semaphore, which is what
// one would write without this package. The acquired capacity comes back by
// Refill, as it does in a topic.
func BenchmarkTryAcquire(b *testing.B) {
	const capacity = 1024
	b.Run("budget", func(b *testing.B) {
		budget := newBudget(b, demand.BudgetConfig{Events: capacity})
		b.ReportAllocs()
		for b.Loop() {
			if !budget.TryAcquire(1, 0) {
				b.Fatal("refused")
			}
			budget.Release(1, 0)
		}
	})
	b.Run("budget-refill", func(b *testing.B) {
		g, budget := newGroups(b, capacity, 1)
		b.ReportAllocs()
		free := int64(capacity)
		for b.Loop() {
			if free == 0 {
				g.commit[0].Add(capacity)
				free = capacity
			}
			free--
			if !budget.TryAcquire(1, 0) {
				b.Fatal("refused")
			}
		}
	})
	b.Run("unlimited", func(b *testing.B) {
		budget := newBudget(b, demand.BudgetConfig{})
		b.ReportAllocs()
		for b.Loop() {
			if !budget.TryAcquire(1, 0) {
				b.Fatal("refused")
			}
		}
	})
	b.Run("channel", func(b *testing.B) {
		tokens := make(chan struct{}, capacity)
		b.ReportAllocs()
		for b.Loop() {
			tokens <- struct{}{}
			<-tokens
		}
	})
}
