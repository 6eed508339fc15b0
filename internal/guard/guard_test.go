package guard_test

import (
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/guard"
	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestCallTurnsWhateverHappensIntoAnError(t *testing.T) {
	for name, c := range map[string]struct {
		f     func() error
		want  string
		panic bool
	}{
		"returns":      {func() error { return nil }, "", false},
		"fails":        {func() error { return io.EOF }, "EOF", false},
		"panics":       {func() error { panic("boom") }, "here: panic: boom", true},
		"panics error": {func() error { panic(io.EOF) }, "here: panic: EOF", true},
		"leaves":       {func() error { runtime.Goexit(); return nil }, "here: runtime.Goexit called", true},
	} {
		t.Run(name, func(t *testing.T) {
			err := guard.Call("here", c.f)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != c.want {
				t.Errorf("error %q, want %q", text, c.want)
			}
			var p *penstock.PanicError
			if errors.As(err, &p) != c.panic || c.panic && len(p.Stack) == 0 {
				t.Errorf("%#v: a panic with its stack: %t wanted", err, c.panic)
			}
		})
	}
}
