// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// carrier is a struct field declared in a folder.
type carrier struct{ dir, name, field string }

// search finds the reasons of events. Every event has a type, so search follows every use of
// v1.EventTypeNormal and v1.EventTypeWarning in the code: the reason is the next argument, or is in
// the same literal. The reason may be a parameter (resolved from the callers), a variable of the
// function, or a field of a carrier. Anything else is an error, so that no event is missed.
type search struct {
	root     string
	set      *token.FileSet
	folders  map[string][]*ast.File
	carriers map[string]carrier
	found    map[event]string
	errs     []error
}

func newSearch(root string, carriers map[string]carrier) *search {
	return &search{root: root, set: token.NewFileSet(), folders: map[string][]*ast.File{}, carriers: carriers, found: map[event]string{}}
}

func searchEvents(root string, carriers map[string]carrier) (map[event]string, []error) {
	s := newSearch(root, carriers)
	if err := s.parse(); err != nil {
		return nil, []error{err}
	}
	for dir := range s.folders {
		s.each(dir, func(fn *ast.FuncDecl, stack []ast.Node) {
			if kind, ok := stack[len(stack)-1].(*ast.SelectorExpr); ok && (kind.Sel.Name == "EventTypeNormal" || kind.Sel.Name == "EventTypeWarning") {
				s.event(dir, fn, stack)
			}
		})
	}
	return s.found, s.errs
}

// parse parses the module's code, without its tests and without nested modules.
func (s *search) parse() error {
	return filepath.WalkDir(s.root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if path != s.root && (nested == nil || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(s.set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(s.root, filepath.Dir(path))
		if err != nil {
			return err
		}
		dir = filepath.ToSlash(dir)
		s.folders[dir] = append(s.folders[dir], file)
		return nil
	})
}

// each visits all declarations of a folder, with the enclosing function, if any, and the path to
// the node.
func (s *search) each(dir string, visit func(fn *ast.FuncDecl, stack []ast.Node)) {
	for _, file := range s.folders[dir] {
		for _, declared := range file.Decls {
			fn, _ := declared.(*ast.FuncDecl)
			stack := []ast.Node{file}
			ast.Inspect(declared, func(n ast.Node) bool {
				if n == nil {
					stack = stack[:len(stack)-1]
					return true
				}
				stack = append(stack, n)
				visit(fn, stack)
				return true
			})
		}
	}
}

// event records the reason that accompanies a type.
func (s *search) event(dir string, fn *ast.FuncDecl, stack []ast.Node) {
	kind, parent := stack[len(stack)-1].(*ast.SelectorExpr), stack[len(stack)-2]
	var reason ast.Expr
	switch p := parent.(type) {
	case *ast.BinaryExpr, *ast.CaseClause:
		return // a comparison
	case *ast.CallExpr:
		if i := slices.Index(p.Args, ast.Expr(kind)); i >= 0 && i+1 < len(p.Args) {
			reason = p.Args[i+1]
		}
	case *ast.KeyValueExpr:
		if literal, ok := stack[len(stack)-3].(*ast.CompositeLit); ok {
			reason = valueOf(literal, "Reason", -1)
		}
	}
	if reason == nil {
		s.fail(kind, kind)
		return
	}
	for _, name := range s.reasons(dir, fn, reason) {
		part := dir
		for folder, name := range parts {
			if dir == folder || strings.HasPrefix(dir, folder+"/") {
				part = name
			}
		}
		s.found[event{part, name, strings.TrimPrefix(kind.Sel.Name, "EventType")}] = s.set.Position(kind.Pos()).String()
	}
}

func (s *search) fail(at ast.Node, expr ast.Expr) {
	s.errs = append(s.errs, fmt.Errorf("%s: not understood: %s", s.set.Position(at.Pos()), types.ExprString(expr)))
}

// reasons returns the possible values of an expression.
func (s *search) reasons(dir string, fn *ast.FuncDecl, expr ast.Expr) (all []string) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		return []string{constant.StringVal(constant.MakeFromLiteral(e.Value, e.Kind, 0))}
	case *ast.BinaryExpr:
		for _, prefix := range s.reasons(dir, fn, e.X) {
			all = append(all, prefix+"…")
		}
		return all
	case *ast.IndexExpr:
		if literal, ok := e.X.(*ast.CompositeLit); ok {
			for _, element := range literal.Elts {
				all = append(all, s.reasons(dir, fn, element.(*ast.KeyValueExpr).Value)...)
			}
			return all
		}
	case *ast.Ident:
		if value := s.constant(dir, e.Name); value != nil {
			return s.reasons(dir, nil, value)
		}
		if i := parameter(fn, e.Name); i >= 0 {
			return s.given(dir, fn, i)
		}
		if assigned := assignedTo(fn, e.Name); len(assigned) > 0 {
			for _, value := range assigned {
				all = append(all, s.reasons(dir, fn, value)...)
			}
			return all
		}
	case *ast.SelectorExpr:
		if c, ok := s.carriers[dir+": "+types.ExprString(e)]; ok {
			return s.carried(c)
		}
		for folder := range s.folders {
			if x, ok := e.X.(*ast.Ident); ok && filepath.Base(folder) == x.Name {
				if value := s.constant(folder, e.Sel.Name); value != nil {
					return s.reasons(folder, nil, value)
				}
			}
		}
	}
	s.fail(expr, expr)
	return nil
}

// constant returns the value of a constant declared in a folder's code.
func (s *search) constant(dir, name string) ast.Expr {
	for _, file := range s.folders[dir] {
		for _, declared := range file.Decls {
			list, ok := declared.(*ast.GenDecl)
			if !ok || list.Tok != token.CONST {
				continue
			}
			for _, spec := range list.Specs {
				values := spec.(*ast.ValueSpec)
				for i, id := range values.Names {
					if id.Name == name && i < len(values.Values) {
						return values.Values[i]
					}
				}
			}
		}
	}
	return nil
}

// parameter returns the index of a function's parameter, or -1.
func parameter(fn *ast.FuncDecl, name string) int {
	if fn == nil {
		return -1
	}
	return slices.Index(names(fn.Type.Params), name)
}

func names(list *ast.FieldList) (all []string) {
	for _, field := range list.List {
		for _, id := range field.Names {
			all = append(all, id.Name)
		}
	}
	return all
}

// given returns the values of a parameter in all calls in the folder.
func (s *search) given(dir string, to *ast.FuncDecl, i int) (all []string) {
	s.each(dir, func(fn *ast.FuncDecl, stack []ast.Node) {
		call, ok := stack[len(stack)-1].(*ast.CallExpr)
		if !ok || len(call.Args) != len(names(to.Type.Params)) {
			return
		}
		called := ""
		switch f := call.Fun.(type) {
		case *ast.Ident:
			called = f.Name
		case *ast.SelectorExpr:
			called = f.Sel.Name
		}
		if called == to.Name.Name {
			all = append(all, s.reasons(dir, fn, call.Args[i])...)
		}
	})
	return all
}

// assignedTo returns the values assigned to a variable of the function.
func assignedTo(fn *ast.FuncDecl, name string) (values []ast.Expr) {
	if fn == nil {
		return nil
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, to := range a.Lhs {
				if id, ok := to.(*ast.Ident); ok && id.Name == name {
					values = append(values, a.Rhs[i])
				}
			}
		}
		return true
	})
	return values
}

// carried returns the values of the field in all literals of the struct.
func (s *search) carried(c carrier) (all []string) {
	place := s.placeOf(c)
	for dir := range s.folders {
		s.each(dir, func(fn *ast.FuncDecl, stack []ast.Node) {
			literal, ok := stack[len(stack)-1].(*ast.CompositeLit)
			if !ok || literal.Type == nil {
				return
			}
			name := types.ExprString(literal.Type)
			if dir == c.dir && name == c.name || dir != c.dir && name == filepath.Base(c.dir)+"."+c.name {
				if value := valueOf(literal, c.field, place); value != nil {
					all = append(all, s.reasons(dir, fn, value)...)
				}
			}
		})
	}
	if len(all) == 0 {
		s.errs = append(s.errs, fmt.Errorf("no literal of %s in %s has a %s", c.name, c.dir, c.field))
	}
	return all
}

// placeOf returns the index of a field in its struct.
func (s *search) placeOf(c carrier) int {
	place := -1
	s.each(c.dir, func(_ *ast.FuncDecl, stack []ast.Node) {
		if spec, ok := stack[len(stack)-1].(*ast.TypeSpec); ok && spec.Name.Name == c.name {
			if fields, ok := spec.Type.(*ast.StructType); ok {
				place = slices.Index(names(fields.Fields), c.field)
			}
		}
	})
	return place
}

// valueOf returns the value of a field in a literal, by name or index; nil if it is unset.
func valueOf(literal *ast.CompositeLit, field string, place int) ast.Expr {
	for i, element := range literal.Elts {
		pair, keyed := element.(*ast.KeyValueExpr)
		if !keyed {
			if i == place {
				return element
			}
			continue
		}
		if key, ok := pair.Key.(*ast.Ident); ok && key.Name == field {
			return pair.Value
		}
	}
	return nil
}
