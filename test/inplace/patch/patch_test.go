package patch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUpstreamTakesThePatches: what they are put behind is in the release of Kubernetes that go.mod
// names.
func TestUpstreamTakesThePatches(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "kubernetes")
	if err := Copy(strings.TrimSpace(string(module)), to); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(to, "pkg/scheduler/scheduler.go"))
	if err != nil || !strings.Contains(string(text), "sched.inPlace.Run(ctx)") {
		t.Errorf("the copy is not patched: %v", err)
	}
	if _, err := (edit{file: "f", at: "a"}).apply("a a"); err == nil {
		t.Error("a place that is there twice is taken")
	}
}
