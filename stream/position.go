package stream

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock"
)

// PositionKind says how a [Position] is meant.
type PositionKind uint8

// Kinds of positions (G-3). They mean the same for every cache.
const (
	// PositionNone asks for nothing: an attached subscription stays where it
	// is, a new one starts as with PositionLatest.
	PositionNone PositionKind = iota
	// PositionLatest is strictly after everything that the agent had read when
	// it was told of the subscription. A subscription that the agent finds
	// when a stream becomes active starts with the container that made it
	// active.
	PositionLatest
	// PositionEarliest is the earliest container that the provider keeps: the
	// first one above its checkpoint.
	PositionEarliest
	// PositionAt is the container with the token, or the next one.
	PositionAt
	// PositionAfter is the first container strictly after the token.
	PositionAfter
	// PositionResume says that the consumer has settled everything up to the
	// token, without asking for it: an attached subscription stays where it
	// is, a new one starts as with PositionNone, but never at or below the
	// token. It is never refused. Answering it spares a consumer repetitions
	// when an agent has begun again at its checkpoint.
	PositionResume
	// PositionAtTime is the first container that the queue took in at or after
	// the time; see [AtTime].
	PositionAtTime
)

var positionNames = [...]string{"none", "latest", "earliest", "at", "after", "resume after", "at time"}

// Position is a place in the containers of one stream. The zero Position asks
// for nothing.
type Position struct {
	Kind  PositionKind
	Token penstock.Token // for PositionAt, PositionAfter and PositionResume
	Time  time.Time      // for PositionAtTime
}

// String returns the position in words.
func (p Position) String() string {
	if int(p.Kind) >= len(positionNames) {
		return fmt.Sprintf("position(%d)", uint8(p.Kind))
	}
	if p.Kind == PositionAtTime {
		return positionNames[p.Kind] + " " + p.Time.UTC().Format(time.RFC3339Nano)
	}
	if p.Kind >= PositionAt {
		return positionNames[p.Kind] + " " + p.Token.String()
	}
	return positionNames[p.Kind]
}

// containerToken drops the index of the event: caches and cursors count containers.
func containerToken(t penstock.Token) penstock.Token {
	t.Index = 0
	return t
}

// through returns a token that stands for all events of a container: of one
// that is delivered again in part, the last item need not be the last event.
func through(t penstock.Token) penstock.Token {
	t.Index = math.MaxUint32
	return t
}

// passed is what a subscription that was placed at p, and given nothing since,
// has: everything before p, as far as that can be told.
func (p Position) passed() Position {
	t := p.Token
	switch {
	case p.Kind == PositionAfter:
	case p.Kind != PositionAt || t.Hi == 0 && t.Lo == 0:
		return Position{}
	case t.Lo > 0:
		t.Lo--
	default:
		t.Hi, t.Lo = t.Hi-1, math.MaxUint64
	}
	return Position{Kind: PositionResume, Token: through(t)}
}

// CacheMissError says which position was asked for and what is kept. It
// matches [ErrCacheMiss].
type CacheMissError struct {
	Stream    penstock.StreamID
	Requested penstock.Token
	Time      time.Time      // requested instead of a token; else zero
	Low       penstock.Token // oldest container kept, or the checkpoint
	High      penstock.Token // newest container kept
	// Checkpoint says that Low is the checkpoint of the queue: what is at or
	// below it cannot be asked for again, also while the cache has it (ADR 0025).
	Checkpoint bool
}

func (e *CacheMissError) Error() string {
	what := "position " + e.Requested.String()
	if !e.Time.IsZero() {
		what = "what came at " + e.Time.UTC().Format(time.RFC3339Nano)
	}
	if e.Checkpoint {
		return fmt.Sprintf("stream %s: %s cannot be asked for: only what lies above the checkpoint of its queue can, which is at %s", e.Stream, what, e.Low)
	}
	return fmt.Sprintf("stream %s: %s is no longer kept; kept are %s to %s", e.Stream, what, e.Low, e.High)
}

// Is reports whether target is ErrCacheMiss.
func (e *CacheMissError) Is(target error) bool { return target == ErrCacheMiss }
