package stage

import (
	"slices"
	"time"
)

// A lane is the slots of one subscription: when to ask for how many. It only
// counts.
//
// Invariant: occupied + freed + what was asked for and has not come = max, and
// none of them is negative.
type lane struct {
	max, min int
	occupied int // slots with a child
	freed    int // slots that were freed and not asked for
}

// take gives a slot to an event that came.
func (l *lane) take() { l.occupied++ }

// free takes a slot back and returns how many events to ask for now: all that
// were freed, as soon as no more than min slots are occupied (ST-117).
func (l *lane) free() (ask int) {
	l.occupied--
	l.freed++
	if l.occupied > l.min {
		return 0
	}
	ask, l.freed = l.freed, 0
	return ask
}

// tolerance bounds restarts: at most most within the time within, which is
// half open: a restart that long ago counts no more.
//
// Invariant: recent is in order and has at most most elements.
type tolerance struct {
	most   int
	within time.Duration
	recent []time.Time
}

// allow reports whether a restart now is within the bound, and notes it then.
func (t *tolerance) allow(now time.Time) bool {
	t.recent = slices.DeleteFunc(t.recent, func(at time.Time) bool { return now.Sub(at) >= t.within })
	if len(t.recent) >= t.most {
		return false
	}
	t.recent = append(t.recent, now)
	return true
}

// A runEnd is how one run of a child ended.
type runEnd struct {
	started bool // its start had returned without an error
	told    bool // somebody had told it to stop
	err     error
}

// A fate is what becomes of a child whose run has ended.
type fate uint8

const (
	fulfilled fate = iota // it has done its work
	stopped               // it was told to stop before it had
	gaveUp                // it has failed, for good
	again                 // it runs once more, for the same event and in the same slot
	tooOften              // it has failed and may not run again: too many have
)

// judge decides about a child that has run 1 + restarts times. A start that
// fails the first time is the failure of its event, also where children are
// started again; a restart that fails is tried again (ST-118 to ST-120).
func judge(e runEnd, restarts int, restart Mode, t *tolerance, now time.Time) fate {
	switch {
	case e.err == nil:
		return fulfilled
	case e.told:
		return stopped
	case restart == Temporary || !e.started && restarts == 0:
		return gaveUp
	case t.allow(now):
		return again
	}
	return tooOften
}
