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
)

// TestGatesThatAreOffAreListed: docs/differences.md lists every feature gate that kube-scheduler's
// code asks about and that is off by default, and no other.
func TestGatesThatAreOffAreListed(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	asked := regexp.MustCompile(`\bfeatures\.([A-Z]\w+)`)
	err = filepath.WalkDir(filepath.Join(strings.TrimSpace(string(module)), "pkg/scheduler"), func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range asked.FindAllStringSubmatch(string(text), -1) {
			if gate, known := utilfeature.DefaultMutableFeatureGate.GetAll()[featuregate.Feature(m[1])]; known && !gate.Default {
				want[m[1]] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Feature gates that are off by default\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, line := range strings.Split(section, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[1], -1) {
			listed = append(listed, m[1])
		}
	}
	for _, gate := range listed {
		if !want[gate] {
			t.Errorf("%s is listed, but is on by default or not asked about", gate)
		}
	}
	for gate := range want {
		if !slices.Contains(listed, gate) {
			t.Errorf("%s is not listed", gate)
		}
	}
}
