package stream

import (
	"context"
	"sync"

	"github.com/penstock/penstock"
)

// keyTurns lets one call at a time subscribe or unsubscribe a subscription: the
// consumer that is attached here and what the registry has change together.
// Calls for different subscriptions do not wait for each other.
//
// Invariants: a key has an entry while somebody has its turn or waits for it.
type keyTurns struct {
	mu   sync.Mutex
	keys map[consumerKey]*keyTurn
}

type keyTurn struct {
	taken chan struct{} // of capacity 1: to take the turn is to send
	users int           // who have it or wait for it
}

// enter waits for the turn of a key, or until ctx ends.
func (k *keyTurns) enter(ctx context.Context, key consumerKey) (leave func(), err error) {
	k.mu.Lock()
	t := k.keys[key]
	if t == nil {
		t = &keyTurn{taken: make(chan struct{}, 1)}
		if k.keys == nil {
			k.keys = map[consumerKey]*keyTurn{}
		}
		k.keys[key] = t
	}
	t.users++
	k.mu.Unlock()
	forget := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(k.keys, key)
		}
	}
	select {
	case t.taken <- struct{}{}: // also when ctx has ended: whoever is asked refuses
	default:
		select {
		case t.taken <- struct{}{}:
		case <-ctx.Done():
			forget()
			return nil, penstock.ContextError(ctx)
		}
	}
	return func() {
		<-t.taken
		forget()
	}, nil
}
