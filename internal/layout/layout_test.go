// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package layout tests rules for the whole source tree: which packages may import which, package
// names, license headers, the language and width of comments, and the workflows.
package layout

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/berth-k8s/berth/"

// pure lists the packages that only make decisions. They must not use clients, the network or
// processes, not even indirectly. A folder with /... includes all packages in it.
var pure = []string{
	"internal/engine/...", "internal/admission", "internal/world/...", "internal/controller/eviction", "internal/controller/nodehealth",
	"internal/controller/controllerjournal", "internal/controller/rebalance", "internal/controller/rebalance/policy", "internal/controller/rebalance/execute",
	"internal/inspect/manifest", "internal/inspect/simulate", "internal/inspect/trial", "internal/inspect/explain", "internal/inspect/replay", "internal/inspect/whatif", "internal/inspect/survey", "internal/inspect/check",
	"internal/node/admit", "internal/node/pressure", "internal/node/simnodes/simkubelet",
	"internal/ui/model", "deploy",
}

func TestPurePackagesKnowNoClient(t *testing.T) {
	imports := map[string][]string{}
	for _, p := range packages(t) {
		imports[p.path] = p.imports
	}
	var names []string
	for _, name := range pure {
		folder, all := strings.CutSuffix(name, "...")
		found := len(names)
		for path := range imports {
			if path == name || all && strings.HasPrefix(path, folder) {
				names = append(names, path)
			}
		}
		if len(names) == found {
			t.Errorf("there is no package %s any more", name)
		}
	}
	slices.Sort(names)
	deps := dependencies(t, names)
	for _, name := range names {
		if slices.Contains(imports[name], "net/http") { // indirect imports are allowed, because API types import it
			t.Errorf("%s is to be pure, but imports net/http", name)
		}
		for _, dep := range deps[name] {
			switch {
			case dep == "os/exec" && strings.HasPrefix(name, "internal/inspect/"): // unused part of the strategic merge patch library
			case strings.HasSuffix(dep, "util/jsonpath"), strings.HasSuffix(dep, "forked/golang/template"): // these packages use no client
			case strings.HasPrefix(dep, "k8s.io/client-go"), strings.HasPrefix(dep, module+"cmd"), dep == "os/exec":
				t.Errorf("%s is to be pure, but imports %s", name, dep)
			}
		}
	}
}

func TestRootModuleDoesWithoutKubernetesItself(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Path}}", "all").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for _, path := range strings.Fields(string(out)) {
		if path == "k8s.io/kubernetes" {
			t.Error("the root module requires k8s.io/kubernetes; what needs it belongs into controlplane/ or test/")
		}
	}
}

// dependencies lists all direct and indirect imports of each package.
func dependencies(t *testing.T, names []string) map[string][]string {
	t.Helper()
	args := []string{"list", "-f", `{{.ImportPath}} {{join .Deps " "}}`}
	for _, name := range names {
		args = append(args, module+name)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		all[strings.TrimPrefix(fields[0], module)] = fields[1:]
	}
	return all
}
