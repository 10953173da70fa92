// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/config"
)

// TestExampleProfilesAreGood verifies that each file of examples/profiles is read without a note.
func TestExampleProfilesAreGood(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "examples", "profiles", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no example profiles: %v", err)
	}
	for _, file := range files {
		c, err := config.Load(file, config.Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		for _, note := range c.Notes {
			t.Errorf("%s: %s", file, note)
		}
	}
}
