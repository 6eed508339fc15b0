package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/segfile"
)

// request is one slice of a request on its way to the disk: a frame for each
// partition that it touches.
type request struct{ parts []part }

type part struct {
	index   int // of the partition
	count   int
	bytes   penstock.Bytes // 0 where they are not counted
	frame   *segfile.Frame // nil when it was handed over
	receipt segfile.Receipt
	err     error
}

// drop gives back the frames that were not handed over.
func (r *request) drop() {
	for i := range r.parts {
		if f := r.parts[i].frame; f != nil {
			f.Release()
			r.parts[i].frame = nil
		}
	}
}

func (r *request) reset() {
	clear(r.parts)
	r.parts = r.parts[:0]
}

// encode fills the request. Every record of a frame is an envelope when one of
// its events has more than its value, else none is, and a bare value costs its
// payload and four bytes.
func (e *fileEngine[T]) encode(r *request, values []T, metas []penstock.Meta, m *measured, pl *plan) error {
	for index := range e.topic.parts {
		picked := pl.of(index)
		if len(picked) == 0 {
			continue
		}
		r.parts = append(r.parts, part{index: index, count: len(picked), bytes: m.picked(picked), frame: segfile.NewFrame(len(picked))})
		if err := e.encodePart(r.parts[len(r.parts)-1].frame, values, metas, m, picked); err != nil {
			return err
		}
	}
	return nil
}

// place takes the turns of a round-robin request, once, and says where its
// frames go. Nothing of user code comes behind it.
func (e *fileEngine[T]) place(r *request, n int, m *measured, pl *plan) {
	t := e.topic
	if pl.turns && pl.first < 0 {
		pl.first = t.reserve(n)
		t.batches.Add(-1) // only memory needs to know how long a batch lasts
	}
	for i := range r.parts {
		p := &r.parts[i]
		picked := pl.of(p.index)
		p.index = (pl.first + p.index) % len(t.parts)
		if l := t.parts[p.index].ledger; l != nil {
			p.frame.OnAppended(enter(l, m.of(n), picked))
		}
	}
	slices.SortFunc(r.parts, func(a, b part) int { return a.index - b.index })
}

func (e *fileEngine[T]) encodePart(f *segfile.Frame, values []T, metas []penstock.Meta, m *measured, picked []int32) (err error) {
	defer e.caught(&err)
	enveloped := false
	if metas != nil {
		for _, i := range picked {
			enveloped = enveloped || !metas[i].IsBare()
		}
	}
	f.SetEnveloped(enveloped)
	latest := int64(0)
	for _, i := range picked {
		buf := f.Buffer()
		if enveloped {
			meta := &metas[i]
			if buf, err = penstock.AppendEnvelopeMeta(buf, meta); err != nil {
				return fmt.Errorf("event %d: %w", i, err)
			}
			if !meta.Time.IsZero() {
				latest = max(latest, meta.Time.UnixNano())
			}
		}
		if m != nil {
			buf = append(buf, m.encoded(int(i))...)
		} else if buf, err = e.codec.Append(buf, values[i]); err != nil {
			return fmt.Errorf("encode event %d: %w", i, err)
		}
		f.End(buf)
	}
	f.SetMaxTime(latest)
	return nil
}

// caught turns a panic of the codec into a [penstock.PanicError].
func (e *fileEngine[T]) caught(err *error) {
	if v := recover(); v != nil {
		*err = &penstock.PanicError{Where: "codec of topic " + e.topic.config.Name, Value: v, Stack: debug.Stack()}
	}
}

// asyncAppend is a slice that a [Receipt] stands for.
type asyncAppend struct {
	receipt *Receipt
	before  func(context.Context) error // of the slice before; nil for the first
	parts   []part

	mu   sync.Mutex
	done bool
	err  error
}

// wait blocks until the slice, and those before it, reached their level.
func (a *asyncAppend) wait(ctx context.Context) error {
	if a.before != nil {
		if err := a.before(ctx); err != nil {
			return err
		}
	}
	for i := range a.parts {
		p := &a.parts[i]
		select {
		case <-p.receipt.Done():
		default:
			select {
			case <-p.receipt.Done():
			case <-ctx.Done():
				return penstock.ContextError(ctx)
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.done {
		a.done = true
		a.collect()
	}
	return a.err
}

// collect notes where the events are. Every part has ended.
func (a *asyncAppend) collect() {
	var errs []error
	for i := range a.parts {
		p := &a.parts[i]
		first, err := p.receipt.Wait(context.Background())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		a.receipt.add(Part{Partition: p.index, First: first, Count: p.count})
	}
	a.err = errors.Join(errs...)
}

// keptCapacity is an error of an append of which n events were appended and
// will give their capacity back by commits.
type keptCapacity struct {
	n     int
	bytes penstock.Bytes
	err   error
}

func (e *keptCapacity) Error() string {
	return fmt.Sprintf("%d events of the request were appended: %v", e.n, e.err)
}
func (e *keptCapacity) Unwrap() error { return e.err }
