// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"regexp"
	"testing"
)

// TestVersionIsThatOfTheLibraries verifies that the constant Kubernetes equals the version of the
// libraries in the go.mod of every module.
func TestVersionIsThatOfTheLibraries(t *testing.T) {
	modules := []string{"", "controlplane/", "test/", "test/specs/"}
	required := regexp.MustCompile(`(?m)^\s*k8s\.io/(client-go|kubernetes) v[01](\.\S+)$`)
	for _, module := range modules {
		text, err := os.ReadFile("../../../" + module + "go.mod")
		if err != nil {
			t.Fatal(err)
		}

		found := required.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%sgo.mod requires no libraries of Kubernetes", module)
		}
		for _, m := range found {
			if got := "v1" + m[2]; got != Kubernetes {
				t.Errorf("%sgo.mod has k8s.io/%s of %s, and the rules are those of %s", module, m[1], got, Kubernetes)
			}
		}
	}
}
