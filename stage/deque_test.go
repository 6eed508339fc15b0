package stage

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestDequeIsASlice compares random operations with a slice, and looks at every
// slot that holds nothing.
func TestDequeIsASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := deque[*int]{clears: true}
		var model []*int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				var vs []*int
				for range rapid.IntRange(0, 40).Draw(t, "n") {
					v := next
					next++
					vs = append(vs, &v)
				}
				d.pushBack(vs)
				model = append(model, vs...)
			},
			"pop": func(t *rapid.T) {
				n := rapid.IntRange(0, len(model)).Draw(t, "n")
				if got := d.popFront(nil, n); !slices.Equal(got, model[:n]) {
					t.Fatalf("popped %v, want %v", got, model[:n])
				}
				model = model[n:]
			},
			"drop": func(t *rapid.T) {
				n := rapid.IntRange(0, len(model)).Draw(t, "n")
				d.dropFront(n)
				model = model[n:]
			},
			"": func(t *rapid.T) {
				first, second := d.spans(d.len())
				if got := slices.Concat(first, second); !slices.Equal(got, model) {
					t.Fatalf("holds %v, want %v", got, model)
				}
				kept := 0
				for _, p := range d.buf {
					if p != nil {
						kept++
					}
				}
				if kept != len(model) {
					t.Fatalf("%d slots hold a pointer, want %d", kept, len(model))
				}
			},
		})
	})
}
