// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// TestCountsByNode verifies that counts by node are correct in each representation, and return to a
// smaller representation when the number of nodes decreases.
func TestCountsByNode(t *testing.T) {
	forms := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		var counts nodeCounts
		want := map[int32]podCount{}
		nodes := rapid.SampledFrom([]int32{20, 100, 400}).Draw(t, "nodes")
		for range rapid.IntRange(1, 40).Draw(t, "phases") {
			first, removes := rapid.Int32Range(0, nodes-1).Draw(t, "first"), rapid.Bool().Draw(t, "removes")
			for node := first; node < min(first+rapid.Int32Range(1, nodes).Draw(t, "length"), nodes); node++ {
				count := podCount{staying: 1}
				if removes {
					count = podCount{-want[node].staying, -want[node].leaving}
				} else if node%3 == 0 {
					count = podCount{leaving: 1}
				}
				if count == (podCount{}) {
					continue
				}
				counts.addPods(node, count)
				n := want[node]
				if n.add(count); n == (podCount{}) {
					delete(want, node)
				} else {
					want[node] = n
				}
				forms[counts.form()] = true
				if counts.len() != len(want) {
					t.Fatalf("%d nodes are counted (%s) where there are %d", counts.len(), counts.form(), len(want))
				}
			}
			if got := maps.Collect(counts.all); !maps.Equal(got, want) {
				t.Fatalf("counts (%s) are %v and should be %v", counts.form(), got, want)
			}
		}
		for node, n := range want {
			counts.addPods(node, podCount{-n.staying, -n.leaving})
		}
		if counts.len() != 0 || counts.form() == "every" {
			t.Fatalf("%d nodes and slots for %s are left of nothing", counts.len(), counts.form())
		}
	})
	if len(forms) != 3 && !testing.Short() { // short runs draw only few cases
		t.Errorf("only these forms were seen: %v", forms)
	}
}

func (c *nodeCounts) form() string {
	switch {
	case c.manyCounts == nil:
		return "few"
	case c.every != nil:
		return "every"
	}
	return "many"
}
