// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUpstreamTakesThePatches verifies that the patches can be applied to the Kubernetes release
// that go.mod requires.
func TestUpstreamTakesThePatches(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "kubernetes")
	if err := Kubernetes.Copy(strings.TrimSpace(string(module)), to); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(to, "pkg/scheduler/scheduler.go"))
	if err != nil || !strings.Contains(string(text), "sched.inPlace.Run(ctx)") {
		t.Errorf("the copy is not patched: %v", err)
	}
}

// TestPluginsTakeThePatches verifies the same for scheduler-plugins. It is skipped if the module is
// not in the module cache.
func TestPluginsTakeThePatches(t *testing.T) {
	download := exec.Command("go", "mod", "download", "-json", "sigs.k8s.io/scheduler-plugins@"+PluginsVersion)
	download.Env = append(os.Environ(), "GOPROXY=off")
	told, err := download.Output()
	if err != nil {
		t.Skip("the module is not in the module cache, and only its own tests download it: make integration INTEGRATIONFLAGS='-packages scheduler-plugins/coscheduling'")
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(told, &module); err != nil {
		t.Fatal(err)
	}
	if err := Plugins.Copy(module.Dir, t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

func TestAnEditThatDoesNotFitIsRefused(t *testing.T) {
	for _, row := range []struct {
		text string
		e    edit
		want string
	}{
		{"a", edit{file: "f.go", at: "a", text: "b"}, "ab"},
		{"a", edit{file: "f.go", at: "a", text: "b", replace: true}, "b"},
		{"a", edit{everywhere: true, at: "a", text: "b", replace: true}, "b"},
		{"a a", edit{file: "f.go", at: "a"}, ""},
		{"a a", edit{everywhere: true, at: "a"}, ""},
		{"c", edit{file: "f.go", at: "a"}, ""},
		{"c", edit{everywhere: true, at: "a"}, ""},
	} {
		from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
		if err := os.WriteFile(filepath.Join(from, "f.go"), []byte(row.text), 0o400); err != nil {
			t.Fatal(err)
		}
		err := Module{parts: []part{{"f.go", "f.go"}}, edits: []edit{row.e}, added: map[string]string{"new/g.go": "n"}}.Copy(from, to)
		got, _ := os.ReadFile(filepath.Join(to, "f.go"))
		if row.want == "" && err == nil || row.want != "" && (err != nil || string(got) != row.want) {
			t.Errorf("%q, %+v: %q, %v", row.text, row.e, got, err)
		}
		if _, added := os.Stat(filepath.Join(to, "new/g.go")); err == nil && added != nil {
			t.Error(added)
		}
	}
}
