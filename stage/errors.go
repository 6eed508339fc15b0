package stage

import (
	"context"
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

// Errors of subscriptions that cannot be, at the start of a graph or later. All
// match [penstock.ErrInvalid].
var (
	// ErrInvalidDemand: not 0 <= min < max. The error returned carries both
	// numbers.
	ErrInvalidDemand = fmt.Errorf("%w demand", penstock.ErrInvalid)
	// ErrAlreadySubscribed: the same consumer subscribed to the same producer,
	// and to the same partition of it, twice. The first subscription is as it
	// was.
	ErrAlreadySubscribed = fmt.Errorf("%w: already subscribed", penstock.ErrInvalid)
	// ErrSelfSubscription: a gate was connected to itself.
	ErrSelfSubscription = fmt.Errorf("%w: self subscription", penstock.ErrInvalid)
	// ErrCycle: the edges form a circle, in which everybody could wait for
	// everybody.
	ErrCycle = fmt.Errorf("%w: cycle", penstock.ErrInvalid)
	// ErrUnsupportedDemandMode: the consumer asks by rules of its own, and the
	// subscription was to be [Manual].
	ErrUnsupportedDemandMode = fmt.Errorf("%w: unsupported demand mode", penstock.ErrInvalid)
	// ErrAutomatic: Ask on a subscription that asks by itself.
	ErrAutomatic = fmt.Errorf("%w: the subscription is automatic", penstock.ErrInvalid)
)

// Errors of subscriptions between stages of which one does not run: its graph
// has not started, or the stage is ending or has ended. Both match
// [penstock.ErrClosed].
var (
	ErrProducerNotAlive = fmt.Errorf("producer not alive: %w", penstock.ErrClosed)
	ErrConsumerNotAlive = fmt.Errorf("consumer not alive: %w", penstock.ErrClosed)
)

// ErrStageNotAlive: a message to a mailbox that no stage has, or whose stage is
// ending or has ended. It matches [penstock.ErrClosed].
var ErrStageNotAlive = fmt.Errorf("stage not alive: %w", penstock.ErrClosed)

// ErrNameTaken: two mailboxes or names of a graph are called the same, or two
// stages claim one. It matches [penstock.ErrInvalid] and [penstock.ErrExists].
var ErrNameTaken = fmt.Errorf("%w: name taken: %w", penstock.ErrInvalid, penstock.ErrExists)

func errTaken(what, name string) error { return fmt.Errorf("%s %q: %w", what, name, ErrNameTaken) }

// ErrSubscribeTimeout: the producer did not answer in time, and the request was
// withdrawn. It matches context.DeadlineExceeded.
var ErrSubscribeTimeout = fmt.Errorf("subscribe: %w", context.DeadlineExceeded)

// ErrTooSlow: a broadcast has cut the subscription off, see [Slowest].
var ErrTooSlow = errors.New("too slow for its broadcast")

// Errors about the children of [Slots] and [Pool].
var (
	// ErrChildNotFound: no child has that number, or it has ended. It matches
	// [penstock.ErrInvalid].
	ErrChildNotFound = fmt.Errorf("%w: child not found", penstock.ErrInvalid)
	// ErrTerminated is the cause of a child's context when the child was told to
	// stop: by [Slots.Terminate], or because its stage ends.
	ErrTerminated = errors.New("told to stop")
	// ErrAbandoned: a child was told to stop and did not in time. Its goroutine
	// goes on, and nobody waits for it.
	ErrAbandoned = errors.New("abandoned: did not stop in time")
	// ErrChildTolerance: children had to be started again too often, see
	// [ChildTolerance].
	ErrChildTolerance = errors.New("children failed too often")
)

// errAborted stands for a nil error given to Abort.
var errAborted = errors.New("aborted")

// errGaveUp cuts short the drain of a graph in which a stage was given up.
var errGaveUp = errors.New("a stage was given up")

// errNoConsumers ends the callbacks' context when no sink is left: whatever
// they still wait for could not be delivered.
var errNoConsumers = errors.New("no sink is left")
