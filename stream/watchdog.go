package stream

import (
	"fmt"
	"sync/atomic"
	"time"
)

// silence is what the watchdog knows of an agent that does not answer, or whose
// receiver does not return. It is written by the watchdog and read by who looks.
type silence struct{ found atomic.Pointer[silent] }

type silent struct {
	run   *run
	since time.Time
	what  string // that does not return
}

// agentCode is what the loop of an agent calls, so what keeps it from answering.
const agentCode = "agent (its cache has not returned)"

// words says for how long the agent has not answered.
func (s *silence) words(r *run, now time.Time) string {
	if f := s.found.Load(); f != nil && f.run == r {
		return fmt.Sprintf("no answer from the %s for %s", f.what, since(now, f.since))
	}
	return "no answer from the " + agentCode
}

// watchdog asks a running agent how it is, each half of Config.Silence, and
// names the one that has not answered for the whole of it: the agent itself, or
// its receiver, which must return soon. It runs on the goroutine that watches
// the agent, and costs the agent one question. It returns whether the agent has
// ended by itself.
//
// A drain has deadlines of its own, and is not watched.
func (m *manager) watchdog(a *agent, ended, unwatch <-chan struct{}) bool {
	r, limit := a.last(), m.provider.config.Silence
	for {
		pause := time.NewTimer(limit / 2)
		select {
		case <-pause.C:
		case <-ended:
			pause.Stop()
			return true
		case <-unwatch:
			pause.Stop()
			return false
		}
		if over, byItself := a.listen(r, limit, ended, unwatch); over {
			return byItself
		}
	}
}

// call is what the receiver of an agent is at.
type call struct {
	what  string
	since time.Time
}

// listen asks once, and says whether the watch is over and whether that is
// because the agent has ended by itself.
func (a *agent) listen(r *run, limit time.Duration, ended, unwatch <-chan struct{}) (over, byItself bool) {
	asked, answer := time.Now(), make(chan call, 1)
	question := func() {
		what, since := r.call()
		answer <- call{what, since}
	}
	mail, late := r.mail, time.NewTimer(limit)
	defer late.Stop()
	for {
		select {
		case mail <- question:
			mail = nil
		case c := <-answer:
			if c.what != "" && time.Since(c.since) >= limit {
				a.fallSilent(&silent{run: r, since: c.since, what: "receiver (" + c.what + " has not returned)"})
			} else {
				a.answers()
			}
			return false, false
		case <-late.C:
			a.fallSilent(&silent{run: r, since: asked, what: agentCode})
		case <-ended:
			a.silence.found.Store(nil)
			return true, true
		case <-unwatch:
			a.silence.found.Store(nil)
			return true, false
		}
	}
}

// fallSilent names an agent, once for each silence.
func (a *agent) fallSilent(s *silent) {
	if f := a.silence.found.Load(); f != nil && f.what == s.what {
		return
	}
	a.silence.found.Store(s)
	words := a.silence.words(s.run, time.Now())
	a.log.Error("agent is silent", "provider", a.provider, "queue", a.queue.String(), "reason", words)
	a.tell(AgentSilent, Diagnostic{Err: fmt.Errorf("agent of queue %s: %s", a.queue, words)})
}

func (a *agent) answers() {
	if f := a.silence.found.Swap(nil); f != nil {
		a.log.Warn("agent answers again", "provider", a.provider, "queue", a.queue.String(), "after", since(time.Now(), f.since))
		a.tell(AgentAnswers, Diagnostic{})
	}
}
