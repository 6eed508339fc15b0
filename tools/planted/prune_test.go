package planted

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPruningLeavesWhatTheTestNeeds(t *testing.T) {
	folder, out := t.TempDir(), t.TempDir()
	const a = `package p_test

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestOne is kept.
func TestOne(t *testing.T) { helper(t, rand.N(3)) }

func TestTwo(t *testing.T) { other(strings.ToUpper("x")) }
`
	const b = `package p_test

import "testing"

type kept[T any] struct{ v T }

func (k *kept[T]) lone() {}

func helper(t *testing.T, n int) { _ = kept[int]{n} }

func other(s string) {}

func TestMain(m *testing.M) { m.Run() }
`
	for name, text := range map[string]string{"a_test.go": a, "b_test.go": b} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := prune(folder, out, "TestOne")
	if err != nil {
		t.Fatal(err)
	}
	if len(overlay) != 2 {
		t.Fatalf("%d files, want 2", len(overlay))
	}
	var all string
	for path, file := range overlay {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) != len(before) || strings.Count(string(text), "\n") != strings.Count(string(before), "\n") {
			t.Errorf("%s: lines have moved", path)
		}
		all += string(text)
	}
	for text, want := range map[string]bool{
		"func TestOne": true, "func helper": true, "type kept": true, "lone()": true, "func TestMain": true, "math/rand/v2": true, `"testing"`: true,
		"TestTwo": false, "func other": false, `"strings"`: false,
	} {
		if got := strings.Contains(all, text); got != want {
			t.Errorf("%q is there: %v, want %v", text, got, want)
		}
	}
	if _, err := prune(folder, out, "TestOne", "TestNone"); err == nil {
		t.Error("a test that is not there is no error")
	}
}
