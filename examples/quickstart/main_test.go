package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestEveryOrderIsHandled runs the program as it is.
func TestEveryOrderIsHandled(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = out
	main()
	os.Stdout = stdout
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; last != "10000 orders handled, error: <nil>" {
		t.Errorf("last line %q", last)
	}
	if len(lines) < 10_000/500 {
		t.Errorf("%d lines: a batch was larger than BatchMax", len(lines))
	}
}

// TestTheReadmeShowsThisProgram compares the first Go block of the README with
// this program, without the comment above its package clause.
func TestTheReadmeShowsThisProgram(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(readme), "\r\n", "\n")
	_, rest, ok := strings.Cut(text, "```go\n")
	block, _, closed := strings.Cut(rest, "```\n")
	if !ok || !closed {
		t.Fatal("the README holds no Go block")
	}
	program := strings.ReplaceAll(string(source), "\r\n", "\n")
	program = program[strings.Index(program, "package main"):]
	if block != program {
		t.Errorf("the first Go block of the README is not examples/quickstart/main.go:\n%s", block)
	}
}
