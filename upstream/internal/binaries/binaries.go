// Package binaries finds the programs that live tests run, or builds them.
package binaries

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// environment is as it was before tests hid the user's home, in which Go keeps its caches.
var environment = os.Environ()

// In returns the folder of berth and berth-controlplane: the one that BERTH_BIN names, or they are built into work. root is the tree's,
// seen from the test.
func In(work, root string) (string, error) {
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	for _, b := range [][2]string{{".", "./cmd/berth"}, {"upstream", "./cmd/berth-controlplane"}} {
		cmd := exec.Command("go", "build", "-C", filepath.Join(root, b[0]), "-o", work+string(filepath.Separator), b[1])
		cmd.Env = environment
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", b[1], err, out)
		}
	}
	return work, nil
}
