package penstock_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The map of package stage in DESIGN.md names every file, once, and no other.
func TestEveryFileOfStageIsOnTheMap(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n## The files of package stage\n")
	table, _, _ := strings.Cut(after, "\nTests stand ")
	if !found {
		t.Fatal("DESIGN.md has no map")
	}
	files, err := filepath.Glob("stage/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	named := 0
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasSuffix(name, "_test.go") || name == "doc.go" {
			continue
		}
		named++
		if n := strings.Count(table, "`stage/"+name+"`"); n != 1 {
			t.Errorf("DESIGN.md, \"The files of package stage\": %s is named %d times, want once", name, n)
		}
	}
	if n := strings.Count(table, ".go`"); n != named {
		t.Errorf("DESIGN.md, \"The files of package stage\": %d names, but there are %d files", n, named)
	}
}
