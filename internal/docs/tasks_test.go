// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"slices"
	"strings"
	"testing"
)

// TestTasksNameTheirCluster verifies that a page names its cluster before the first command, and
// that pages with scripts that use the manifests of deploy/ name one.
func TestTasksNameTheirCluster(t *testing.T) {
	named := 0
	for _, page := range pages(t) {
		deploys := slices.ContainsFunc(page.Blocks, func(b Block) bool {
			return b.Language == "sh" && strings.Contains(strings.Join(b.Lines, "\n"), " deploy/")
		})
		line := slices.IndexFunc(page.Lines, func(line string) bool { return strings.HasPrefix(line, "**Cluster:** ") })
		switch {
		case line < 0 && deploys:
			t.Errorf("%s: no line **Cluster:**, though the commands install something", page.Path)
		case line >= 0:
			named++
			if len(page.Blocks) == 0 || line+1 >= page.Blocks[0].Line {
				t.Errorf("%s:%d: the cluster is named after the first command, or there is no command", page.Path, line+1)
			}
		}
	}
	if named < 12 {
		t.Errorf("only %d pages name their cluster", named)
	}
}
