// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestIntegrationsAreKnown compares the kustomization of all integrations with a stored one, which
// test/e2e_deploy applies to an API server.
func TestIntegrationsAreKnown(t *testing.T) {
	objects := kustomized(t, "second-scheduler", "serve", "serve-tls", "../../../integrations/deploy/kueue", "../../../integrations/deploy/expander")
	file := filepath.Join("testdata", "integrations.yaml")
	got := asYAML(t, withoutNamespace(t, objects))
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (go test . -update writes it):\n%s", file, diff)
	}

	var commands []string
	for _, o := range objects {
		if o["kind"] != "Deployment" {
			continue
		}
		for container, m := range memory(t, o) {
			if m.limit == 0 || !m.fits() {
				t.Errorf("%s: %s: %+v MiB", o.id(), container, m)
			}
		}
		pod := o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		for _, container := range pod["containers"].([]any) {
			container := container.(map[string]any)
			if container["image"] != treeRepository+":v0.1.0" {
				t.Errorf("%s: image %v, which no variable replaces", o.id(), container["image"])
			}
			if command, ok := container["command"].([]any); ok && o.id() != "Deployment berth-system/berth-scheduler" {
				commands = append(commands, command[0].(string))
			}
		}
	}
	var programs []string
	for _, program := range ImagePrograms(false, true)[2:] {
		programs = append(programs, "/"+program)
	}
	slices.Sort(commands)
	slices.Sort(programs)
	if !slices.Equal(commands, programs) {
		t.Errorf("the commands are %v, and the image has %v", commands, programs)
	}
}
