package stage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGuideShowsWhatTheExamplesRun holds that every block of Go in the guide is a
// part of an example of stage, queue, stream, its subpackages or penstocktest, letter by letter.
func TestGuideShowsWhatTheExamplesRun(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"example*_test.go", "../queue/*example*_test.go", "../penstocktest/example*_test.go", "../stream/example*_test.go", "../stream/remote/example*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	pages, err := filepath.Glob("../docs/guide/*.md")
	if err != nil || len(pages) < 7 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	blocks := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, part := range strings.Split(string(text), "```") {
			block, isGo := strings.CutPrefix(part, "go\n")
			if i%2 == 0 || !isGo {
				continue
			}
			blocks++
			if !strings.Contains(code.String(), block) {
				t.Errorf("%s: no example has\n%s", filepath.Base(page), block)
			}
		}
	}
	if blocks < 24 {
		t.Errorf("only %d blocks", blocks)
	}
}
