package stage

// The compiler carries the bodies of small functions of other packages, which
// callers inline, along with this package only if code of this package that is
// not generic uses them. Here one instance of everything on the short ways
// does. Without it the loads of an edge's positions, and the arithmetic of its
// window, are calls in every user's program. The linker drops the instance.
var _ = func(g *Graph) {
	source, _ := Hybrid[byte]("", nil)
	gate := Filter[byte](nil)
	Connect(g, source, gate)
	Connect(g, gate, NewSink[byte]("", nil))
}
