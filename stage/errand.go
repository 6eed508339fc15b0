package stage

import "sync"

// maxErrands bounds how many errands a stage runs between two turns, so that
// those who send them cannot keep it from its events.
const maxErrands = 64

// errands are what others want done on a stage's goroutine, one at a time and
// never beside a callback: subscribing, messages, timers. They are few; what
// happens per batch has shorter ways.
type errands struct {
	mu     sync.Mutex
	todo   []func()
	closed bool
}

// post has f run on the stage's goroutine, in the order of the posts of one
// goroutine. f looks at the phase itself: what was posted before the stage has
// ended runs in any case, in phase ended at the latest. It reports false, and
// f does not run, when the stage has ended. It never blocks.
func (b *base) post(f func()) bool {
	b.errands.mu.Lock()
	if b.errands.closed {
		b.errands.mu.Unlock()
		return false
	}
	b.errands.todo = append(b.errands.todo, f)
	b.errands.mu.Unlock()
	b.wake(ctlErrand)
	return true
}

// runErrands runs what is there, up to maxErrands.
func (b *base) runErrands() {
	for range maxErrands {
		b.ctl.And(^uint32(ctlErrand)) // before the look: a later post sets it again
		f := b.nextErrand(false)
		if f == nil {
			return
		}
		b.ctl.Or(ctlErrand) // also for the case that f never returns
		f()
	}
}

// closeErrands runs the errands that are left, and takes no more.
func (b *base) closeErrands() {
	for f := b.nextErrand(true); f != nil; f = b.nextErrand(true) {
		f()
	}
}

// nextErrand takes the first errand, nil when there is none: then no more are
// taken in if last says so.
func (b *base) nextErrand(last bool) (f func()) {
	b.errands.mu.Lock()
	defer b.errands.mu.Unlock()
	if len(b.errands.todo) == 0 {
		b.errands.closed = b.errands.closed || last
		b.errands.todo = nil
		return nil
	}
	f = b.errands.todo[0]
	b.errands.todo[0] = nil
	b.errands.todo = b.errands.todo[1:]
	return f
}

// readMail handles messages, unless the stage is to end at once.
func (b *base) readMail(ctl uint32) (progress bool) {
	if ctl&ctlQuit != 0 || b.paused != 0 || b.own && b.phase != running {
		return false
	}
	return b.mail.serve(b.ctx)
}

// closeMail lets no more messages in: the stage has begun to end.
func (b *base) closeMail() {
	if b.mail != nil {
		b.mail.close()
	}
}

// lastMail reports whether a stage that holds nothing any more has messages to
// handle before its end.
func (b *base) lastMail() bool {
	return b.mail != nil && b.mail.rest() && b.paused == 0 && !b.own && b.ctl.Load()&(ctlQuit|ctlExpired) == 0
}
