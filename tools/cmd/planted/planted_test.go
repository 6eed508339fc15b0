package main

import (
	"testing"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/tools/planted"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestFaultsAreChosenByName(t *testing.T) {
	all := []planted.Fault{{Name: "a"}, {Name: "b"}}
	if got, err := choose(all, []string{"b"}); err != nil || len(got) != 1 || got[0].Name != "b" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := choose(all, nil); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := choose(all, []string{"c"}); err == nil {
		t.Error("an unknown fault is accepted")
	}
}

func TestFaultsOfOneTestStayTogether(t *testing.T) {
	got := by([]planted.Fault{
		{Name: "a", Package: "./p", Test: "TestA"}, {Name: "b", Package: "./q", Test: "TestA"},
		{Name: "c", Package: "./q", Test: "TestB"}, {Name: "d", Package: "./q", Test: "TestA"},
	}, func(f planted.Fault) string { return f.Key() })
	var names string
	for _, g := range got {
		for _, f := range g {
			names += f.Name
		}
		names += " "
	}
	if names != "bd c a " {
		t.Errorf("%q, want the faults of ./q first, those of one test together", names)
	}
}
