package verdict

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func good() Verdict {
	return Verdict{Produced: 1000, Crashes: 2, RSSMaxMiB: 50, Groups: map[string]Group{
		"billing": {Delivered: 1005, Distinct: 1000, Duplicates: 5},
		"emails":  {Delivered: 990, Distinct: 990, Dead: 10, MaxLag: 7},
	}}
}

func TestEachDefectIsNamed(t *testing.T) {
	run := Run{For: 10 * time.Second, Crashes: 2, Rate: 100}
	if err := run.check(good(), 20*time.Second); err != nil {
		t.Fatal(err)
	}
	change := func(name string, f func(*Group)) func(*Verdict) {
		return func(v *Verdict) {
			g := v.Groups[name]
			f(&g)
			v.Groups[name] = g
		}
	}
	for want, spoil := range map[string]func(*Verdict){
		"unknown outcome":    func(v *Verdict) { v.Unknown = 1 },
		"1 crashes, want 2":  func(v *Verdict) { v.Crashes = 1 },
		"MiB resident":       func(v *Verdict) { v.RSSMaxMiB = 300 },
		"was not measured":   func(v *Verdict) { v.RSSMaxMiB = 0 },
		"no groups":          func(v *Verdict) { v.Groups = nil },
		"want at least 500":  func(v *Verdict) { v.Produced = 499 },
		"lost 1 events":      change("billing", func(g *Group) { g.Lost = 1 }),
		"out of order":       change("billing", func(g *Group) { g.OrderViolations = 1 }),
		"999 distinct":       change("billing", func(g *Group) { g.Distinct-- }),
		"but 1000 distinct":  change("billing", func(g *Group) { g.Duplicates++ }),
		"never fell behind":  change("emails", func(g *Group) { g.MaxLag = 0 }),
		"nothing was produc": func(v *Verdict) { v.Produced = 0 },
	} {
		v := good()
		spoil(&v)
		if err := run.check(v, 20*time.Second); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if err := run.check(good(), 56*time.Second); err == nil {
		t.Error("a run that ends late is accepted")
	}
}

func TestParseTakesTheLastLine(t *testing.T) {
	v, err := Parse("{\"produced\":1}\n{\"produced\":2,\"crashes\":3}\n")
	if err != nil || v.Produced != 2 || v.Crashes != 3 {
		t.Errorf("%+v, %v", v, err)
	}
	for _, out := range []string{"", "{\"produced\":1}\nstopped\n"} {
		if _, err := Parse(out); err == nil {
			t.Errorf("%q is accepted", out)
		}
	}
}
