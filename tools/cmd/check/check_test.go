package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/leak"
	"github.com/penstock/penstock/tools/internal/repo"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestAnUnformattedFileIsNamed(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"good.go":             "package p\n\nvar x = 1\n",
		"windows.go":          "package p\r\n\r\nvar y = 1\r\n",
		"bad.go":              "package p\nvar  z = 1\n",
		"broken.go":           "package p\nvar",
		".git/unformatted.go": "package p\nvar  z = 1\n",
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := checkFormat(t.Context(), &repo.Repo{Root: root}, io.Discard)
	if err == nil {
		t.Fatal("no error")
	}
	for name, want := range map[string]bool{"good.go": false, "windows.go": false, "bad.go": true, "broken.go": true, "unformatted.go": false} {
		if got := strings.Contains(err.Error(), string(filepath.Separator)+name); got != want {
			t.Errorf("%s named: %v, want %v", name, got, want)
		}
	}
}

func TestAFailingVetOfOneModuleFails(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module broken\n\ngo 1.26.0\n",
		"p.go":   "package p\n\nimport \"fmt\"\n\nfunc f() { fmt.Printf(\"%d\", \"x\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := &repo.Repo{Root: dir, Modules: []repo.Module{{Path: "broken", Dir: dir, Rel: "."}}}
	if err := vet(t.Context(), r, io.Discard); err == nil {
		t.Error("no error")
	}
}

func TestStepsAreChosenByName(t *testing.T) {
	if got, err := choose([]string{"vet", "format"}); err != nil || len(got) != 2 || got[0].name != "vet" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := choose(nil); err != nil || len(got) != len(steps) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := choose([]string{"--help"}); err == nil {
		t.Error("an unknown step is accepted")
	}
}

// sample writes a module and returns it.
func sample(t *testing.T, files map[string]string) (*repo.Repo, repo.Module) {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module sample\n\ngo 1.26.0\n"
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := repo.Module{Path: "sample", Dir: dir, Rel: "."}
	return &repo.Repo{Root: dir, Modules: []repo.Module{m}}, m
}

func TestTypesAreCheckedForEachTargetWithTests(t *testing.T) {
	r, m := sample(t, map[string]string{
		"p.go":           "package sample\n\nimport \"os\"\n\nvar Path = os.DevNull\n",
		"p_test.go":      "package sample_test\n\nimport (\n\t\"testing\"\n\n\t\"sample\"\n)\n\nfunc TestP(t *testing.T) { _ = sample.Path + sample.Inside }\n",
		"inside_test.go": "package sample\n\nconst Inside = \"x\"\n",
		"q_windows.go":   "package sample\n\nvar Wrong int = \"text\"\n",
		"r_test.go":      "package sample\n\nvar wide int = 1 << 40\n",
	})
	for _, test := range []struct {
		target target
		names  string // of what is wrong; empty for nothing
	}{
		{target{"linux", "arm64", false}, ""},
		{target{"windows", "arm64", false}, "q_windows.go"},
		{target{"linux", "386", false}, "r_test.go"},
	} {
		err := typeCheck(t.Context(), r, m, test.target)
		if (err != nil) != (test.names != "") || err != nil && !strings.Contains(err.Error(), test.names) {
			t.Errorf("%v: %v, want an error about %q", test.target, err, test.names)
		}
	}
}

func TestAssemblyIsNotTakenForChecked(t *testing.T) {
	r, m := sample(t, map[string]string{"p.go": "package sample\n", "p_arm64.s": "\n"})
	if err := typeCheck(t.Context(), r, m, target{"linux", "amd64", false}); err != nil {
		t.Error(err)
	}
	if err := typeCheck(t.Context(), r, m, target{"linux", "arm64", false}); err == nil || !strings.Contains(err.Error(), "assembly") {
		t.Errorf("%v, want an error about assembly", err)
	}
}

func TestEachSystemAndArchitectureIsCompiled(t *testing.T) {
	compiled := map[string]bool{"linux": true, "amd64": true} // by vet
	for _, x := range targets {
		if x.compile {
			compiled[x.os], compiled[x.arch] = true, true
		}
	}
	for _, x := range targets {
		if !compiled[x.os] || !compiled[x.arch] {
			t.Errorf("%s/%s: its system or its architecture is never compiled", x.os, x.arch)
		}
	}
}

func TestAFailureBesideOthersIsTold(t *testing.T) {
	var out strings.Builder
	bad := errors.New("bad")
	err := beside(&shared{w: &out}, []task{
		{"a", func() error { return nil }}, {"b", func() error { return bad }}, {"c", func() error { return nil }},
	})
	if !errors.Is(err, bad) || strings.Count(out.String(), "ok  ") != 2 || strings.Count(out.String(), "FAIL b") != 1 {
		t.Errorf("%v: %q", err, out.String())
	}
}

func TestEveryModuleIsLintedOnce(t *testing.T) {
	r, err := repo.Find(".")
	if err != nil {
		t.Fatal(err)
	}
	runs, err := lintRuns(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, run := range runs {
		rel, err := filepath.Rel(r.Root, run.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range run.patterns {
			got = append(got, filepath.ToSlash(filepath.Join(rel, strings.TrimSuffix(p, "/..."))))
		}
	}
	var want []string
	for _, m := range r.Modules {
		want = append(want, m.Rel)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%v are linted, want %v", got, want)
	}
}
