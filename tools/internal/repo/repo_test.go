package repo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree writes files below a new folder and returns it.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFindListsEveryModule(t *testing.T) {
	root := tree(t, map[string]string{
		"go.mod":                "module " + RootModule + "\n",
		"cmd/penstock/go.mod":   "module " + RootModule + "/cmd/penstock\n",
		"tools/go.mod":          "module " + RootModule + "/tools\n",
		"x/testdata/sub/go.mod": "module ignored\n",
		".git/go.mod":           "module ignored\n",
	})
	r, err := Find(filepath.Join(root, "cmd", "penstock"))
	if err != nil {
		t.Fatal(err)
	}
	var rels []string
	for _, m := range r.Modules {
		rels = append(rels, m.Rel)
	}
	if want := []string{".", "cmd/penstock", "tools"}; !slices.Equal(rels, want) {
		t.Errorf("modules %q, want %q", rels, want)
	}
}

func TestFindOutsideOfTheRepositoryFails(t *testing.T) {
	if r, err := Find(t.TempDir()); err == nil {
		t.Errorf("found %s", r.Root)
	}
}

func TestReplaceOfTheRootIsRequired(t *testing.T) {
	for name, test := range map[string]struct {
		rel, gomod string
		want       bool
	}{
		"line":           {"tools", "replace github.com/penstock/penstock => ..\n", true},
		"block":          {"cmd/penstock", "replace (\n\tgithub.com/penstock/penstock => ../..\n)\n", true},
		"no replace":     {"tools", "module x\n", false},
		"wrong folder":   {"cmd/penstock", "replace github.com/penstock/penstock => ..\n", false},
		"another module": {"tools", "replace github.com/penstock/other => ..\n", false},
	} {
		if got := replacesRoot(test.gomod, test.rel); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestEveryModuleOfThisRepositoryReplacesTheRoot(t *testing.T) {
	r, err := Find(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Modules) < 2 {
		t.Fatalf("%d modules found", len(r.Modules))
	}
	if err := r.CheckReplaces(); err != nil {
		t.Error(err)
	}
}

func TestEnvHidesTheSettingsOfTheMachine(t *testing.T) {
	t.Setenv("GOFLAGS", "-tags=surprise")
	t.Setenv("GOWORK", "/nowhere/go.work")
	n := 0
	for _, v := range Env() {
		if strings.HasPrefix(v, "GOFLAGS=") || strings.HasPrefix(v, "GOWORK=") {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d settings of GOFLAGS and GOWORK, want one each", n)
	}
}

func TestPackagesOfAModule(t *testing.T) {
	r, err := Find(".")
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Module("tools")
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.Packages(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(p Package) bool { return strings.HasSuffix(p.ImportPath, "/tools/internal/repo") })
	if i < 0 || !list[i].HasTests() {
		t.Errorf("package repo with tests is not in %v", list)
	}
}
