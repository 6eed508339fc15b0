package main

import (
	"io"
	"os"
	"path/filepath"
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
