package penstocktest

import "testing"

// storeTest is a rule that every store of one kind keeps.
type storeTest[S any] struct {
	name string
	test func(t *testing.T, s S)
}

// testStore holds each test against a store of its own, which open returns, and
// restarted against one and the function that opens its place again.
func testStore[S any](t *testing.T, open func(t *testing.T) (s S, again func() S), restarted func(t *testing.T, s S, again func() S), tests []storeTest[S]) {
	for _, s := range tests {
		t.Run(s.name, func(t *testing.T) {
			store, _ := open(t)
			s.test(t, store)
		})
	}
	t.Run("OutlivesARestart", func(t *testing.T) {
		store, again := open(t)
		if again == nil {
			t.Log("the store ends with the process")
			return
		}
		restarted(t, store, again)
	})
}
