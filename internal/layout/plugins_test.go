// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// pluginsFolder is the folder in which plugins may refer to each other.
const pluginsFolder = "internal/engine/plugins"

// namesPlugins maps the folders and files that may name a plugin or its type to the reason.
var namesPlugins = map[string]string{
	"internal/engine/config":    "the names in configuration files of before, and what they stand for now",
	"internal/node/admit":       "the kubelet's reasons for refusing a pod, which are named as the plugins are",
	"internal/inspect/simulate": "says in DynamicResources' words why it keeps a pod out of the queue",
	"internal/scheduler/runner": "which plugin's time is measured while it binds or writes for a pod",
	"internal/engine/groups":    "the feature gate that is named as the plugin is",

	"internal/scheduler/options/gates.go": "the feature gate that is named as the plugin is",

	"internal/inspect/survey/fragmentation.go": "the kind of the answer, which is named as the plugin is",

	"internal/controller/rebalance/policy/status.go": "the reason for which a kubelet rejects a pod, named as the plugin is",
}

// TestNobodyAsksWhichPluginItIs verifies that no other package distinguishes plugins: a plugin's
// file has everything that the engine, the queue and explain need, behind the interfaces of package
// plugins.
func TestNobodyAsksWhichPluginItIs(t *testing.T) {
	names := map[string]bool{}
	for _, entry := range plugins.Catalog() {
		names[entry.Name] = true
	}
	named := map[string]bool{}
	for _, file := range sources(t) {
		folder := filepath.ToSlash(filepath.Dir(file))
		if folder == pluginsFolder {
			continue
		}
		for _, place := range pluginsIn(t, filepath.Join(root, file), names) {
			named[folder], named[filepath.ToSlash(file)] = true, true
			if namesPlugins[folder]+namesPlugins[filepath.ToSlash(file)] == "" {
				t.Errorf("%s: let the plugin say it itself, behind an interface of package plugins", place)
			}
		}
	}
	for folder := range namesPlugins {
		if !named[folder] {
			t.Errorf("%s names no plugin any more: take it out of namesPlugins", folder)
		}
	}
}

const root = "../.."

// sources lists the Go files of the root module without tests and without examples, which contain
// plugins.
func sources(t *testing.T) (files []string) {
	t.Helper()
	nested := []string{"controlplane", "integrations", "test", "deploy/pack", "hack", "examples"}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(nested, filepath.ToSlash(relative)) || strings.HasPrefix(d.Name(), ".") && path != root):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			files = append(files, relative)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 100 {
		t.Fatalf("only %d files found", len(files))
	}
	return files
}

// pluginsIn lists where a file names a plugin, as a string or as a type.
func pluginsIn(t *testing.T, path string, names map[string]bool) (places []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && names[text] {
				places = append(places, set.Position(n.Pos()).String()+": "+text)
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "plugins" && names[n.Sel.Name] {
				places = append(places, set.Position(n.Pos()).String()+": plugins."+n.Sel.Name)
			}
		}
		return true
	})
	return places
}
