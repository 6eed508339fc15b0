package stage

import (
	"log/slog"
	"sync"
	"time"
)

// warnEvery is the shortest time between two default warnings of one stage: a
// log line per dropped event would be an outage of its own (ST-59).
const warnEvery = time.Second

// overflowLog is the default answer to dropped events: the first is logged at
// once, those that follow within a second are summed up in one line at its
// end, and so on. The numbers of all lines add up to the number of dropped
// events. Safe for concurrent use.
//
// Invariant: timer is not nil exactly while a second is running, and sum is 0
// otherwise.
type overflowLog struct {
	mu    sync.Mutex
	timer *time.Timer
	sum   int // dropped in this second and not logged yet
	write func(dropped int)
}

// add counts dropped events. It logs on the calling goroutine.
func (l *overflowLog) add(dropped int) {
	l.mu.Lock()
	first := l.timer == nil
	if first {
		l.timer = time.AfterFunc(warnEvery, l.tick)
	} else {
		l.sum += dropped
	}
	l.mu.Unlock()
	if first {
		l.write(dropped)
	}
}

func (l *overflowLog) tick() {
	l.mu.Lock()
	sum := l.sum
	l.sum = 0
	if l.timer != nil && sum > 0 {
		l.timer.Reset(warnEvery)
	} else {
		l.timer = nil
	}
	l.mu.Unlock()
	if sum > 0 {
		l.write(sum)
	}
}

// flush logs what was not logged yet and ends the running second.
func (l *overflowLog) flush() {
	l.mu.Lock()
	sum := l.sum
	l.sum = 0
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.mu.Unlock()
	if sum > 0 {
		l.write(sum)
	}
}

func (b *base) logger() *slog.Logger {
	if g := b.graph(); g != nil && g.log != nil {
		return g.log
	}
	return slog.Default()
}
