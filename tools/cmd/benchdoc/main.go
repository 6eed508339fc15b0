// Command benchdoc writes docs/bench.md from docs/bench/queue.json, stage.json,
// log.json and stream.json, which "penstock bench queue --json" and its like
// printed, and docs/bench/peers.json, which the module bench printed:
//
//	go run ./cmd/benchdoc          write the file
//	go run ./cmd/benchdoc -check   fail if the file is not what would be written
//
// "make bench-docs" measures and writes in one go.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/penstock/penstock/internal/measure"
	"github.com/penstock/penstock/tools/internal/repo"
)

// areas are what "penstock bench" is asked for, each a file of its own.
var areas = []string{"queue", "stage", "log", "stream"}

func main() {
	check := flag.Bool("check", false, "fail if docs/bench.md is not what would be written")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "benchdoc:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	r, err := repo.Find(".")
	if err != nil {
		return err
	}
	docs := filepath.Join(r.Root, "docs")
	if !check {
		for _, name := range append(slices.Clone(areas), "peers") {
			if err := spread(filepath.Join(docs, "bench", name+".json")); err != nil {
				return err
			}
		}
	}
	text, err := generate(filepath.Join(docs, "bench"))
	if err != nil {
		return err
	}
	file := filepath.Join(docs, "bench.md")
	if !check {
		return os.WriteFile(file, text, 0o644)
	}
	have, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(bytes.ReplaceAll(have, []byte("\r\n"), []byte("\n")), text) {
		return errors.New("docs/bench.md is not what its JSON makes: run go -C tools run ./cmd/benchdoc")
	}
	return nil
}

// spread writes an array with a row per line, so that a change of one row is a
// change of one line.
func spread(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var rows []json.RawMessage
	if err := json.Unmarshal(data, &rows); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var out bytes.Buffer
	for i, row := range rows {
		out.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0])
		if err := json.Compact(&out, row); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	out.WriteString("\n]\n")
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// generate makes the text from the JSON in a folder.
func generate(dir string) ([]byte, error) {
	var rows []measure.Row
	var peers []measure.PeerRow
	for _, name := range areas {
		var some []measure.Row
		if err := read(filepath.Join(dir, name+".json"), &some); err != nil {
			return nil, err
		}
		if len(some) == 0 {
			return nil, errors.New(name + ".json holds no row")
		}
		rows = append(rows, some...)
	}
	if err := read(filepath.Join(dir, "peers.json"), &peers); err != nil {
		return nil, err
	}
	if len(peers) == 0 {
		return nil, errors.New("peers.json holds no row")
	}
	return []byte(render(rows, peers)), nil
}

// read decodes a file and refuses what is not known: the rows would be shown
// without it.
func read(file string, into any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
