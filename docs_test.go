package penstock_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents calls f for every Markdown file of the repository.
func documents(t *testing.T, f func(path, text string)) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n++
		f(path, strings.ReplaceAll(string(text), "\r\n", "\n"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Fatalf("only %d documents found", n)
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// fenced is a block of code, in which Go's generics look like links.
var fenced = regexp.MustCompile("(?ms)^```.*?^```")

func TestLinksInDocumentsResolve(t *testing.T) {
	documents(t, func(path, text string) {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), filepath.FromSlash(target))
			}
			data, err := os.ReadFile(file)
			if err != nil {
				if info, statErr := os.Stat(file); statErr != nil || !info.IsDir() {
					t.Errorf("%s: link %s: %v", path, m[1], err)
				}
				continue
			}
			if anchor != "" && !slices.Contains(anchors(string(data)), anchor) {
				t.Errorf("%s: link %s: no such heading", path, m[1])
			}
		}
	})
}

// anchors returns the anchors that a viewer makes of a document's headings.
func anchors(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		keep := func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
				return r
			}
			return -1
		}
		all = append(all, strings.Map(keep, strings.ToLower(strings.TrimSpace(title))))
	}
	return all
}

var named = regexp.MustCompile("`((?:[a-z_0-9-]+/)*[a-z_0-9]+\\.go)`")

// TestDesignNamesFilesThatExist: a map that shows roads which are gone is
// worse than none.
func TestDesignNamesFilesThatExist(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	files := named.FindAllStringSubmatch(string(text), -1)
	if len(files) < 10 {
		t.Fatalf("only %d files are named", len(files))
	}
	for _, m := range files {
		if m[1] == "doc.go" {
			continue
		}
		if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil {
			t.Errorf("DESIGN.md: %v", err)
		}
	}
}

var testWord = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9_]*\b`)

// TestTestsNamedInDocumentsExist looks for each test that a document calls its
// evidence.
func TestTestsNamedInDocumentsExist(t *testing.T) {
	var all bytes.Buffer
	goFiles(t, func(path string, source []byte) {
		if strings.HasSuffix(path, "_test.go") {
			all.Write(source)
		}
	})
	documents(t, func(path, text string) {
		for _, name := range testWord.FindAllString(text, -1) {
			if name != "TestMain" && !bytes.Contains(all.Bytes(), []byte("func "+name+"(")) {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	})
}

// TestEveryDecisionIsListed keeps the list of decisions whole, and their
// numbers without a gap.
func TestEveryDecisionIsListed(t *testing.T) {
	list, err := os.ReadFile("docs/adr/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("docs/adr/[0-9]*.md")
	if err != nil || len(files) < 19 {
		t.Fatalf("%d decisions: %v", len(files), err)
	}
	for _, file := range files {
		if !bytes.Contains(list, []byte("("+filepath.Base(file)+")")) {
			t.Errorf("docs/adr/README.md does not list %s", filepath.Base(file))
		}
	}
}
