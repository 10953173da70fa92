// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPartsThatNoNodeHasAreForgotten verifies, for nodes that change for a long time, that the
// number of cached parts is bounded by the parts in use, that equal nodes share them at any time,
// and that IDs are never reused.
func TestPartsThatNoNodeHasAreForgotten(t *testing.T) {
	c := New()
	node := func(name string, n int) *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"n": fmt.Sprint(n)}},
			Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: fmt.Sprint(n), Effect: v1.TaintEffectNoSchedule}}},
			Status: v1.NodeStatus{
				Images:      []v1.ContainerImage{{Names: []string{fmt.Sprint("image-", n)}, SizeBytes: 1}},
				Allocatable: v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(n), resource.DecimalSI)},
			},
		}
	}
	seen := map[int32]*LabelSet{}
	for n := range 20 * 1024 {
		a, b := c.SetNode(node("a", n)), c.SetNode(node("b", n))
		still := c.SetNode(node(fmt.Sprint("still-", n%100), n%100))
		if a.Labels != b.Labels || a.Taints != b.Taints || a.Images != b.Images || a.Size != b.Size {
			t.Fatalf("change %d: two nodes that are alike do not share their parts", n)
		}
		for _, set := range []*LabelSet{a.Labels, still.Labels} {
			if other := seen[set.ID]; other != nil && other.Map["n"] != set.Map["n"] {
				t.Fatalf("number %d is that of %v and of %v", set.ID, other.Map, set.Map)
			}
			seen[set.ID] = set
		}
	}
	for what, size := range map[string]int{
		"labels": len(c.parts.labels.values), "taints": len(c.parts.taints.values), "images": len(c.parts.images.values), "sizes": len(c.parts.sizes.values),
	} {
		if size > 1024 {
			t.Errorf("%d %s are kept", size, what)
		}
	}
}

// TestANodeCountsOnceForAnImage verifies that an image name listed twice by a node is counted once,
// with the size listed first.
func TestANodeCountsOnceForAnImage(t *testing.T) {
	c := New()
	node := func(name string, sizes ...int64) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, size := range sizes {
			n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{"web", "web"}, SizeBytes: size})
		}
		return n
	}
	check := func(size int64, nodes int) {
		t.Helper()
		if state := c.Image("web"); state == nil || state.Size != size || state.Nodes != nodes {
			t.Errorf("got %+v, want size %d on %d nodes", state, size, nodes)
		}
	}
	c.SetNode(node("a", 5, 7))
	check(5, 1)
	c.SetNode(node("b", 9))
	check(5, 2)
	c.SetNode(node("a", 7))
	check(5, 2)
	c.RemoveNode("b")
	check(5, 1)
	c.RemoveNode("a")
	if state := c.Image("web"); state != nil {
		t.Errorf("no node has it any more, got %+v", state)
	}
}
