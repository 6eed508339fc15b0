package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
)

// ErrUnsafeDir means that others could write to the data directory.
var ErrUnsafeDir = errors.New("others can write to it")

var errAtOnce = errors.New("ended at once, without waiting for anything")

// Result is what a run came to.
type Result struct {
	judge.Verdict
	Faults      []string // why the run is not good; nil = good
	BadInput    bool     // a line of the input, or its keys, are the first of Faults
	Left        string   // what was not handled, in words; "" = nothing, and nobody interrupted it
	Foreign     uint64   // reports of events that an earlier run or another producer sent
	Node        error    // a *NodeError when the node ended by itself; nil = it did not
	Interrupted bool     // ctx ended before the run had done what was asked of it
}

// run is one run.
type run struct {
	config   Config
	id       string
	dir      string // where data and journal are
	temp     bool   // dir goes away at the end
	record   *record
	hub      *hub
	child    *child
	producer *producer
	far      *far
	watcher  *watcher
	screen   *screen

	failed  context.Context // ends with the first failure of a part, as its cause
	fail    context.CancelCauseFunc
	seconds float64 // for which events were produced
	early   error   // why the input ended before its time
}

// Run runs the demo. When ctx ends it stops producing, drains, and judges what
// was done so far; when c.Now is closed it does not even drain. The error is nil when there is a judgement, good or not. It
// matches [penstock.ErrInvalid] for a bad Config and is a *[NodeError] when
// the node did not start.
func Run(ctx context.Context, c Config) (Result, error) {
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	r := &run{config: c, id: newRunID(), screen: newScreen(c.Out)}
	r.failed, r.fail = context.WithCancelCause(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer r.fail(nil)
	wg.Go(func() { // ends with Now or with failed, which Run ends; waited for above
		select {
		case <-c.Now:
			r.fail(errAtOnce)
		case <-r.failed.Done():
		}
	})
	_, _ = fmt.Fprintf(r.screen, "demo: seed %d\n", c.Seed)
	if err := r.prepare(); err != nil {
		return Result{}, errors.Join(err, r.cleanUp())
	}
	result, err := r.perform(ctx)
	return result, errors.Join(err, r.cleanUp())
}

func newRunID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// prepare makes the directory, the journal, the hub and the parts.
func (r *run) prepare() error {
	if err := r.makeDir(); err != nil {
		return err
	}
	var err error
	if r.record, err = newRecord(filepath.Join(r.dir, "journal-"+r.id+".ndjson"), wire.Groups); err != nil {
		return err
	}
	secret := newRunID() + newRunID() + newRunID()
	if r.hub, err = startHub(r.id, secret, r.config.Seed, r.record); err != nil {
		return err
	}
	r.child = newChild(r.config.Command, wire.NodeConfig{
		Run: r.id, Dir: filepath.Join(r.dir, "data"), Log: filepath.Join(r.dir, "node.log"), Durability: r.config.Durability.String(),
		Partitions: partitions, Capacity: r.config.capacity(), SlowRate: r.config.Rate * slowShare,
		DriverURL: r.hub.url, Secret: secret, Drain: nodeDrain,
	}, r.screen, r.fail)
	if r.producer, err = newProducer(&r.config, r.id, r.record, r.child.wait); err != nil {
		return err
	}
	if r.far, err = newFar(r.id, secret, r.record, &r.hub.foreign, r.screen, r.child.where); err != nil {
		return err
	}
	r.watcher = newWatcher(r.child, r.record, r.screen, r.producer.full.Load)
	return nil
}

func (r *run) makeDir() (err error) {
	if r.config.Dir == "" {
		r.temp = true
		r.dir, err = os.MkdirTemp("", "penstock-demo-") // 0700
		return err
	}
	if r.dir, err = filepath.Abs(r.config.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(r.dir)
	if err == nil && writableByOthers(info) {
		err = fmt.Errorf("data directory %s: %w", r.config.Dir, ErrUnsafeDir)
	}
	return err
}

func (r *run) cleanUp() error {
	var errs []error
	if r.hub != nil {
		r.hub.close()
	}
	if r.record != nil {
		errs = append(errs, r.record.close())
	}
	if r.temp && r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}

// perform is the run from the first node to the verdict.
func (r *run) perform(ctx context.Context) (Result, error) {
	if err := r.child.start(ctx); err != nil {
		r.child.stop(0, nil)
		return Result{}, err
	}
	r.header()
	nodes, noMore := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.watcher.run(nodes) }) // ends with nodes, after the last one has stopped
	wg.Go(func() {                         // the consumer across a connection: ends with nodes, too
		if err := r.far.consume(nodes); err != nil {
			r.fail(fmt.Errorf("group %s: %w", wire.Remote, err))
		}
	})
	r.work(ctx)
	r.watcher.setPhase(phaseStopping)
	clean := r.child.stop(stopTimeout, r.config.Now)
	noMore()
	wg.Wait()
	r.screen.end()
	return r.verdict(ctx, clean), nil
}

// work produces, crashes and drains. What goes wrong is in r.failed.
func (r *run) work(ctx context.Context) {
	limit, release := context.WithCancel(r.failed) // ends when the drain is over
	defer release()
	making, stopMaking := context.WithCancel(limit)
	defer stopMaking()
	defer context.AfterFunc(ctx, func() {
		_, _ = fmt.Fprintf(r.screen, "stopping: no more events are made; the groups have up to %v to finish. Once more ends at once.\n", r.config.Drain)
		stopMaking()
	})()
	if r.config.For > 0 {
		defer time.AfterFunc(r.config.For, stopMaking).Stop()
	}
	hurry := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // the crasher: ends when its kills are done, with limit, or with ctx; waited for below
		mayCrash, cancel := context.WithCancel(limit)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err := crasher(mayCrash, r.config.Seed, moments(r.config.Seed, r.config.Crash, r.span()), hurry, func(context.Context) error { return r.crash(limit) })
		if err != nil && !isGivenUp(err) {
			r.fail(err)
		}
	})
	// From here on the groups have the drain's time, however production ended.
	defer context.AfterFunc(making, func() {
		r.watcher.setPhase("no more events are made; draining")
		time.AfterFunc(r.config.Drain, release)
	})()
	start := time.Now()
	early, failed := r.producer.produce(making, limit)
	r.seconds = time.Since(start).Seconds()
	stopMaking()
	r.early = early
	if failed != nil && !isGivenUp(failed) {
		r.fail(failed)
	}
	close(hurry)
	wg.Wait()
	r.drain(limit)
}

// span is how long events will be produced; 0 = nobody knows.
func (r *run) span() time.Duration {
	byLines := time.Duration(float64(r.config.Lines) / r.config.Rate * float64(time.Second))
	switch {
	case r.config.For == 0:
		return byLines
	case byLines == 0:
		return r.config.For
	}
	return min(r.config.For, byLines)
}

// crash kills the node and starts it again.
func (r *run) crash(ctx context.Context) error {
	err := r.child.crash(ctx, func() { r.record.with((*judge.Ledger).Crash) })
	return errors.Join(err, r.record.note(entry{Op: "kill", Incarnation: r.child.config.Incarnation - 1}))
}

// drain waits until every group has settled every acknowledged event, or ctx
// ends.
func (r *run) drain(ctx context.Context) {
	beat := time.NewTicker(20 * time.Millisecond)
	defer beat.Stop()
	for r.left() > 0 {
		select {
		case <-beat.C:
		case <-ctx.Done():
			return
		}
	}
}

// left counts what the groups have not settled.
func (r *run) left() (n uint64) {
	r.record.with(func(l *judge.Ledger) {
		for _, g := range wire.Groups {
			n += l.Open(g)
		}
	})
	return n
}

// verdict judges.
func (r *run) verdict(ctx context.Context, clean bool) Result {
	var v judge.Verdict
	r.record.with(func(l *judge.Ledger) { v = l.Verdict() })
	v.EventsPerSec = tenths(float64(v.Produced) / max(r.seconds, 0.001))
	v.RSSMaxMiB = tenths(float64(max(ownRSS(), r.child.rss(), r.watcher.rss())) / (1 << 20))
	res := Result{Verdict: v, Faults: append(v.Faults(r.config.Crash), r.hub.faults()...), Left: r.leftInWords(v, ctx.Err() != nil), Foreign: r.hub.foreign.Load()}
	if r.early != nil {
		res.BadInput = errors.As(r.early, new(*inputError))
		res.Faults = append([]string{r.early.Error()}, res.Faults...)
	}
	if err := context.Cause(r.failed); err != nil {
		if node := new(NodeError); errors.As(err, &node) {
			res.Node = node
		}
		res.Faults = append([]string{err.Error()}, res.Faults...)
	} else if !clean {
		res.Faults = append(res.Faults, fmt.Sprintf("the node did not stop well within %v", stopTimeout))
	}
	asked := r.config.For > 0 || r.config.Input != nil || r.config.Crash > v.Crashes
	res.Interrupted = ctx.Err() != nil && asked
	return res
}

func tenths(v float64) float64 { return math.Round(v*10) / 10 }

// leftInWords says what is left and what will become of it. Whoever
// interrupted the run is told too when nothing is.
func (r *run) leftInWords(v judge.Verdict, interrupted bool) string {
	words := ""
	for _, name := range wire.Groups {
		if n := v.Groups[name].Lost; n > 0 {
			words += fmt.Sprintf("%s %s, ", name, count(float64(n)))
		}
	}
	switch {
	case words == "" && v.Unknown == 0 && interrupted:
		return "left: nothing; every acknowledged event was handled or dead-lettered"
	case words == "" && v.Unknown == 0:
		return ""
	case words == "":
		words = "no group is behind, "
	}
	words = "left: " + words[:len(words)-2]
	if v.Unknown > 0 {
		words += fmt.Sprintf("; %s events were not acknowledged", count(float64(v.Unknown)))
	}
	if r.temp {
		return words + "; the temporary directory is gone, with --dir DIR they would be replayed by the next run"
	}
	return words + "; they are kept and will be replayed by the next run with --dir " + r.config.Dir
}

// header says where things are.
func (r *run) header() {
	if r.config.Out.Text == nil {
		return
	}
	url, _ := r.child.wait(context.Background()) // it is ready
	where := "data in " + r.dir
	if r.temp {
		where = "data in a temporary directory, removed at the end"
	}
	_, _ = fmt.Fprintf(r.config.Out.Text, `penstock demo   run %s   durability %s   %s
  node     %s
  try      curl -d '{"hello":"water"}' -H 'Content-Type: application/json' %s%s%s
  groups   %s healthy, %s slow, %s to a partner that fails 1 call in %d and never takes 1 id in %d,
           %s a stream subscription, %s another one whose handler is in the driver, across a connection,
           %s a staged pipeline
  stop     Ctrl-C drains and judges; a second one ends at once
`, r.id, r.config.Durability, where, url, url, wire.PathTopics, wire.Topic,
		wire.Billing, wire.Emails, wire.Webhook, failOneIn, refuseOneIn, wire.Feed, wire.Remote, wire.Pipeline)
}
