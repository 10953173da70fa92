// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestCoreHasNoClient verifies that the cores do not depend on client-go, so that they cannot reach
// a cluster, and can be used offline.
func TestCoreHasNoClient(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".", "../nodehealth").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dep := range strings.Lines(string(out)) {
		if strings.HasPrefix(dep, "k8s.io/client-go") {
			t.Errorf("depends on %s", strings.TrimSpace(dep))
		}
	}
}
