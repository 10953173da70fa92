// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// legacyTypes lists package config's types for earlier files, by their headings on the page.
var legacyTypes = map[string][]string{
	"Policy":                   {"policy", "predicate", "predicateArgument", "priority", "priorityArgument", "policyExtender"},
	"componentconfig/v1alpha1": {"componentConfig", "algorithmSource", "leaderElection"},
}

// TestEarlierFilesAreOnThePage verifies that the page has all fields of legacy files, and the
// plugins that replace predicates and priorities.
func TestEarlierFilesAreOnThePage(t *testing.T) {
	page := configurationPage(t)
	code := searchOf(t, "internal/engine/config")
	for _, title := range slices.Sorted(maps.Keys(legacyTypes)) {
		var want []string
		for _, name := range legacyTypes[title] {
			want = append(want, code.tags(t, name)...)
		}
		slices.Sort(want)
		want = slices.Compact(want)
		var got []string
		for path := range page[title] {
			for name := range strings.SplitSeq(path, ".") {
				got = append(got, strings.TrimSuffix(name, "[]"))
			}
		}
		slices.Sort(got)
		sameLists(t, "docs/reference/configuration.md, "+title, slices.Compact(got), want)
	}
	for title, variables := range map[string][]string{
		"Predicates": {"predicatePlugins"}, "Priorities": {"priorityPlugins"},
	} {
		want := map[string]string{}
		for _, name := range variables {
			maps.Copy(want, code.table(t, name))
		}
		for name, row := range page[title] {
			if plugin, known := want[name]; known && !strings.Contains(row.initial, plugin) {
				t.Errorf("docs/reference/configuration.md:%d: %s becomes %s", row.line, name, plugin)
			}
		}
		var special []string
		for name := range code.table(t, "withoutEquivalent") {
			special = append(special, name)
		}
		got := slices.DeleteFunc(slices.Sorted(maps.Keys(page[title])), func(name string) bool { return slices.Contains(special, name) || name == "EqualPriority" })
		sameLists(t, "docs/reference/configuration.md, "+title, got, slices.Sorted(maps.Keys(want)))
	}
	all := slices.Concat(slices.Collect(maps.Keys(page["Predicates"])), slices.Collect(maps.Keys(page["Priorities"])))
	for name := range code.table(t, "withoutEquivalent") {
		if !slices.Contains(all, name) {
			t.Errorf("docs/reference/configuration.md does not say that %s has no equivalent", name)
		}
	}
}

// searchOf reads the code of one folder.
func searchOf(t *testing.T, dir string) *search {
	t.Helper()
	s := newSearch(filepath.Join(root, dir), nil)
	if err := s.parse(); err != nil {
		t.Fatal(err)
	}
	return s
}

// tags returns the names of a struct's fields in a file.
func (s *search) tags(t *testing.T, name string) (all []string) {
	t.Helper()
	found := false
	s.each(".", func(_ *ast.FuncDecl, stack []ast.Node) {
		spec, ok := stack[len(stack)-1].(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return
		}
		found = true
		ast.Inspect(spec.Type, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && field.Tag != nil {
				tag, _ := strconv.Unquote(field.Tag.Value)
				if name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ","); name != "" {
					all = append(all, name)
				}
			}
			return true
		})
	})
	if !found {
		t.Errorf("package config has no type %s", name)
	}
	return all
}

// table returns a map of strings, or of lists of strings, declared in the code.
func (s *search) table(t *testing.T, name string) map[string]string {
	t.Helper()
	rows := map[string]string{}
	s.each(".", func(_ *ast.FuncDecl, stack []ast.Node) {
		spec, ok := stack[len(stack)-1].(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != name {
			return
		}
		for _, element := range spec.Values[0].(*ast.CompositeLit).Elts {
			pair := element.(*ast.KeyValueExpr)
			value := pair.Value
			if many, ok := value.(*ast.CompositeLit); ok {
				value = many.Elts[0]
			}
			rows[textOf(pair.Key)] = textOf(value)
		}
	})
	if len(rows) == 0 {
		t.Errorf("package config has no table %s", name)
	}
	return rows
}

func textOf(expr ast.Expr) string {
	literal, _ := expr.(*ast.BasicLit)
	if literal == nil {
		return ""
	}
	text, _ := strconv.Unquote(literal.Value)
	return text
}
