package stream

import "github.com/penstock/penstock"

// progress is how far all subscriptions of a queue have come.
type progress struct {
	// certain is false when a position is not known; then nothing is reported.
	certain bool
	// bound is false when no subscription constrains the queue.
	bound bool
	// at is the token up to and including which everything was processed, or,
	// when bound is false, read. It is the zero token when nothing was.
	at penstock.Token
}

// progressView is a snapshot of what progress depends on. It holds the streams
// that could hold progress back; a stream whose subscriptions have all caught
// up stands at the end of what was read and is represented by quiet.
type progressView struct {
	uncertain bool           // a read's outcome is not known (OR-137)
	read      penstock.Token // of the newest container accounted for
	hasRead   bool
	quiet     bool // there are subscriptions that have caught up
	streams   []streamView
}

type streamView struct {
	registering bool
	subs        []subView
}

type subView struct {
	registered bool           // a handshake has completed
	unresolved bool           // a handshake is pending, or the last one failed
	caughtUp   bool           // nothing is outstanding for it
	safe       penstock.Token // otherwise: everything up to here was processed
	hasSafe    bool
}

// computeProgress is the minimum over all subscriptions of the position up to
// which nothing of their own stream is outstanding (OR-133 to OR-138, G-2). An
// idle subscription stands at the end of what was read, so that it does not
// hold the queue's checkpoint at its own last event. Nothing is certain while
// a stream is registering or a subscription has no known position.
func computeProgress(v progressView) progress {
	if v.uncertain {
		return progress{}
	}
	p := progress{certain: true, bound: v.quiet, at: v.read}
	for _, s := range v.streams {
		if s.registering {
			return progress{}
		}
		for _, sub := range s.subs {
			if !sub.registered || sub.unresolved {
				return progress{}
			}
			p.bound = true
			if sub.caughtUp {
				continue
			}
			if !sub.hasSafe {
				return progress{}
			}
			if sub.safe.Compare(p.at) < 0 {
				p.at = sub.safe
			}
		}
	}
	if p.bound && !v.hasRead {
		// Subscriptions exist, but nothing was read: there is no position yet.
		return progress{}
	}
	return p
}
