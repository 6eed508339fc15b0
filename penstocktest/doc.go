// Package penstocktest holds suites that implementations of the module's
// contracts must pass.
//
// A suite is a function that takes a *testing.T and a way to make what it
// tests; it runs subtests named after what they show:
//
//	func TestMyAdapter(t *testing.T) {
//	    penstocktest.Adapter(t, func(t *testing.T, queues int) stream.Factory { return newFactory(t, queues) })
//	}
//
// The suites use real time where they wait for an implementation, with a
// guard of ten seconds, so they also run against queues outside the process.
package penstocktest
