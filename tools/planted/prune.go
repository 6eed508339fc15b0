package planted

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
)

// The tests of a package take several times as long to compile as what they
// test, and a fault needs one of them. So the others are blanked out: every
// top-level declaration of the test files that neither the tests nor TestMain
// lead to by name. What is left stands on its old lines.
//
// A name is taken for every declaration so called, whatever its scope, so too
// much may be left and never too little; a package that does not compile
// without the rest is compiled whole.

// testFile is one parsed test file.
type testFile struct {
	path  string
	text  []byte
	set   *token.FileSet
	file  *ast.File
	kept  map[ast.Decl]bool
	where map[string]bool // names before a dot in what is kept: maybe packages
}

// pruner follows names through the test files of one folder.
type pruner struct {
	files []*testFile
	by    map[string][]declaration // by name
	seen  map[string]bool
	queue []string
}

type declaration struct {
	file *testFile
	decl ast.Decl
}

// prune writes into dir what the tests need of the test files of the package in
// folder, and returns the overlay that puts it in their place.
func prune(folder, dir string, tests ...string) (overlay map[string]string, err error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	p := &pruner{by: map[string][]declaration{}, seen: map[string]bool{}}
	for _, name := range paths {
		if err := p.read(name); err != nil {
			return nil, err
		}
	}
	p.index()
	for _, test := range tests {
		if len(p.by[test]) == 0 {
			return nil, fmt.Errorf("no test file of %s declares %s", folder, test)
		}
		p.need(test)
	}
	p.need("TestMain")
	p.need("init")
	for len(p.queue) > 0 {
		name := p.queue[0]
		p.queue = p.queue[1:]
		for _, d := range p.by[name] {
			p.keep(d)
		}
	}
	overlay = map[string]string{}
	for i, f := range p.files {
		out := filepath.Join(dir, fmt.Sprintf("pruned%d_%s", i, filepath.Base(f.path)))
		if err := os.WriteFile(out, f.pruned(), 0o644); err != nil {
			return nil, err
		}
		overlay[f.path] = out
	}
	return overlay, nil
}

func (p *pruner) read(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f := &testFile{path: name, text: text, set: token.NewFileSet(), kept: map[ast.Decl]bool{}, where: map[string]bool{}}
	if f.file, err = parser.ParseFile(f.set, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		return err
	}
	p.files = append(p.files, f)
	return nil
}

// index notes by which names each declaration is reached: a method by the type
// of its receiver, or by its own name when the type belongs to the product.
func (p *pruner) index() {
	var methods []declaration
	for _, f := range p.files {
		for _, d := range f.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods = append(methods, declaration{f, d})
				continue
			}
			for _, n := range names(d) {
				p.by[n] = append(p.by[n], declaration{f, d})
			}
		}
	}
	types := map[string]bool{}
	for name := range p.by {
		types[name] = true
	}
	for _, m := range methods {
		fn := m.decl.(*ast.FuncDecl)
		name := receiver(fn)
		if !types[name] {
			name = fn.Name.Name
		}
		p.by[name] = append(p.by[name], m)
	}
}

// names returns what a declaration other than a method declares.
func names(d ast.Decl) (all []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		all = append(all, d.Name.Name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				all = append(all, s.Name.Name)
			case *ast.ValueSpec:
				for _, id := range s.Names {
					all = append(all, id.Name)
				}
			}
		}
	}
	return all
}

// receiver returns the name of the type that a method belongs to.
func receiver(fn *ast.FuncDecl) string {
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func (p *pruner) need(name string) {
	if name != "_" && !p.seen[name] {
		p.seen[name] = true
		p.queue = append(p.queue, name)
	}
}

func (p *pruner) keep(d declaration) {
	if d.file.kept[d.decl] {
		return
	}
	d.file.kept[d.decl] = true
	ast.Inspect(d.decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			p.need(n.Name)
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok {
				d.file.where[id.Name] = true
			}
		}
		return true
	})
}

// pruned returns the text of the file with what is not kept blanked out, line
// by line.
func (f *testFile) pruned() []byte {
	text := bytes.Clone(f.text)
	blank := func(from, to token.Pos) {
		for i := f.set.Position(from).Offset; i < f.set.Position(to).Offset; i++ {
			if text[i] != '\n' {
				text[i] = ' '
			}
		}
	}
	for _, d := range f.file.Decls {
		gen, ok := d.(*ast.GenDecl)
		switch {
		case ok && gen.Tok == token.IMPORT:
			for _, s := range gen.Specs {
				if spec := s.(*ast.ImportSpec); !f.uses(spec) && gen.Lparen.IsValid() {
					blank(spec.Pos(), spec.End())
				} else if !f.uses(spec) {
					blank(gen.Pos(), gen.End())
				}
			}
		case !f.kept[d]:
			blank(d.Pos(), d.End())
		}
	}
	return text
}

var majorVersion = regexp.MustCompile(`^v[0-9]+$`)

// uses reports whether what is kept may use the import, or it is there for its
// effect.
func (f *testFile) uses(spec *ast.ImportSpec) bool {
	if spec.Name != nil {
		return spec.Name.Name == "_" || spec.Name.Name == "." || f.where[spec.Name.Name]
	}
	full, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return true
	}
	name := path.Base(full)
	if majorVersion.MatchString(name) {
		name = path.Base(path.Dir(full))
	}
	return f.where[name]
}
