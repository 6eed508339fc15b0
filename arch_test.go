package penstock_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/penstock/penstock"

// floors is the import table: a package imports only packages of
// lower floors. Packages of one floor do not know each other; on the ground,
// demand may import the root. A new package gets its line here with the ADR
// that introduces it. See DESIGN.md.
var floors = map[string]int{
	"":                   0, // the root: the words
	"internal/vfs":       0, // the seam to the file system
	"demand":             1, // stands on the ground, and may import the root
	"internal/debugpage": 1, // what debug handlers have in common
	"internal/guard":     1, // user code is called, and what it does to its goroutine is an error
	"seglog":             2,
	"settle":             2,
	"segfile":            3,
	"stage":              3,
	"queue":              4,
	"stream":             5,
	"stream/remote":      6,

	"internal/leak":    0,
	"internal/measure": 0,       // what benchmarks stand on
	"penstocktest":     1 << 10, // suites for those who implement an interface of any floor
}

// roof are the folders whose packages use every floor and which nobody
// imports.
var roof = []string{"examples/"}

// testOnly may be imported by any test, and by no product code.
var testOnly = []string{"internal/leak", "internal/measure", "penstocktest"}

// modules are what the root module may require: the first list for everybody,
// the second for its own tests.
var (
	modulesOfUsers = []string{module, "golang.org/x/sys"}
	modulesOfTests = []string{"github.com/google/go-cmp", "pgregory.net/rapid"}
)

type listed struct {
	ImportPath   string
	Dir          string
	Name         string
	Doc          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func (p listed) rel() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

func (p listed) onRoof() bool {
	return slices.ContainsFunc(roof, func(r string) bool { return strings.HasPrefix(p.rel(), r) })
}

// goCommand runs the go command in dir as a user of the module would, without
// the workspace.
func goCommand(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, errOut.Bytes())
	}
	return out
}

func packages(t *testing.T) []listed {
	t.Helper()
	var list []listed
	for dec := json.NewDecoder(bytes.NewReader(goCommand(t, ".", "list", "-json", "./..."))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 5 {
		t.Fatalf("only %d packages found", len(list))
	}
	return list
}

// checkImports says what is wrong with the imports of one package.
func checkImports(p listed) error {
	var errs []error
	floor, known := floors[p.rel()]
	switch {
	case p.onRoof():
		floor = 1 << 10
	case !known:
		return fmt.Errorf("%s stands on no floor: add it to the table in arch_test.go and DESIGN.md, with an ADR", p.ImportPath)
	}
	check := func(imports []string, test bool) {
		for _, path := range imports {
			errs = append(errs, checkImport(p, floor, path, test))
		}
	}
	check(p.Imports, false)
	check(p.TestImports, true)
	check(p.XTestImports, true)
	return errors.Join(errs...)
}

func checkImport(p listed, floor int, path string, test bool) error {
	if path == p.ImportPath {
		return nil
	}
	rel, ours := strings.CutPrefix(path, module)
	rel = strings.TrimPrefix(rel, "/")
	switch {
	case !ours && (isStandard(path) || strings.HasPrefix(path, "golang.org/x/sys/")):
		return nil
	case !ours && test && slices.ContainsFunc(modulesOfTests, func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }):
		return nil
	case !ours:
		return fmt.Errorf("%s imports %s: only the standard library and golang.org/x/sys are allowed", p.ImportPath, path)
	case slices.Contains(testOnly, rel) || rel == "internal/vfs" && test:
		if test {
			return nil
		}
		return fmt.Errorf("%s imports %s, which is for tests", p.ImportPath, path)
	}
	below, known := floors[rel]
	if !known || below >= floor {
		return fmt.Errorf("%s imports %s, which does not stand on a lower floor", p.ImportPath, path)
	}
	return nil
}

// isStandard reports whether path is of the standard library: its first part
// holds no dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, p := range packages(t) {
		if err := checkImports(p); err != nil {
			t.Error(err)
		}
	}
}

// TestTheTableNoticesAWrongImport makes sure that the rule above can fail.
func TestTheTableNoticesAWrongImport(t *testing.T) {
	for name, p := range map[string]listed{
		"up":              {ImportPath: module + "/seglog", Imports: []string{module + "/queue"}},
		"same floor":      {ImportPath: module + "/stage", Imports: []string{module + "/segfile"}},
		"root up":         {ImportPath: module, Imports: []string{module + "/demand"}},
		"up in a test":    {ImportPath: module + "/queue", XTestImports: []string{module + "/stream"}},
		"unknown package": {ImportPath: module + "/util"},
		"example":         {ImportPath: module + "/queue", Imports: []string{module + "/examples/quickstart"}},
		"foreign":         {ImportPath: module + "/queue", Imports: []string{"github.com/google/uuid"}},
		"test module":     {ImportPath: module + "/queue", Imports: []string{"pgregory.net/rapid"}},
		"test package":    {ImportPath: module + "/queue", Imports: []string{module + "/internal/leak"}},
	} {
		if checkImports(p) == nil {
			t.Errorf("%s: no error", name)
		}
	}
	good := listed{
		ImportPath:  module + "/queue",
		Imports:     []string{"context", module, module + "/demand", module + "/segfile", "golang.org/x/sys/unix"},
		TestImports: []string{"testing", module + "/internal/leak", module + "/internal/vfs", "pgregory.net/rapid"},
	}
	if err := checkImports(good); err != nil {
		t.Error(err)
	}
}

// TestAUserOfQueuePaysForNothingElse builds a module that requires this one
// and imports queue, and looks at what it pulls.
func TestAUserOfQueuePaysForNothingElse(t *testing.T) {
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	gomod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	// The requirements of the root are those of its user; so is its go.sum.
	text := strings.Replace(string(gomod), "module "+module, "module example.com/service", 1) +
		fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", module, module, filepath.ToSlash(root))
	source := "package main\n\nimport (\n\t\"context\"\n\n\t\"" + module + "/queue\"\n)\n\n" +
		"func main() {\n\ttopic, err := queue.Open(queue.Config[int]{Name: \"n\"})\n\tif err != nil {\n\t\tpanic(err)\n\t}\n" +
		"\tif err := topic.Produce(context.Background(), 1); err != nil {\n\t\tpanic(err)\n\t}\n\ttopic.Close()\n}\n"
	for name, data := range map[string][]byte{"go.mod": []byte(text), "go.sum": sum, "main.go": []byte(source)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	goCommand(t, dir, "build", "-mod=mod", "-o", os.DevNull, ".")
	linked := strings.Fields(string(goCommand(t, dir, "list", "-mod=mod", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")))
	for _, m := range linked {
		if m != "example.com/service" && !slices.Contains(modulesOfUsers, m) {
			t.Errorf("a user of queue links module %s", m)
		}
	}
	if !slices.Contains(linked, module) {
		t.Errorf("the root module is not among %q", linked)
	}
	graph := strings.Fields(string(goCommand(t, dir, "list", "-mod=mod", "-m", "-f", "{{.Path}}", "all")))
	for _, m := range graph {
		if m != "example.com/service" && !slices.Contains(modulesOfUsers, m) && !slices.Contains(modulesOfTests, m) {
			t.Errorf("the module graph of a user of queue holds %s", m)
		}
	}
}

func TestEveryPackageExplainsItselfAndChecksForLeaks(t *testing.T) {
	for _, p := range packages(t) {
		if strings.TrimSpace(p.Doc) == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		if p.rel() == "internal/leak" {
			continue // it would test itself by itself
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			t.Errorf("%s has no tests", p.ImportPath)
			continue
		}
		found := false
		for _, file := range append(slices.Clone(p.TestGoFiles), p.XTestGoFiles...) {
			data, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			found = found || bytes.Contains(data, []byte("func TestMain(m *testing.M)")) && bytes.Contains(data, []byte("leak.Main(m)"))
		}
		if !found {
			t.Errorf("%s has no TestMain that calls leak.Main", p.ImportPath)
		}
	}
}

// goFiles calls f for every Go file of every module of the repository.
func goFiles(t *testing.T, f func(path string, source []byte)) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n++
		f(filepath.ToSlash(path), source)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Fatalf("only %d Go files found", n)
	}
}

func TestFilesAndFunctionsAreShort(t *testing.T) {
	const fileLimit, functionLimit = 400, 70 // lines
	goFiles(t, func(path string, source []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		if n := bytes.Count(source, []byte("\n")); n >= fileLimit {
			t.Errorf("%s has %d lines, the limit is %d", path, n, fileLimit)
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			if n := set.Position(fn.Body.End()).Line - set.Position(fn.Body.Pos()).Line; n > functionLimit {
				t.Errorf("%s: %s has %d lines, the limit is %d", path, fn.Name.Name, n, functionLimit)
			}
		}
	})
}

func TestNothingIsLeftForLater(t *testing.T) {
	marks := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"}
	goFiles(t, func(path string, source []byte) {
		for _, mark := range marks {
			if bytes.Contains(source, []byte(mark)) {
				t.Errorf("%s holds %s", path, mark)
			}
		}
	})
}

// TestTestsDoNotSleep: a test waits for an event. Inside a synctest bubble,
// where sleeping costs no time and is exact, it may sleep; inBubble and
// penstocktest.Stages are helpers that open one.
func TestTestsDoNotSleep(t *testing.T) {
	sleep := []byte("time.Sleep" + "(")
	goFiles(t, func(path string, source []byte) {
		if strings.HasSuffix(path, "_test.go") && bytes.Contains(source, sleep) &&
			!bytes.Contains(source, []byte(`"testing/synctest"`)) && !bytes.Contains(source, []byte("inBubble(")) && !bytes.Contains(source, []byte("penstocktest.Stages(")) {
			t.Errorf("%s sleeps outside of a synctest bubble", path)
		}
	})
}

// TestEveryGoroutineSaysWhatItIs: above each start of a goroutine, or beside
// it, stands what it is, who stops it and who waits for it.
func TestEveryGoroutineSaysWhatItIs(t *testing.T) {
	starts := 0
	goFiles(t, func(path string, source []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		said := map[int]bool{} // lines that hold the end of a comment
		for _, c := range f.Comments {
			said[set.Position(c.End()).Line] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if !startsGoroutine(n) {
				return true
			}
			starts++
			if line := set.Position(n.Pos()).Line; !said[line] && !said[line-1] {
				t.Errorf("%s:%d starts a goroutine and does not say what it is", path, line)
			}
			return true
		})
	})
	if starts < 10 {
		t.Fatalf("only %d starts of goroutines found", starts)
	}
}

// startsGoroutine reports whether n is a go statement, or a call of a method
// Go with a function, as of sync.WaitGroup.
func startsGoroutine(n ast.Node) bool {
	if _, ok := n.(*ast.GoStmt); ok {
		return true
	}
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || method.Sel.Name != "Go" {
		return false
	}
	_, ok = call.Args[0].(*ast.FuncLit)
	return ok
}
