// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHowTosNameTheirCluster verifies that the target cluster is named before the first command.
func TestHowTosNameTheirCluster(t *testing.T) {
	paths, err := filepath.Glob("../../docs/how-to/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no how-tos: %v", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before, _, _ := strings.Cut(string(text), "```")
		if !strings.Contains(before, "\n**Cluster:** ") {
			t.Errorf("%s: no line **Cluster:** before the first command", path)
		}
	}
}
