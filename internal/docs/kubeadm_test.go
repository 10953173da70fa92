// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// scheduler and controllers are the relevant parts of kubeadm v1.36's manifests.
const (
	scheduler   = "spec:\n  containers:\n  - command:\n    - kube-scheduler\n    - --leader-elect=true\n"
	controllers = "spec:\n  containers:\n  - command:\n    - kube-controller-manager\n    - --bind-address=127.0.0.1\n" +
		"    - --controllers=*,bootstrapsigner,tokencleaner\n    - --leader-elect=true\n"
)

// TestFilesOfKubeadm verifies, on copies of kubeadm's files, the steps of
// docs/tasks/replace-kube-scheduler.md for control plane nodes, and that the section "Back"
// restores the originals.
func TestFilesOfKubeadm(t *testing.T) {
	page, back := onControlPlaneNodes(t)
	etc := t.TempDir()
	for name, text := range map[string]string{"kube-scheduler.yaml": scheduler, "kube-controller-manager.yaml": controllers} {
		write(t, filepath.Join(etc, "manifests", name), text)
	}
	run := func(commands []string) {
		t.Helper()
		script := strings.ReplaceAll(strings.Join(commands, "\n"), "/etc/kubernetes", etc)
		if out, err := exec.CommandContext(t.Context(), "bash", "-euxc", script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}

	run(page)
	if _, err := os.Stat(filepath.Join(etc, "manifests", "kube-scheduler.yaml")); !os.IsNotExist(err) {
		t.Errorf("kube-scheduler still is a static pod: %v", err)
	}
	without := strings.Replace(controllers, "tokencleaner", "tokencleaner,-node-lifecycle-controller,-taint-eviction-controller,-device-taint-eviction-controller", 1)
	if got := contents(t, filepath.Join(etc, "manifests", "kube-controller-manager.yaml")); got != without {
		t.Errorf("kube-controller-manager runs with\n%s\nwant\n%s", got, without)
	}

	run(back)
	for name, before := range map[string]string{"kube-scheduler.yaml": scheduler, "kube-controller-manager.yaml": controllers} {
		if got := contents(t, filepath.Join(etc, "manifests", name)); got != before {
			t.Errorf("%s comes back as\n%s\nwas\n%s", name, got, before)
		}
	}
}

// onControlPlaneNodes returns the commands on the page for control plane nodes: the commands above
// the heading "Back", and the commands below it.
func onControlPlaneNodes(t *testing.T) (there, back []string) {
	t.Helper()
	all := pages(t)
	page := all[slices.IndexFunc(all, func(p *Page) bool { return p.Path == "docs/tasks/replace-kube-scheduler.md" })]
	heading := slices.Index(page.Lines, "## Back")
	for _, block := range page.Blocks {
		for _, command := range block.Commands() {
			switch {
			case !strings.Contains(command.Text, "/etc/kubernetes/"):
			case command.Line > heading+1:
				back = append(back, command.Text)
			default:
				there = append(there, command.Text)
			}
		}
	}
	if len(there) < 2 || len(there) != len(back) {
		t.Fatalf("there by %q, back by %q", there, back)
	}
	return there, back
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func contents(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
