// Package layout keeps the shape of the tree: what may import what.
package layout

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/berth-k8s/berth/"

// pure packages decide; they see no client, no network, no process. Not even through others.
var pure = []string{
	"internal/engine/rules", "internal/engine/cluster", "internal/engine/plugins", "internal/engine/decide", "internal/engine/queue", "internal/engine/cycle",
	"internal/engine/journal", "internal/engine/journal/records", "internal/admission", "internal/controller/eviction", "internal/controller/nodehealth",
	"internal/controller/journal", "internal/controller/rebalance", "internal/controller/rebalance/policy", "internal/controller/rebalance/execute",
	"internal/inspect/manifest", "internal/inspect/simulate", "internal/inspect/standin", "internal/inspect/trial", "internal/inspect/explain", "internal/inspect/whatif", "internal/inspect/survey", "internal/inspect/check",
	"internal/node/admit", "internal/node/agent/lifecycle", "internal/node/agent/env", "internal/node/agent/cgroups", "internal/node/agent/pressure", "internal/node/agent/metrics",
	"internal/ui/model", "deploy",
}

func TestPurePackagesKnowNoClient(t *testing.T) {
	for _, name := range pure {
		for _, dep := range dependencies(t, module+name) {
			switch {
			case dep == "os/exec" && (name == "internal/inspect/explain" || name == "internal/inspect/survey"): // comes with the library of strategic merge patches, and is not used
			case strings.HasSuffix(dep, "util/jsonpath"), strings.HasSuffix(dep, "forked/golang/template"): // of client-go, and know no client either
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

// dependencies lists all that a package imports, directly or through others; nothing if there is no
// such package yet.
func dependencies(t *testing.T, path string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-e", "-json=Deps,Error", path).Output()
	if err != nil {
		t.Fatalf("go list %s: %v", path, err)
	}
	var listed struct {
		Deps  []string
		Error *struct{ Err string }
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		t.Fatalf("go list %s: %v", path, err)
	}
	if listed.Error != nil {
		t.Logf("%s: %s", path, listed.Error.Err)
		return nil
	}
	if len(listed.Deps) == 0 {
		t.Errorf("%s imports nothing at all: is the list of packages here out of date?", path)
	}
	return listed.Deps
}
