package queue

import (
	"context"

	"github.com/penstock/penstock"
)

// produceNext admits one event and appends it to the partition whose turn it
// is. While no batch is under way the turn alone keeps appends apart, because
// every round-robin append passes through it (BQ-57).
func (t *Topic[T]) produceNext(ctx context.Context, v T) error {
	t.turn.Lock()
	if t.credit > 0 {
		t.credit--
	} else if !t.spend() {
		t.turn.Unlock()
		if err := t.admit(ctx, 1, 0); err != nil {
			return err
		}
		t.turn.Lock()
	}
	p := t.next
	t.next = p.next
	switch {
	case t.joined:
		p.log.Put(v)
		t.turn.Publish()
	case t.batches.Load() == 0:
		p.log.Append(v)
		t.join()
		t.turn.Unlock()
	default:
		p.appendMu.Lock()
		p.log.Append(v)
		p.appendMu.Unlock()
		t.turn.Unlock()
	}
	p.notify()
	return nil
}

// join makes the turn publish single events when there were so many since the
// last batch that to visit every partition is no more than they have paid for.
// The caller holds the turn, and no batch is under way.
func (t *Topic[T]) join() {
	if t.calm++; t.calm < len(t.parts) {
		return
	}
	t.turn.Align(t.next.index, len(t.parts))
	for _, p := range t.parts {
		p.log.Join()
	}
	t.joined = true
}

// part ends that. The caller holds the turn.
func (t *Topic[T]) part() {
	if t.joined {
		for _, p := range t.parts {
			p.log.Part()
		}
	}
	t.joined, t.calm = false, 0
}

// reserve takes the turns of n events and returns the first (BQ-26). It is
// called after admission, so a refused batch moves nothing (BQ-27).
func (t *Topic[T]) reserve(n int) (first int) {
	t.turn.Lock()
	defer t.turn.Unlock()
	t.part()
	first = t.next.index
	t.next = t.parts[(first+n%len(t.parts))%len(t.parts)]
	t.batches.Add(1)
	return first
}

// appendRange appends a round-robin batch in memory: event i goes to partition
// (first+i) mod P, and each partition is visited once.
func (t *Topic[T]) appendRange(values []T, metas []penstock.Meta, m *measured, receipt *Receipt) {
	first := t.reserve(len(values))
	defer t.batches.Add(-1)
	parts := len(t.parts)
	for i := range min(parts, len(values)) {
		p := t.parts[(first+i)%parts]
		p.appendMu.Lock()
		if p.ledger != nil {
			p.ledger.addStrided(m.of(len(values)), i, parts)
		}
		at, n := p.log.AppendStrided(values, metas, i, parts)
		p.appendMu.Unlock()
		p.notify()
		receipt.add(Part{Partition: p.index, First: at, Count: n})
	}
}

// appendTurns appends a round-robin batch on disk. Its turns are taken when
// all of it is encoded ([fileEngine.place]): a codec that fails moves nothing.
func (t *Topic[T]) appendTurns(ctx context.Context, values []T, metas []penstock.Meta, m *measured, receipt *Receipt) error {
	pl := t.plans.Get().(*plan)
	defer t.plans.Put(pl)
	pl.begin(len(values), len(t.parts))
	pl.turns, pl.first = true, -1
	for i := range values {
		pl.set(i, i%len(t.parts))
	}
	pl.group()
	return t.disk.append(ctx, values, metas, m, pl, receipt)
}

// produceKeyed admits one event in memory and appends it to the partition that
// the router names.
func (t *Topic[T]) produceKeyed(ctx context.Context, v T) error {
	if t.budget != nil && !t.budget.TryAcquire(1, 0) {
		if err := t.admit(ctx, 1, 0); err != nil {
			return err
		}
	}
	return t.appendKeyed(v)
}

// appendKeyed appends one event in memory to the partition that the router
// names. The caller has admitted it.
func (t *Topic[T]) appendKeyed(v T) error {
	accepted := false
	if t.budget != nil {
		defer func() { // also when user code ends the goroutine (BQ-23)
			if !accepted {
				t.budget.Release(1, 0)
			}
		}()
	}
	index, err := t.route(v, "")
	if err != nil {
		return err
	}
	accepted = true
	p := t.parts[index]
	p.appendMu.Lock()
	p.log.Append(v)
	p.appendMu.Unlock()
	p.notify()
	return nil
}

// appendRouted routes the whole slice first, so that the appends cannot fail
// half-way (BQ-24), then appends it partition by partition.
func (t *Topic[T]) appendRouted(ctx context.Context, values []T, metas []penstock.Meta, m *measured, receipt *Receipt) error {
	if w, ok := t.config.Router.(wholeRouter); ok {
		return t.appendWhole(ctx, values, metas, m, w.turn(len(t.parts)), receipt)
	}
	pl := t.plans.Get().(*plan)
	defer t.plans.Put(pl)
	pl.begin(len(values), len(t.parts))
	for i := range values {
		key := ""
		if metas != nil {
			key = metas[i].Key
		}
		index, err := t.route(values[i], key)
		if err != nil {
			return err
		}
		pl.set(i, index)
	}
	pl.group()
	if t.disk != nil {
		return t.disk.append(ctx, values, metas, m, pl, receipt)
	}
	for index, p := range t.parts {
		picked := pl.of(index)
		if len(picked) == 0 {
			continue
		}
		p.appendMu.Lock()
		if p.ledger != nil {
			p.ledger.addPicked(m.of(len(values)), picked)
		}
		at, n := p.log.AppendPicked(values, metas, picked)
		p.appendMu.Unlock()
		p.notify()
		receipt.add(Part{Partition: index, First: at, Count: n})
	}
	return nil
}

// appendWhole appends a slice to one partition.
func (t *Topic[T]) appendWhole(ctx context.Context, values []T, metas []penstock.Meta, m *measured, index int, receipt *Receipt) error {
	if t.disk != nil {
		pl := t.plans.Get().(*plan)
		defer t.plans.Put(pl)
		pl.begin(len(values), len(t.parts))
		for i := range values {
			pl.set(i, index)
		}
		pl.group()
		return t.disk.append(ctx, values, metas, m, pl, receipt)
	}
	p := t.parts[index]
	p.appendMu.Lock()
	if p.ledger != nil {
		p.ledger.addStrided(m.of(len(values)), 0, 1)
	}
	at, n := p.log.AppendStrided(values, metas, 0, 1)
	p.appendMu.Unlock()
	p.notify()
	receipt.add(Part{Partition: index, First: at, Count: n})
	return nil
}
