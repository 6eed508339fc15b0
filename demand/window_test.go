package demand_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/demand"
)

func newWindow(t testing.TB, demandMax, demandMin int) *demand.Window {
	t.Helper()
	w, err := demand.NewWindow(demandMax, demandMin)
	if err != nil {
		t.Fatal(err)
	}
	return &w
}

// deliver processes one delivery chunk by chunk and returns the chunks and the
// asks made after them.
func deliver(w *demand.Window, n int) (chunks, asks []int) {
	for n > 0 {
		c := w.Chunk(n)
		n -= c
		chunks = append(chunks, c)
		if ask := w.Took(c); ask > 0 {
			asks = append(asks, ask)
		}
	}
	return chunks, asks
}

// The four numbered steps of "The demand cycle".
func TestWindowCycleWithDefaults(t *testing.T) {
	w := newWindow(t, demand.DefaultMax, demand.DefaultMin(demand.DefaultMax))
	if got := w.Start(); got != 1000 {
		t.Fatalf("first ask %d, want 1000", got)
	}
	if got := w.Chunk(1000); got != 250 {
		t.Fatalf("chunk %d, want 250", got)
	}
	if got := w.Took(250); got != 250 {
		t.Fatalf("after the first chunk asked %d, want 250", got)
	}
	if w.Open() != 1000 {
		t.Fatalf("open %d, want 1000", w.Open())
	}
	chunks, asks := deliver(w, 750)
	if want := []int{250, 250, 250}; !slices.Equal(chunks, want) || !slices.Equal(asks, want) {
		t.Fatalf("rest: chunks %v asks %v, want both %v", chunks, asks, want)
	}
}

func TestWindowAsksForTheWholeGap(t *testing.T) {
	w := newWindow(t, 1000, 750)
	w.Start()
	var asks []int
	for range 3 {
		_, a := deliver(w, 100)
		asks = append(asks, a...)
	}
	if want := []int{300}; !slices.Equal(asks, want) {
		t.Fatalf("asks after three deliveries of 100: %v, want %v", asks, want)
	}
}

func TestWindowCutsEachDelivery(t *testing.T) {
	for _, c := range []struct {
		name                 string
		demandMax, demandMin int
		delivery             int
		chunks, asks         []int
	}{
		{"one chunk", 10, 5, 5, []int{5}, []int{5}},
		{"short last chunk", 10, 5, 7, []int{5, 2}, []int{5}},
		{"stop and wait", 1, 0, 1, []int{1}, []int{1}},
		{"min 0", 4, 0, 4, []int{4}, []int{4}},
		{"chunks of one", 4, 3, 4, []int{1, 1, 1, 1}, []int{1, 1, 1, 1}},
		{"nothing", 10, 5, 0, nil, nil},
		{"more than asked", 2, 1, 5, []int{1, 1, 1, 1, 1}, []int{1, 1, 1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWindow(t, c.demandMax, c.demandMin)
			w.Start()
			chunks, asks := deliver(w, c.delivery)
			if !slices.Equal(chunks, c.chunks) || !slices.Equal(asks, c.asks) {
				t.Fatalf("chunks %v asks %v, want %v and %v", chunks, asks, c.chunks, c.asks)
			}
		})
	}
}

func TestWindowRejectsBadDemand(t *testing.T) {
	for _, c := range [][2]int{{0, 0}, {1, 1}, {10, 10}, {10, 11}, {10, -1}, {-1, -2}, {0, -1}, {math.MinInt, math.MaxInt}} {
		_, err := demand.NewWindow(c[0], c[1])
		if !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("max %d min %d: %v, want ErrInvalid", c[0], c[1], err)
		}
	}
	_, err := demand.NewWindow(10, 750)
	if s := err.Error(); !strings.Contains(s, "10") || !strings.Contains(s, "750") {
		t.Errorf("error %q does not name both numbers", s)
	}
}

func TestDefaultMinIsThreeQuartersAndBelowMax(t *testing.T) {
	for _, c := range [][2]int{{1, 0}, {2, 1}, {3, 2}, {4, 3}, {5, 3}, {10, 7}, {1000, 750}, {1001, 750}} {
		if got := demand.DefaultMin(c[0]); got != c[1] {
			t.Errorf("DefaultMin(%d) = %d, want %d", c[0], got, c[1])
		}
	}
	if got := demand.DefaultMin(math.MaxInt); got <= 0 || got >= math.MaxInt {
		t.Errorf("DefaultMin(MaxInt) = %d overflowed", got)
	}
}

func TestWindowTreatsNegativeAsNothing(t *testing.T) {
	w := newWindow(t, 10, 5)
	w.Start()
	if c, ask := w.Chunk(-3), w.Took(-3); c != 0 || ask != 0 || w.Open() != 10 {
		t.Fatalf("chunk %d, ask %d, open %d, want 0, 0, 10", c, ask, w.Open())
	}
}

func TestWindowStartsAnewForAnotherSender(t *testing.T) {
	w := newWindow(t, 10, 2)
	w.Start()
	w.Took(3)
	if got := w.Start(); got != 10 || w.Open() != 10 {
		t.Fatalf("second start asked %d with %d open, want 10 and 10", got, w.Open())
	}
}

func TestWindowDoesNotOverflow(t *testing.T) {
	w := newWindow(t, math.MaxInt, math.MaxInt-1)
	asked := w.Start()
	if got := w.Took(math.MaxInt); got != asked || w.Open() != math.MaxInt {
		t.Fatalf("asked %d with %d open, want MaxInt twice", got, w.Open())
	}
}

// An obedient sender never sees demand above max, and is always asked again
// before its demand is used up and everything was processed.
func TestWindowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		demandMax := rapid.IntRange(1, 50).Draw(t, "max")
		demandMin := rapid.IntRange(0, demandMax-1).Draw(t, "min")
		w, err := demand.NewWindow(demandMax, demandMin)
		if err != nil {
			t.Fatal(err)
		}
		asked, delivered, processed := w.Start(), 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "deliveries") {
			if asked == delivered {
				t.Fatalf("sender starves: asked %d, delivered %d, processed %d", asked, delivered, processed)
			}
			n := rapid.IntRange(1, asked-delivered).Draw(t, "n")
			delivered += n
			for n > 0 {
				c := w.Chunk(n)
				if c < 1 || c > demandMax-demandMin || (c < demandMax-demandMin && c != n) {
					t.Fatalf("chunk of %d from %d", c, n)
				}
				n -= c
				processed += c
				before := w.Open()
				ask := w.Took(c)
				if wantAsk := before-c <= demandMin; wantAsk != (ask > 0) {
					t.Fatalf("open %d - %d against min %d: asked %d", before, c, demandMin, ask)
				}
				asked += ask
				if open := asked - processed; open != w.Open() || open > demandMax || open <= demandMin {
					t.Fatalf("open %d (window says %d), want in (%d, %d]", open, w.Open(), demandMin, demandMax)
				}
			}
		}
	})
}
