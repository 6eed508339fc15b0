package stage

import (
	"context"
	"runtime"
)

// A node is a stage as its executor sees it.
type node interface {
	common() *base
	// begin tells the hooks of the declared subscriptions. It runs once, before
	// any turn.
	begin()
	// turn does a bounded amount of work and reports whether there was any. It
	// is called again at once if so, and after the next ring if not.
	turn(ctx context.Context) (progress bool)
	// snapshot reads the counters; any goroutine may call it.
	snapshot() Stats
}

// yields is how often an executor lets others run before it parks: a hand-over
// by the scheduler costs less than parking and being woken.
const yields = 4

// An executor runs the turns of one stage and of the helpers fused with it, in
// one goroutine. Fusion is nothing but sharing an executor: edges, wants and
// chunks stay what they are (ADR 0009, 0023).
type executor struct {
	nodes []node // in the direction of flow
	bell  *doorbell
	again func() // continues run in a new goroutine
	armed bool
	live  int
	begun int // nodes whose begin was called
}

func (x *executor) add(n node) {
	x.nodes = append(x.nodes, n)
	x.live++
}

// run returns when every stage of the executor has ended.
func (x *executor) run() {
	defer func() {
		if x.live > 0 { // user code called runtime.Goexit: its stage has failed, the others go on
			x.again()
		}
	}()
	x.disarm() // armed only after a Goexit
	for x.begun < len(x.nodes) {
		x.begun++
		x.nodes[x.begun-1].begin()
	}
	for x.live > 0 {
		if x.turn() || x.yield() {
			continue
		}
		x.armed = true
		x.bell.arm()
		if x.turn() || x.live == 0 {
			x.disarm()
			continue
		}
		x.bell.wait()
		x.armed = false
	}
}

func (x *executor) disarm() {
	if x.armed {
		x.armed = false
		x.bell.disarm()
	}
}

// turn gives every stage a turn, those furthest down first: they make room for
// the others.
func (x *executor) turn() (progress bool) {
	for i := len(x.nodes) - 1; i >= 0; i-- {
		n := x.nodes[i]
		b := n.common()
		if b.phase == ended {
			continue
		}
		if ctl := b.ctl.Load(); ctl&(ctlErrand|ctlMail) != 0 {
			if ctl&ctlErrand != 0 {
				b.runErrands()
				progress = true
			}
			if ctl&ctlMail != 0 && b.readMail(ctl) {
				progress = true
			}
		}
		if n.turn(b.ctx) {
			progress = true
		}
		if b.phase == ended {
			x.live--
		}
	}
	return progress
}

func (x *executor) yield() (progress bool) {
	for range yields {
		runtime.Gosched()
		if x.turn() {
			return true
		}
	}
	return false
}
