// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package flagparity

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// consulted matches the places in upstream's code that read a feature gate.
var consulted = regexp.MustCompile(`\.Enabled\(\w+\.([A-Z]\w+)\)`)

// TestEveryGateOfKubeSchedulerIsKnown verifies that Berth honours or refuses exactly the feature
// gates in kube-scheduler's code, with the same defaults.
func TestEveryGateOfKubeSchedulerIsKnown(t *testing.T) {
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, folder := range []string{"pkg/scheduler", "cmd/kube-scheduler/app"} {
		err := filepath.WalkDir(filepath.Join(strings.TrimSpace(string(module)), folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range consulted.FindAllStringSubmatch(string(text), -1) {
				names[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	specs := utilfeature.DefaultMutableFeatureGate.GetAll()
	for _, g := range options.Gates() {
		if g.Own {
			continue
		}
		spec, known := specs[featuregate.Feature(g.Name)]
		if !known || !names[g.Name] {
			t.Errorf("kube-scheduler does not consult %s", g.Name)
		}
		if g.On != spec.Default || g.Locked != spec.LockToDefault || g.Alpha != (spec.PreRelease == featuregate.Alpha) ||
			g.Beta != (spec.PreRelease == featuregate.Beta) {
			t.Errorf("%s is %+v, and upstream has %+v", g.Name, g, spec)
		}
		delete(names, g.Name)
	}
	for name := range names {
		t.Errorf("kube-scheduler consults %s, which is not in the list", name)
	}
	if !slices.IsSortedFunc(options.Gates(), func(a, b options.Gate) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the list is not sorted")
	}
}
