package queue

// The compiler carries the bodies of small functions of other packages, which
// callers inline, along with this package only if code of this package that is
// not generic uses them. Here one instance of everything does. Without it the
// atomic loads on the short ways are calls in every user's program, and a pull
// of one event takes half as long again. The linker drops the instance.
var _ = func() (*Topic[byte], error) { return Open(Config[byte]{}) }
