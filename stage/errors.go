package stage

import (
	"errors"
	"fmt"

	"github.com/penstock/penstock"
)

// Done is returned by a callback to end its stage normally. What the callback
// emitted before goes out first, and so does everything that the stage still
// holds; then the stages after it see a normal end.
//
//lint:ignore ST1012 a normal end reads as one
var Done = errors.New("done")

// Errors of a graph that cannot start. All match [penstock.ErrInvalid].
var (
	// ErrInvalidDemand: not 0 <= min < max. The error returned carries both
	// numbers.
	ErrInvalidDemand = fmt.Errorf("%w demand", penstock.ErrInvalid)
	// ErrAlreadySubscribed: the same consumer was connected to the same
	// producer twice.
	ErrAlreadySubscribed = fmt.Errorf("%w: already subscribed", penstock.ErrInvalid)
	// ErrSelfSubscription: a gate was connected to itself.
	ErrSelfSubscription = fmt.Errorf("%w: self subscription", penstock.ErrInvalid)
	// ErrCycle: the edges form a circle, in which everybody could wait for
	// everybody.
	ErrCycle = fmt.Errorf("%w: cycle", penstock.ErrInvalid)
)

// errAborted stands for a nil error given to Abort.
var errAborted = errors.New("aborted")

// errNoConsumers ends the callbacks' context when no sink is left: whatever
// they still wait for could not be delivered.
var errNoConsumers = errors.New("no sink is left")
