package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestFuzzTargetsAreFoundByName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p_test.go")
	source := "package p\n\nfunc FuzzA(f *testing.F) {}\nfunc TestB(t *testing.T) {}\nfunc (x) FuzzC(f *testing.F) {}\n"
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := fuzzFunctions(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"FuzzA"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
