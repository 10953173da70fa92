// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// rooms lists the folders of the root module in layers, the lowest first. A room may import only
// rooms before it in this list, so no two rooms import each other. A folder listed inside another
// one is a separate room.
var rooms = []string{
	"api", "client", "deploy", "internal/pacing", "internal/response", "internal/owned", "internal/durable", "internal/answer", "internal/usage", "internal/quantity", "internal/kube",
	"internal/engine", "internal/engine/gang", "internal/engine/cycle", "internal/engine/reconstruct", "internal/engine/journal", "internal/admission", "internal/world", "internal/controller", "internal/node",
	"internal/inspect", "internal/queryserver", "internal/assistant", "internal/scheduler", "internal/ui", "internal/containerd", "internal/cli", "internal/up", "scheduler", "examples", "cmd", "docs", "internal/docs", "internal/layout",
}

// public lists the packages for other modules, which are kept stable. Everything else is internal
// or a program. The embedded cluster is also public, and a separate module (controlplane/).
var public = []string{"api/berth/v1alpha1", "client", "deploy", "scheduler", "scheduler/plugintest"}

func TestArrowsGoOneWay(t *testing.T) {
	used := map[string]bool{}
	for _, p := range packages(t) {
		from := roomOf(p.path)
		if from < 0 {
			t.Errorf("%s is in no room: add its folder to rooms, or put it into one", p.path)
			continue
		}
		used[rooms[from]] = true
		for _, imported := range p.imports {
			path, ours := strings.CutPrefix(imported, module)
			if to := roomOf(path); ours && to > from {
				t.Errorf("%s imports %s, which stands above it", p.path, path)
			}
		}
	}
	for _, room := range rooms {
		if !used[room] {
			t.Errorf("there is no package in %s any more", room)
		}
	}
}

func TestLittleIsPublic(t *testing.T) {
	for _, p := range packages(t) {
		inside := strings.HasPrefix(p.path, "internal/") || strings.HasPrefix(p.path, "examples/") || p.name == "main"
		if !inside && !slices.Contains(public, p.path) {
			t.Errorf("%s can be imported by anybody: make it internal, or list it in public", p.path)
		}
	}
}

// roomOf returns the index in rooms of a package's innermost room, or -1.
func roomOf(path string) int {
	innermost := -1
	for i, room := range rooms {
		inside := path == room || strings.HasPrefix(path, room+"/")
		if inside && (innermost < 0 || len(room) > len(rooms[innermost])) {
			innermost = i
		}
	}
	return innermost
}

type goPackage struct {
	path, name string
	imports    []string
}

// packages lists the packages of the root module, with the imports of their non-test files.
func packages(t *testing.T) (all []goPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{.Name}}{{range .Imports}} {{.}}{{end}}`, "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		all = append(all, goPackage{strings.TrimPrefix(fields[0], module), fields[1], fields[2:]})
	}
	if len(all) < 50 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}
