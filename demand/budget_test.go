package demand_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

func newBudget(t testing.TB, c demand.BudgetConfig) *demand.Budget {
	t.Helper()
	b, err := demand.NewBudget(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// request is an Acquire in a goroutine of its own, inside a synctest bubble.
type request struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func acquire(t testing.TB, b *demand.Budget, events int, bytes penstock.Bytes) *request {
	ctx, cancel := context.WithCancel(t.Context())
	r := &request{cancel: cancel, done: make(chan struct{})}
	go func() { // ends with the grant, cancel or Close; the test waits on done
		defer close(r.done)
		r.err = b.Acquire(ctx, events, bytes)
	}()
	synctest.Wait()
	return r
}

func (r *request) waits() bool {
	synctest.Wait()
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

func (r *request) mustWait(t testing.TB, name string) {
	t.Helper()
	if !r.waits() {
		t.Fatalf("%s did not wait: %v", name, r.err)
	}
}

func (r *request) mustHave(t testing.TB, name string, want error) {
	t.Helper()
	if r.waits() {
		t.Fatalf("%s still waits, want %v", name, want)
	}
	if !errors.Is(r.err, want) {
		t.Fatalf("%s: %v, want %v", name, r.err, want)
	}
}

func TestTryAcquireAdmitsExactlyTheCapacity_QC17(t *testing.T) {
	b := newBudget(t, demand.BudgetConfig{Events: 257})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 32 {
				if b.TryAcquire(1, 0) {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 257 {
		t.Fatalf("%d admitted, want 257", got)
	}
	if events, _ := b.Available(); events != 0 {
		t.Fatalf("%d available, want 0", events)
	}
}

func TestWaitingIsFirstComeFirstServedByWholeRequest_QC19(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, demand.BudgetConfig{Events: 3})
		if !b.TryAcquire(3, 0) {
			t.Fatal("an empty budget refused its capacity")
		}
		first := acquire(t, b, 3, 0)
		second := acquire(t, b, 1, 0)
		b.Release(1, 0)
		first.mustWait(t, "the request for 3")
		second.mustWait(t, "the request for 1 behind it")
		if b.TryAcquire(1, 0) {
			t.Fatal("a newcomer overtook the line")
		}
		if b.Waiting() != 2 {
			t.Fatalf("%d waiting, want 2", b.Waiting())
		}
		b.Release(2, 0)
		first.mustHave(t, "the request for 3", nil)
		second.mustWait(t, "the request for 1")
		b.Release(1, 0)
		second.mustHave(t, "the request for 1", nil)
		if b.Waiting() != 0 {
			t.Fatalf("%d waiting, want 0", b.Waiting())
		}
	})
}

// groups is capacity held by the slowest of some commits, as a topic has it:
// Refill returns what the minimum advanced since the last call.
type groups struct {
	commit []atomic.Int64
	given  int64
}

func (g *groups) refill() (int, penstock.Bytes) {
	low := g.commit[0].Load()
	for i := range g.commit {
		low = min(low, g.commit[i].Load())
	}
	n := low - g.given
	g.given = low
	return int(n), 0
}

// advance commits n events for one group the way a consumer does.
func (g *groups) advance(b *demand.Budget, group, n int) {
	g.commit[group].Add(int64(n))
	if b.Waiting() > 0 {
		b.Poke()
	}
}

func newGroups(t testing.TB, capacity, n int) (*groups, *demand.Budget) {
	g := &groups{commit: make([]atomic.Int64, n)}
	return g, newBudget(t, demand.BudgetConfig{Events: capacity, Refill: g.refill})
}

func TestCommitAdmitsTheWaitingWriter_QC21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := newGroups(t, 1, 1)
		acquire(t, b, 1, 0).mustHave(t, "the first write", nil)
		second := acquire(t, b, 1, 0)
		b.Poke() // a pull frees nothing
		second.mustWait(t, "the second write")
		g.advance(b, 0, 1)
		second.mustHave(t, "the second write", nil)
	})
}

func TestCancelledWriterTakesNothing_QC22(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := newGroups(t, 1, 1)
		acquire(t, b, 1, 0).mustHave(t, "the first write", nil)
		second := acquire(t, b, 1, 0)
		second.mustWait(t, "the second write")
		second.cancel()
		second.mustHave(t, "the cancelled write", context.Canceled)
		g.advance(b, 0, 1)
		if !b.TryAcquire(1, 0) {
			t.Fatal("the capacity went to the cancelled write")
		}
	})
}

func TestBatchWaitsForItsWholeSize_QC23(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := newGroups(t, 3, 1)
		acquire(t, b, 2, 0).mustHave(t, "the first batch", nil)
		second := acquire(t, b, 2, 0)
		second.mustWait(t, "the second batch with one place free")
		g.advance(b, 0, 1)
		second.mustHave(t, "the second batch", nil)
	})
}

func TestSlowestGroupHoldsTheCapacity_QC26(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := newGroups(t, 1, 2)
		acquire(t, b, 1, 0).mustHave(t, "the first write", nil)
		second := acquire(t, b, 1, 0)
		g.advance(b, 0, 1)
		second.mustWait(t, "the second write after one of two groups committed")
		g.advance(b, 1, 1)
		second.mustHave(t, "the second write", nil)
	})
}

// Capacity that becomes free after a request has looked and before it stands in
// line is freed by someone who sees nobody wait and does not poke.
func TestCapacityFreedBeforeJoiningTheLineIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *demand.Budget
		freed, looks := 0, 0
		b = newBudget(t, demand.BudgetConfig{Events: 1, Refill: func() (int, penstock.Bytes) {
			looks++
			n := freed
			freed = 0
			if looks == 1 && b.Waiting() == 0 {
				freed = 1 // just after this look, without a poke
			}
			return n, 0
		}})
		b.TryAcquire(1, 0)
		acquire(t, b, 1, 0).mustHave(t, "the request", nil)
	})
}

func TestTryAcquireFindsCapacityFreedWithoutAPoke(t *testing.T) {
	g, b := newGroups(t, 2, 1)
	if !b.TryAcquire(2, 0) || b.TryAcquire(1, 0) {
		t.Fatal("the capacity of 2 is not exact")
	}
	g.commit[0].Add(1)
	if !b.TryAcquire(1, 0) || b.TryAcquire(1, 0) {
		t.Fatal("one freed place was not admitted exactly once")
	}
}

func TestCancelOfTheFirstInLineAdmitsTheNext_BQ46(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, demand.BudgetConfig{Events: 3})
		b.TryAcquire(2, 0)
		large := acquire(t, b, 3, 0)
		small := acquire(t, b, 1, 0)
		small.mustWait(t, "the small request behind the large one")
		large.cancel()
		large.mustHave(t, "the large request", context.Canceled)
		small.mustHave(t, "the small request", nil)
	})
}

func TestCancelReportsItsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, demand.BudgetConfig{Events: 1})
		b.TryAcquire(1, 0)
		cause := errors.New("deploy")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		err := b.Acquire(ctx, 1, 0)
		if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
			t.Fatalf("%v matches not both the cause and context.Canceled", err)
		}
		b.Release(1, 0)
		if err := b.Acquire(ctx, 1, 0); !errors.Is(err, context.Canceled) {
			t.Fatalf("a cancelled request was admitted: %v", err)
		}
	})
}

func TestCloseWakesEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, demand.BudgetConfig{Events: 1})
		b.TryAcquire(1, 0)
		first, second := acquire(t, b, 1, 0), acquire(t, b, 1, 0)
		b.Close()
		b.Close()
		first.mustHave(t, "the first", penstock.ErrClosed)
		second.mustHave(t, "the second", penstock.ErrClosed)
		acquire(t, b, 1, 0).mustHave(t, "a late request", penstock.ErrClosed)
		b.Release(1, 0)
		if b.TryAcquire(1, 0) {
			t.Fatal("a closed budget admitted a request")
		}
		if b.Waiting() != 0 {
			t.Fatalf("%d waiting, want 0", b.Waiting())
		}
	})
}

func TestRequestOfNothingIsAlwaysAdmitted_BQ47(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, demand.BudgetConfig{Events: 1, Bytes: 1})
		b.TryAcquire(1, 1)
		blocked := acquire(t, b, 1, 0)
		if !b.TryAcquire(0, 0) {
			t.Fatal("refused while full")
		}
		acquire(t, b, 0, 0).mustHave(t, "a request of nothing", nil)
		b.Close()
		blocked.mustHave(t, "the waiting request", penstock.ErrClosed)
		if !b.TryAcquire(0, 0) {
			t.Fatal("refused after Close")
		}
	})
}

func TestRequestAboveTheCapacityIsRefusedAtOnce_BQ47(t *testing.T) {
	b := newBudget(t, demand.BudgetConfig{Events: 3, Bytes: 10})
	for _, err := range []error{b.Acquire(t.Context(), 4, 1), b.Acquire(t.Context(), 1, 11)} {
		if !errors.Is(err, penstock.ErrTooLarge) {
			t.Errorf("%v, want ErrTooLarge", err)
		}
	}
	if b.TryAcquire(4, 0) || b.TryAcquire(0, 11) {
		t.Error("admitted more than the capacity")
	}
	if events, bytes := b.Available(); events != 3 || bytes != 10 {
		t.Errorf("available %d events and %v, want 3 and 10B", events, bytes)
	}
}

func TestBytesAndEventsMustBothFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(t, demand.BudgetConfig{Events: 10, Bytes: 100})
		acquire(t, b, 1, 90).mustHave(t, "1 event of 90 bytes", nil)
		byBytes := acquire(t, b, 1, 20)
		byBytes.mustWait(t, "20 bytes of 10")
		b.Release(0, 10)
		byBytes.mustHave(t, "20 bytes of 20", nil)
		if b.TryAcquire(1, 1) || !b.TryAcquire(8, 0) || b.TryAcquire(1, 0) {
			t.Fatal("events and bytes are not counted apart")
		}
	})
}

func TestUnlimitedBudgetAdmitsUntilClosed(t *testing.T) {
	b := newBudget(t, demand.BudgetConfig{})
	for range 3 {
		if !b.TryAcquire(1<<30, 1<<60) {
			t.Fatal("refused without a limit")
		}
	}
	b.Release(1, 1)
	b.Close()
	if b.TryAcquire(1, 0) || !errors.Is(b.Acquire(t.Context(), 1, 0), penstock.ErrClosed) {
		t.Fatal("admitted after Close")
	}
}

func TestLimitInBytesAlone(t *testing.T) {
	b := newBudget(t, demand.BudgetConfig{Bytes: 10})
	if !b.TryAcquire(1000, 10) || b.TryAcquire(1, 1) || !b.TryAcquire(1, 0) {
		t.Fatal("bytes alone are not what limits")
	}
	b.Release(1001, 10)
	if _, bytes := b.Available(); bytes != 10 {
		t.Fatalf("%v available, want 10B", bytes)
	}
}

func TestMisuseOfABudgetPanics(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(b *demand.Budget)
	}{
		{"release without acquire", func(b *demand.Budget) { b.Release(1, 0) }},
		{"release of more bytes", func(b *demand.Budget) { b.TryAcquire(1, 1); b.Release(1, 2) }},
		{"negative try", func(b *demand.Budget) { b.TryAcquire(-1, 0) }},
		{"negative acquire", func(b *demand.Budget) { _ = b.Acquire(context.Background(), -1, 0) }},
		{"negative release", func(b *demand.Budget) { b.Release(-1, 0) }},
	} {
		for _, limit := range []demand.BudgetConfig{{Events: 5, Bytes: 5}, {Events: 5}} {
			if limit.Bytes == 0 && strings.Contains(c.name, "bytes") {
				continue // bytes do not count without a limit
			}
			t.Run(c.name, func(t *testing.T) {
				defer func() {
					if s, _ := recover().(string); !strings.HasPrefix(s, "demand: ") {
						t.Errorf("limit %+v: panic %q, want one that begins with the package", limit, s)
					}
				}()
				c.call(newBudget(t, limit))
			})
		}
	}
}

// Numbers that wrap when they are added must not pass for small ones.
func TestHugeReleasePanicsAndChangesNothing(t *testing.T) {
	const most = math.MaxInt >> 1 // of events, on 64 bits
	for _, limit := range []demand.BudgetConfig{{Events: 5}, {Events: most}, {Events: 5, Bytes: 5}, {Events: most, Bytes: math.MaxInt64}} {
		for _, events := range []int{most, most + 1, math.MaxInt} {
			b := newBudget(t, limit)
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("limit %+v: release of %d events that nobody acquired did not panic", limit, events)
					}
				}()
				b.Release(events, penstock.Bytes(events))
			}()
			if free, bytes := b.Available(); free != limit.Events || bytes != limit.Bytes {
				t.Errorf("limit %+v: %d events and %v free after the panic", limit, free, bytes)
			}
		}
	}
}

func TestBudgetConfigNamesTheBadField(t *testing.T) {
	for field, c := range map[string]demand.BudgetConfig{"Events": {Events: -1}, "Bytes": {Bytes: -1}} {
		_, err := demand.NewBudget(c)
		var f *penstock.FieldError
		if !errors.Is(err, penstock.ErrInvalid) || !errors.As(err, &f) || f.Field != field {
			t.Errorf("%+v: %v, want ErrInvalid with field %s", c, err, field)
		}
	}
}

// dotnet/runtime#37671 and #761: a bounded channel lost values and kept
// waiters when a wait was cancelled.
func TestCancelsLeaveNoWaiterAndLoseNoCapacity(t *testing.T) {
	const capacity, rounds, callers = 3, 25_000, 4
	b := newBudget(t, demand.BudgetConfig{Events: capacity})
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				n := 1 + (i+caller)%capacity
				stop := make(chan struct{})
				go func() { // ends at once; waited for on stop
					defer close(stop)
					cancel()
				}()
				if b.Acquire(ctx, n, 0) == nil {
					b.Release(n, 0)
				}
				<-stop
			}
		})
	}
	wg.Wait()
	if b.Waiting() != 0 {
		t.Fatalf("%d waiting after %d cancels, want 0", b.Waiting(), rounds*callers)
	}
	if events, _ := b.Available(); events != capacity {
		t.Fatalf("%d available, want %d", events, capacity)
	}
	if !b.TryAcquire(capacity, 0) {
		t.Fatal("the whole capacity was refused")
	}
}

// Producers acquire, consumers commit by a counter that Refill reads; nobody
// may sleep for ever and the capacity may never be exceeded (FM-65). A lost
// wake-up shows as a test that does not end.
func TestLazyRefillLosesNoWakeUp_FM65(t *testing.T) {
	const capacity, producers, each = 7, 4, 20_000
	g, b := newGroups(t, capacity, 1)
	var held atomic.Int64
	produced := make(chan int, 64)
	var producing, consuming sync.WaitGroup
	for p := range producers {
		producing.Go(func() {
			for i := range each {
				n := 1 + (i+p)%3
				if err := b.Acquire(context.Background(), n, 0); err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				if h := held.Add(int64(n)); h > capacity {
					t.Errorf("%d held of %d", h, capacity)
				}
				produced <- n
			}
		})
	}
	for range 2 {
		consuming.Go(func() {
			for n := range produced {
				held.Add(int64(-n))
				g.advance(b, 0, n)
			}
		})
	}
	producing.Wait()
	close(produced)
	consuming.Wait()
	if b.Waiting() != 0 {
		t.Fatalf("%d waiting, want 0", b.Waiting())
	}
	if events, _ := b.Available(); events != capacity {
		t.Fatalf("%d available, want %d", events, capacity)
	}
}
