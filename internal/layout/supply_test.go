// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// pinned matches an action at a commit, with its version as a comment.
var pinned = regexp.MustCompile(`^\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

// TestActionsArePinned verifies that workflows run actions at commits. Tags can be moved.
func TestActionsArePinned(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	if err != nil {
		t.Fatal(err)
	}
	actions := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			_, action, ok := strings.Cut(line, "uses: ")
			if !ok {
				continue
			}
			actions++
			if !pinned.MatchString(action) {
				t.Errorf("%s:%d: %s: an action needs a commit of 40 digits and its version: ACTION@COMMIT # v1.2.3", file, i+1, action)
			}
		}
	}
	if actions < 10 {
		t.Errorf("only %d actions found", actions)
	}
}

// TestSecurityUpdatesAreProposed verifies that dependabot ignores only version updates. Without
// update-types, an entry of ignore suppresses security updates as well.
func TestSecurityUpdatesAreProposed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".github/dependabot.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Updates []struct {
			Ecosystem string `json:"package-ecosystem"`
			Ignore    []struct {
				Name  string   `json:"dependency-name"`
				Types []string `json:"update-types"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	if len(config.Updates) == 0 {
		t.Error("no updates found")
	}
	for _, update := range config.Updates {
		for _, ignored := range update.Ignore {
			if len(ignored.Types) == 0 {
				t.Errorf("%s: security updates of %s are ignored: add update-types", update.Ecosystem, ignored.Name)
			}
		}
	}
}
