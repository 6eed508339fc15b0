package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/judge"
	"github.com/penstock/penstock/cmd/penstock/internal/wire"
	"github.com/penstock/penstock/demand"
)

const tick = 5 * time.Millisecond // of the generator's pace

// producer makes events at a rate and sends them over its lanes.
type producer struct {
	run    string
	rate   float64
	source source
	record *record
	held   *demand.Budget // memory of events between source and acknowledgement
	lanes  []*lane
	full   atomic.Bool // the node said so on its latest answer
	made   judge.ID
	client *http.Client
	read   chan sourced // of an input; nil when events are generated
}

func newProducer(c *Config, run string, rec *record, url func(context.Context) (string, error)) (*producer, error) {
	held, err := demand.NewBudget(demand.BudgetConfig{Bytes: heldBytes})
	if err != nil {
		return nil, err
	}
	p := &producer{run: run, rate: c.Rate, record: rec, held: held}
	p.source = newGenerator(c.Seed)
	if c.Input != nil {
		p.source = newInput(c.Input, c.Key)
	}
	p.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: lanes, DisableCompression: true}}
	for i := range lanes {
		p.lanes = append(p.lanes, &lane{
			number: i + 1, queue: make(chan item, 4*maxRequest), record: rec, client: p.client, url: url,
			done: func(bytes int) { held.Release(0, penstock.Bytes(bytes)) },
			full: p.full.Store,
		})
	}
	return p, nil
}

// produce makes events until making ends or the source does, then waits until
// every one is acknowledged, or giveUp ends: what is unanswered then stays
// unknown. early is why the source ended before its time; what was made before
// is produced all the same. failed is why the lanes could not go on.
func (p *producer) produce(making, giveUp context.Context) (early, failed error) {
	giveUp, stop := context.WithCancelCause(giveUp)
	defer stop(nil)
	var wg sync.WaitGroup
	for _, l := range p.lanes {
		// A lane ends when generate has closed its queue, or with giveUp; the wait below is for it.
		wg.Go(func() {
			if err := l.run(giveUp); err != nil {
				stop(err)
			}
		})
	}
	making, cancel := context.WithCancel(making)
	defer context.AfterFunc(giveUp, cancel)()
	defer cancel()
	early = p.generate(making)
	for _, l := range p.lanes {
		close(l.queue)
	}
	wg.Wait()
	p.client.CloseIdleConnections()
	return early, context.Cause(giveUp)
}

// generate makes events at the rate until ctx or the source ends; both are a
// good end. When the lanes do not keep up it waits, and makes up for it later.
func (p *producer) generate(ctx context.Context) error {
	if _, ok := p.source.(*input); ok {
		p.read = make(chan sourced, 64)
		// The reader ends with the input or ctx. Nobody waits for it: it may
		// stay in a read of a terminal or a pipe until the process ends.
		go reader(ctx, p.source, p.read)
	}
	start := time.Now()
	beat := time.NewTicker(tick)
	defer beat.Stop()
	for {
		due := p.rate * time.Since(start).Seconds()
		for float64(p.made) < due {
			err := p.one(ctx)
			if err == io.EOF || err != nil && ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
		}
		select {
		case <-beat.C:
		case <-ctx.Done():
			return nil
		}
	}
}

var errTooMany = errors.New("more events or keys than one run can judge")

// one makes one event and hands it to the lane of its key.
func (p *producer) one(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if p.made >= judge.MaxEvents {
		return fmt.Errorf("%w: the limit is %d events", errTooMany, judge.MaxEvents)
	}
	key, data, err := p.next(ctx)
	if err != nil {
		return err
	}
	it, err := p.item(key, data)
	if err != nil {
		return err
	}
	l := p.lanes[p.made%lanes]
	if key != "" {
		l = p.lanes[penstock.HashKey(key)%lanes]
	}
	if err := p.held.Acquire(ctx, 0, penstock.Bytes(len(it.line))); err != nil {
		return err
	}
	select {
	case l.queue <- it:
		p.made++
		return nil
	case <-ctx.Done():
		p.held.Release(0, penstock.Bytes(len(it.line)))
		return ctx.Err()
	}
}

// next takes an event from the source without staying in a read that does not
// return: a read of standard input cannot be interrupted.
func (p *producer) next(ctx context.Context) (key string, data []byte, err error) {
	if p.read == nil {
		return p.source.next()
	}
	select {
	case got := <-p.read:
		return got.key, got.data, got.err
	case <-ctx.Done():
		return "", nil, ctx.Err()
	}
}

// sourced is one result of a source.
type sourced struct {
	key  string
	data []byte
	err  error
}

// reader reads the source ahead, up to the channel's capacity, until it has
// sent an error or ctx ends.
func reader(ctx context.Context, s source, to chan<- sourced) {
	for {
		var got sourced
		got.key, got.data, got.err = s.next()
		select {
		case to <- got:
			if got.err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// item gives the next event its id and its form on the wire:
// {"id":"RUN-N","key":"KEY","data":DATA} and a newline.
func (p *producer) item(key string, data []byte) (item, error) {
	it := item{id: p.made}
	ok := true
	p.record.with(func(l *judge.Ledger) { it.key, ok = l.KeyNumber(key) })
	if !ok {
		return it, fmt.Errorf("%w: the limit is %d keys", errTooMany, judge.MaxKeys)
	}
	id := wire.FormatID(p.run, uint32(it.id))
	if key == "" {
		key = id // a key of its own: any partition, and no order is asked of it
	}
	quoted, err := json.Marshal(key)
	if err != nil {
		return it, err
	}
	it.line = make([]byte, 0, len(data)+len(quoted)+len(id)+40)
	it.line = fmt.Appendf(it.line, `{"id":"%s","key":%s,"data":`, id, quoted)
	it.line = append(it.line, data...)
	it.line = append(it.line, '}', '\n')
	return it, nil
}
