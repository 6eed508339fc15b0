// Package planted proves that tests can fail. A planted fault is a small
// change of product code, kept as a data file, with the test that must turn
// red by it. The change is applied through `go test -overlay`, so no trace of
// it stands in the product, not even behind a build tag.
//
// # File format
//
// Lines "name: value", then one or more edits:
//
//	claim: an acknowledgement at synced follows the flush
//	package: ./segfile
//	test: TestPowerLossKeepsWhatWasAcknowledged
//	-- old segfile/committer.go --
//	text that occurs exactly once in the file
//	-- new --
//	what stands there instead
//
// module (default ".") is the folder of the module whose package is tested,
// test is the exact name of a top-level test, and limit (default 2m) is how
// long one run of it may take. Lines that start with # before the first edit
// are comments. The name of the fault is the name of its file.
package planted

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Fault is one planted fault.
type Fault struct {
	Name    string
	Claim   string // what the product says and this fault breaks
	Module  string // folder, slash-separated
	Package string // pattern inside the module, for example "./segfile"
	Test    string // name of the test that must fail
	Limit   time.Duration
	Edits   []Edit
}

// Edit replaces one snippet of one file.
type Edit struct {
	File     string // slash-separated, relative to the root of the repository
	Old, New string
}

// Key names the test that must fail, with its module and package.
func (f *Fault) Key() string { return f.Module + " " + f.Package + " " + f.Test }

var (
	oldHeader = regexp.MustCompile(`^-- old (\S+) --$`)
	testName  = regexp.MustCompile(`^(Test|Fuzz|Example)[A-Za-z0-9_]*$`)
)

// Load reads every *.txt file of dir, in the order of their names.
func Load(dir string) ([]Fault, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var faults []Fault
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		f, err := Parse(strings.TrimSuffix(filepath.Base(file), ".txt"), string(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

// Parse reads one fault.
func Parse(name, text string) (Fault, error) {
	f := Fault{Name: name, Module: ".", Limit: 2 * time.Minute}
	head, edits := split(text)
	for _, line := range head {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return f, fmt.Errorf("line %q is not of the form name: value", line)
		}
		if err := f.set(key, strings.TrimSpace(value)); err != nil {
			return f, err
		}
	}
	var err error
	if f.Edits, err = parseEdits(edits); err != nil {
		return f, err
	}
	return f, f.validate()
}

// split cuts a fault's lines at the first edit.
func split(text string) (head, edits []string) {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "-- ") {
			return lines[:i], lines[i:]
		}
	}
	return lines, nil
}

func (f *Fault) set(key, value string) error {
	switch key {
	case "claim":
		f.Claim = value
	case "module":
		f.Module = value
	case "package":
		f.Package = value
	case "test":
		f.Test = value
	case "limit":
		var err error
		f.Limit, err = time.ParseDuration(value)
		return err
	default:
		return fmt.Errorf("%q is not one of claim, module, package, test, limit", key)
	}
	return nil
}

// parseEdits reads pairs of an old and a new snippet. The line break before
// the next header belongs to the header.
func parseEdits(lines []string) ([]Edit, error) {
	var edits []Edit
	for len(lines) > 0 {
		header := oldHeader.FindStringSubmatch(lines[0])
		if header == nil {
			return nil, fmt.Errorf("%q where a line `-- old FILE --` must stand", lines[0])
		}
		old, rest := body(lines[1:])
		if len(rest) == 0 || rest[0] != "-- new --" {
			return nil, errors.New("no line `-- new --` after an old snippet")
		}
		var fresh string
		fresh, lines = body(rest[1:])
		if strings.TrimSpace(old) == "" {
			return nil, errors.New("an old snippet is empty")
		}
		edits = append(edits, Edit{File: header[1], Old: old, New: fresh})
	}
	return edits, nil
}

func body(lines []string) (text string, rest []string) {
	n := 0
	for n < len(lines) && !strings.HasPrefix(lines[n], "-- ") {
		n++
	}
	text = strings.Join(lines[:n], "\n")
	if n == len(lines) { // the file's last line break is not part of the snippet
		text = strings.TrimSuffix(text, "\n")
	}
	return text, lines[n:]
}

func (f *Fault) validate() error {
	switch {
	case f.Claim == "":
		return errors.New("no claim")
	case f.Package == "":
		return errors.New("no package")
	case !testName.MatchString(f.Test):
		return fmt.Errorf("test %q is not the name of a test", f.Test)
	case f.Limit <= 0:
		return fmt.Errorf("limit %s is not positive", f.Limit)
	case len(f.Edits) == 0:
		return errors.New("no edits")
	}
	return nil
}

// Apply writes the changed files of the fault into dir and returns the overlay
// that puts them in place of the files below root, as `go build -overlay`
// reads it. An edit whose old snippet does not occur exactly once is an error:
// the product has moved on and the fault must follow it.
func (f *Fault) Apply(root, dir string) (overlay map[string]string, err error) {
	texts, err := f.texts(root)
	if err != nil {
		return nil, err
	}
	overlay = map[string]string{}
	for path, text := range texts {
		out := filepath.Join(dir, fmt.Sprintf("%d_%s", len(overlay), filepath.Base(path)))
		if err := os.WriteFile(out, []byte(text), 0o644); err != nil {
			return nil, err
		}
		overlay[path] = out
	}
	return overlay, nil
}

// texts returns the changed files below root, by path.
func (f *Fault) texts(root string) (map[string]string, error) {
	changed := map[string]string{}
	for i, e := range f.Edits {
		path := filepath.Join(root, filepath.FromSlash(e.File))
		text, ok := changed[path]
		if !ok {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			text = strings.ReplaceAll(string(data), "\r\n", "\n")
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("edit %d: the old snippet occurs %d times in %s, must be once", i+1, n, e.File)
		}
		changed[path] = strings.Replace(text, e.Old, e.New, 1)
	}
	return changed, nil
}
