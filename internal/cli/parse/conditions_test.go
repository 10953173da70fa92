// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"fmt"
	"strings"
	"testing"
)

// TestNodesAndConditions verifies that nodes and conditions may be mixed in any order, and that a
// trailing "-" or the status of a healthy node reverts a condition.
func TestNodesAndConditions(t *testing.T) {
	for words, want := range map[string]string{
		"a MemoryPressure=True node/b":     "[a node/b] MemoryPressure=True",
		"MemoryPressure=False a":           "[a] MemoryPressure=",
		"MemoryPressure- Ready- a":         "[a] MemoryPressure=,Ready=",
		"Ready=True":                       "[] Ready=",
		"Ready=False DiskPressure=Unknown": "[] DiskPressure=Unknown,Ready=False",
	} {
		nodes, change, err := NodesAndConditions(strings.Fields(words))
		if got := fmt.Sprint(nodes, " ", change); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", words, got, err, want)
		}
	}
	for words, want := range map[string]string{
		"":                       "name a condition, such as MemoryPressure=True",
		"a b":                    "name a condition, such as MemoryPressure=True",
		"MemoryPressure=Perhaps": `condition MemoryPressure: status "Perhaps": must be True, False or Unknown`,
		"=True":                  "=True",
	} {
		_, _, err := NodesAndConditions(strings.Fields(words))
		refuses(t, words, err, want)
	}
}
