// Package penstocktest helps to test what is built on the module: suites that
// implementations of its contracts must pass, and probes for stages.
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
//
// Stages are tested in testing/synctest bubbles ([Stages]), between a [Source]
// whose events the test writes and a [Consumer] that asks for what the test
// wants:
//
//	penstocktest.Stages(t, func(t *testing.T, g *stage.Graph) {
//	    in := penstocktest.NewSource[int](t, "in")
//	    out := penstocktest.NewConsumer[int](t, "out")
//	    stage.Connect(g, in, gate)
//	    stage.Connect(g, gate, out, stage.Manual())
//	    penstocktest.Start(t, g)
//	    in.Send(1, 2, 3)
//	    out.Ask(2)
//	    out.Expect(2, 4)
//	})
package penstocktest
