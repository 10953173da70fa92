// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package flagparity

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// sources lists, by module, the upstream packages that declare the metrics of kube-scheduler and of
// the two controllers, including metrics of the libraries that all components share.
var sources = map[string][]string{
	"k8s.io/kubernetes": {
		"pkg/scheduler/metrics", "pkg/scheduler/metrics/resources", "pkg/scheduler/framework/plugins/volumebinding/metrics",
		"pkg/controller/nodelifecycle", "pkg/controller/tainteviction/metrics", "pkg/controller/devicetainteviction/metrics",
	},
	"k8s.io/dynamic-resource-allocation": {"resourceclaim/metrics"},
	"k8s.io/component-base":              {"metrics/prometheus/*", "metrics/prometheus/clientgo/*"},
}

// declared returns the metrics declared in the code of these packages.
func declared(t *testing.T) (all []documented) {
	t.Helper()
	for module, folders := range sources {
		dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range folders {
			files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), folder, "*.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s has no %s (%v)", module, folder, err)
			}
			all = append(all, declaredIn(t, files)...)
		}
	}
	return all
}

func declaredIn(t *testing.T, files []string) (all []documented) {
	t.Helper()
	values := constants{}
	var parsed []*ast.File
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		values.read(f)
		parsed = append(parsed, f)
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if d := values.declaration(call); d.Name != "" {
					all = append(all, d)
				}
			}
			return true
		})
	}
	return all
}

// constants maps the names of a package's string constants to their values.
type constants map[string]string

func (c constants) read(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == len(spec.Values) {
			for i, name := range spec.Names {
				if text := c.text(spec.Values[i]); text != "" {
					c[name.Name] = text
				}
			}
		}
		return true
	})
}

// text returns the string value of an expression. For a constant of another package, it returns the
// constant's name.
func (c constants) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.Ident:
		return c[e.Name]
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func (c constants) texts(e ast.Expr) (all []string) {
	if list, ok := e.(*ast.CompositeLit); ok {
		for _, item := range list.Elts {
			all = append(all, c.text(item))
		}
	}
	return all
}

var constructor = regexp.MustCompile(`^New(Counter|Gauge|Histogram|TimingRatioHistogram)(Vec|Func)?$`)

// declaration returns the metric that a call declares. The name is empty if the call does not
// declare a metric.
func (c constants) declaration(call *ast.CallExpr) (d documented) {
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return d
	}
	if function.Sel.Name == "NewDesc" && len(call.Args) == 6 {
		return documented{Name: c.text(call.Args[0]), Type: "Custom", Labels: c.texts(call.Args[2]), StabilityLevel: c.text(call.Args[4])}
	}
	made := constructor.FindStringSubmatch(function.Sel.Name)
	if made == nil {
		return d
	}
	pointer, ok := call.Args[0].(*ast.UnaryExpr)
	if !ok {
		return d
	}
	options := map[string]string{}
	for _, item := range pointer.X.(*ast.CompositeLit).Elts {
		pair := item.(*ast.KeyValueExpr)
		options[pair.Key.(*ast.Ident).Name] = c.text(pair.Value)
	}
	d = documented{
		Name: options["Name"], Namespace: options["Namespace"], Subsystem: options["Subsystem"],
		Type: made[1], StabilityLevel: cmp.Or(options["StabilityLevel"], "ALPHA"),
	}
	if len(call.Args) > 1 {
		d.Labels = c.texts(call.Args[1])
	}
	return d
}
