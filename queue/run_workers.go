package queue

import (
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/settle"
)

// crew is the workers of a pusher, when there are several. The loop hands jobs
// out and settles them; a worker only calls user code.
//
// Invariants: flying is how many jobs are with workers, at most len(jobs), and
// as many of the two channels' places are free as may be needed: no send to
// them blocks.
type crew[T any] struct {
	jobs    []*job[T] // one per worker
	idle    []*job[T] // of jobs, those that are not with a worker
	flying  int
	hired   int          // workers that were started in this run
	todo    chan *job[T] // nil unless a run lasts
	landed  chan *job[T]
	workers sync.WaitGroup
}

// gather makes the crew ready for a run. A job that was not settled has ended
// the one before, and is forgotten.
func (c *crew[T]) gather(n int) {
	if n <= 1 {
		return
	}
	for _, j := range c.jobs {
		j.reset()
	}
	for len(c.jobs) < n {
		j := &job[T]{}
		c.jobs, c.idle = append(c.jobs, j), append(c.idle, j)
	}
	c.hired = 0
	c.todo, c.landed = make(chan *job[T], n), make(chan *job[T], n)
}

// free returns a job that can be made, nil when all workers are busy, and how
// many workers are not.
func (p *pusher[T]) free() (j *job[T], idle int) {
	if len(p.crew.jobs) == 0 {
		return &p.job, 1
	}
	if idle = len(p.crew.idle); idle == 0 {
		return nil, 0
	}
	return p.crew.idle[idle-1], idle
}

// launch hands a job, the one that free returned, to a worker.
func (p *pusher[T]) launch(j *job[T]) {
	c := &p.crew
	c.idle = c.idle[:len(c.idle)-1]
	c.flying++
	j.flying = true
	if c.hired < c.flying {
		c.hired++
		c.workers.Add(1)
		// A worker, of at most GroupConfig.Workers per consumer. Ended by
		// disband, which also waits for it.
		go p.work()
	}
	c.todo <- j
}

// work calls user code for one job after the other.
func (p *pusher[T]) work() {
	var j *job[T]
	defer func() {
		if j == nil {
			p.crew.workers.Done()
			return
		}
		p.land(j)   // first: who waits for the workers waits for this one until then
		go p.work() // takes the place of this goroutine, which user code ended
	}()
	for next := range p.crew.todo {
		j = next
		j.call(p.run)
		p.land(j)
		j = nil
	}
}

// land gives a job back to the loop, from a worker.
func (p *pusher[T]) land(j *job[T]) {
	p.crew.landed <- j
	p.consumer.waker.Ring()
}

// inHand reports whether a worker has a job of a lane.
func (p *pusher[T]) inHand(l *lane[T]) bool {
	for _, j := range p.crew.jobs {
		if j.flying && j.lane == l {
			return true
		}
	}
	return false
}

// settleLanded settles the jobs that have come back, and reports whether there
// were any.
func (p *pusher[T]) settleLanded() (any bool, err error) {
	for p.crew.flying > 0 {
		select {
		case j := <-p.crew.landed:
			any = true
			if err := p.settleFlown(j); err != nil {
				return any, err
			}
		default:
			return any, nil
		}
	}
	return any, nil
}

// disband waits for the jobs that workers have, settles them, and ends the
// workers.
func (p *pusher[T]) disband() (err error) {
	c := &p.crew
	if c.todo == nil {
		return nil
	}
	for c.flying > 0 {
		if failed := p.settleFlown(<-c.landed); err == nil {
			err = failed
		}
	}
	close(c.todo)
	c.workers.Wait()
	c.todo = nil
	return err
}

// dismiss is disband without a look at what became of the jobs.
func (p *pusher[T]) dismiss() {
	c := &p.crew
	if c.todo == nil {
		return
	}
	for ; c.flying > 0; c.flying-- {
		j := <-c.landed
		c.idle = append(c.idle, j)
		j.flying = false
		j.note.clear()
	}
	close(c.todo)
	c.workers.Wait()
	c.todo = nil
}

func (p *pusher[T]) settleFlown(j *job[T]) error {
	p.crew.flying--
	p.crew.idle = append(p.crew.idle, j)
	j.flying = false
	defer j.note.clear() // it runs no more, though its settlement may fail, or panic in a logger
	return p.settle(j)
}

// parts returns the spans of a job's tasks, in memory of its own.
func (j *job[T]) parts() []settle.Span {
	j.spans = j.spans[:0]
	for i := range j.tasks {
		j.spans = append(j.spans, j.tasks[i].span)
	}
	return j.spans
}

// outcomes appends the verdicts on a job some of whose events failed: those
// marked, or all when there is an error.
func (j *job[T]) outcomes(out []settle.Outcome, marked []penstock.Failure, err error) []settle.Outcome {
	verdict := settle.Retry
	if j.bad != nil && !j.span.DeadLetter && j.lane.group.setsAside() {
		verdict = settle.DeadLetter
	}
	switch {
	case err == nil:
		for _, f := range marked {
			at := j.offset(f.Index)
			out = append(out, settle.Outcome{From: at, To: at + 1, Verdict: settle.Retry, Cause: f.Err})
		}
	case len(j.tasks) > 0:
		for i := range j.tasks {
			s := &j.tasks[i].span
			out = append(out, settle.Outcome{From: s.From, To: s.To, Verdict: verdict, Cause: err})
		}
	default:
		out = append(out, settle.Outcome{From: j.span.From, To: j.span.To, Verdict: verdict, Cause: err})
	}
	return out
}

// failedEvents returns how many events the outcomes name.
func failedEvents(outcomes []settle.Outcome) (n int) {
	for _, o := range outcomes {
		n += int(o.To - o.From)
	}
	return n
}

// offset returns the offset of event i of the job.
func (j *job[T]) offset(i int) penstock.Offset {
	if j.delivery.Tokens != nil {
		return penstock.Offset(j.delivery.Tokens[i].Lo)
	}
	return j.delivery.First + penstock.Offset(i)
}
