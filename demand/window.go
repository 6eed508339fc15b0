package demand

import (
	"fmt"

	"github.com/penstock/penstock"
)

// DefaultMax is the demand of a subscription that says nothing else.
const DefaultMax = 1000

// DefaultMin returns the min that goes with max when only max was given: three
// quarters of it, rounded down. It is below max for every max of at least 1,
// so that a small max alone is always valid.
func DefaultMin(demandMax int) int {
	return demandMax/4*3 + demandMax%4*3/4
}

// Window is the demand of one subscription, seen from the receiver. Open
// demand is the number of events asked for and not yet processed; it starts at
// max, each processed chunk lowers it, and when it has fallen to min or below,
// the receiver asks for as many as bring it back to max.
//
// A Window only counts. It is not safe for concurrent use. The zero Window is
// not usable: make one with [NewWindow].
//
// Invariants: 0 <= min < max and 0 <= open <= max. The sum of all asks minus
// the sum of all processed events is open, as long as the sender keeps within
// what it was asked for.
type Window struct {
	demandMax, demandMin int
	open                 int
}

// NewWindow returns a window that has asked for nothing yet. The error matches
// [penstock.ErrInvalid] and names both numbers unless 0 <= min < max.
// A min of 0 with a max of 1 is stop and wait. When only max is known, use
// [DefaultMin] for min.
func NewWindow(demandMax, demandMin int) (Window, error) {
	if demandMin < 0 || demandMin >= demandMax {
		return Window{}, &penstock.FieldError{
			Field:  "Demand",
			Reason: fmt.Sprintf("max %d, min %d: min must be at least 0 and below max", demandMax, demandMin),
		}
	}
	return Window{demandMax: demandMax, demandMin: demandMin}, nil
}

// Max returns the most events that are ever asked for and not yet processed.
func (w *Window) Max() int { return w.demandMax }

// Min returns the open demand at or below which the receiver asks again.
func (w *Window) Min() int { return w.demandMin }

// Open returns the number of events asked for and not yet processed, in
// [0, Max].
func (w *Window) Open() int { return w.open }

// Start returns the first ask of a subscription, which is max, and opens the
// window. Called again, for a sender that has replaced the first one and knows
// nothing of earlier asks, it starts the cycle anew.
func (w *Window) Start() int {
	w.open = w.demandMax
	return w.demandMax
}

// Chunk returns how many of n delivered events to process in the next call:
// max - min, or n when that is less. It is 0 only when n is not
// positive. Each delivery is cut on its own: a chunk never joins two.
func (w *Window) Chunk(n int) int {
	return max(0, min(n, w.demandMax-w.demandMin))
}

// Took records that n events were processed and returns how many to ask for
// now: 0 while open demand is above min, else the whole gap up to max, and
// open demand is max again. Events beyond the open demand,
// which only a sender that breaks the rule delivers, do not make it negative.
// Call it after every chunk, not once per delivery, so that the
// sender can work on the new ask while the receiver processes the rest.
// A negative n counts as 0.
func (w *Window) Took(n int) (ask int) {
	w.open -= min(max(n, 0), w.open)
	if w.open > w.demandMin {
		return 0
	}
	ask = w.demandMax - w.open
	w.open = w.demandMax
	return ask
}
