package demand

import (
	"testing"
)

// The grant comes between the end of the context and the caller's answer to
// it, which no schedule from outside can force.
func TestGrantThatMeetsACancelIsGivenBack_BQ46(t *testing.T) {
	b, err := NewBudget(BudgetConfig{Events: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !b.TryAcquire(1, 0) {
		t.Fatal("an empty budget refused its capacity")
	}
	cancelled, err := b.enter(1, 0)
	if err != nil || cancelled == nil {
		t.Fatalf("entered with %v, %v, want a waiter", cancelled, err)
	}
	behind, err := b.enter(1, 0)
	if err != nil || behind == nil {
		t.Fatalf("entered with %v, %v, want a waiter", behind, err)
	}
	b.Release(1, 0)
	if cancelled.waits || !behind.waits {
		t.Fatal("the release did not grant the first in line alone")
	}
	b.withdraw(cancelled)
	if behind.waits {
		t.Fatal("what was given back did not reach the next in line")
	}
	b.Release(1, 0)
	if events, _ := b.Available(); events != 1 || b.Waiting() != 0 {
		t.Fatalf("%d available and %d waiting, want 1 and 0", events, b.Waiting())
	}
	if !b.TryAcquire(1, 0) {
		t.Fatal("the capacity is lost")
	}
}
