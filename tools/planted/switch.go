package planted

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Most of the time of a fault goes into compiling the package that it is in. So
// the faults of one package stand together in one test binary, each behind a
// switch that the environment turns on: a function that a fault changes begins
// with the changed body, run and left when the fault is on, and goes on with
// the body that the product has.
//
// That holds for faults that change nothing but bodies of functions. The others
// are compiled one by one, and so is one that the switched binary does not
// catch, since the switches themselves keep functions from being inlined.

// switchVariable is the variable of the environment that names the fault that
// is on.
const switchVariable = "PENSTOCK_PLANTED"

// errNotInBodies says that a fault changes more than bodies of functions.
var errNotInBodies = errors.New("changes more than the bodies of functions")

// funcBody is the text of a function's body, with its braces, and where it stands.
type funcBody struct {
	text   string
	from   int
	result bool  // the function returns something
	labels []int // where names of labels end, in the text
}

// splitBodies takes the bodies out of a file of Go.
func splitBodies(text string) (rest string, bodies []funcBody, pkg string, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, "", err
	}
	var b strings.Builder
	at := 0
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		from, to := set.Position(fn.Body.Pos()).Offset, set.Position(fn.Body.End()).Offset
		b.WriteString(text[at:from])
		at = to
		body := funcBody{text: text[from:to], from: from, result: fn.Type.Results != nil}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.LabeledStmt:
				body.labels = append(body.labels, set.Position(n.Label.End()).Offset-from)
			case *ast.BranchStmt:
				if n.Label != nil {
					body.labels = append(body.labels, set.Position(n.Label.End()).Offset-from)
				}
			}
			return true
		})
		bodies = append(bodies, body)
	}
	b.WriteString(text[at:])
	return b.String(), bodies, file.Name.Name, nil
}

// switched is what the body does when the fault is on: the text of a block.
func (b funcBody) switched(name string, n int) string {
	text := b.text
	slices.Sort(b.labels)
	for _, end := range slices.Backward(b.labels) { // labels belong to the whole function
		text = fmt.Sprintf("%s_%d%s", text[:end], n, text[end:])
	}
	if !b.result {
		text = text[:len(text)-1] + "\nreturn\n}"
	}
	return "\nif " + name + " " + text + "\n"
}

// switches gathers the faults of one test binary.
type switches struct {
	root  string
	files map[string]*switchedFile // by path
	names []string                 // of the faults, by the number of their switch
}

type switchedFile struct {
	text, rest, pkg string
	bodies          []funcBody
	before          [][]string // by body: what comes before what it has
}

// add puts a fault behind a switch. errNotInBodies says that it cannot be.
func (s *switches) add(f Fault) error {
	texts, err := f.texts(s.root)
	if err != nil {
		return err
	}
	n := len(s.names)
	type change struct {
		file *switchedFile
		body int
		text string
	}
	var changes []change
	for path, text := range texts {
		file, err := s.file(path)
		if err != nil {
			return err
		}
		rest, bodies, _, err := splitBodies(text)
		if err != nil {
			return err
		}
		if rest != file.rest || len(bodies) != len(file.bodies) {
			return errNotInBodies
		}
		for i, b := range bodies {
			if b.text != file.bodies[i].text {
				changes = append(changes, change{file, i, b.switched(switchName(n), n)})
			}
		}
	}
	for _, c := range changes {
		c.file.before[c.body] = append(c.file.before[c.body], c.text)
	}
	s.names = append(s.names, f.Name)
	return nil
}

func switchName(n int) string { return fmt.Sprintf("plantedFault%d", n) }

func (s *switches) file(path string) (*switchedFile, error) {
	if file := s.files[path]; file != nil {
		return file, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file := &switchedFile{text: strings.ReplaceAll(string(data), "\r\n", "\n")}
	if file.rest, file.bodies, file.pkg, err = splitBodies(file.text); err != nil {
		return nil, err
	}
	file.before = make([][]string, len(file.bodies))
	s.files[path] = file
	return file, nil
}

// write writes the switched files into dir and returns the overlay that puts
// them, and a file with the switches of each package, in place.
func (s *switches) write(dir string) (overlay map[string]string, err error) {
	overlay = map[string]string{}
	put := func(path, text string) error {
		out := filepath.Join(dir, fmt.Sprintf("switched%d_%s", len(overlay), filepath.Base(path)))
		overlay[path] = out
		return os.WriteFile(out, []byte(text), 0o644)
	}
	for path, file := range s.files {
		text := file.text
		for i, b := range slices.Backward(file.bodies) {
			begin := b.from + 1 // behind the brace
			text = text[:begin] + strings.Join(file.before[i], "") + text[begin:]
		}
		if err := put(path, text); err != nil {
			return nil, err
		}
		vars := filepath.Join(filepath.Dir(path), "planted_faults.go")
		if _, ok := overlay[vars]; ok {
			continue
		}
		if err := put(vars, s.variables(file.pkg)); err != nil {
			return nil, err
		}
	}
	return overlay, nil
}

// variables is the file that declares the switches in a package.
func (s *switches) variables(pkg string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n\nimport \"os\"\n\n", pkg)
	for n, name := range s.names {
		fmt.Fprintf(&b, "var %s = os.Getenv(%q) == %q\n", switchName(n), switchVariable, name)
	}
	return b.String()
}
