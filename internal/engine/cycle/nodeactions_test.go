// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestWhatChangesAboutANode verifies that a change of a node has the same action as in
// kube-scheduler, and is logged if a decision can depend on it. Reverting the change has the same
// action, and is logged under the same condition.
func TestWhatChangesAboutANode(t *testing.T) {
	node := func() *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"a": "1", v1.LabelHostname: ""}},
			Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "t", Effect: v1.TaintEffectNoSchedule}}},
			Status: v1.NodeStatus{
				Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")},
				Images:      []v1.ContainerImage{{Names: []string{"web"}, SizeBytes: 1}}, DeclaredFeatures: []string{"F"},
				Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
			},
		}
	}
	for name, test := range map[string]struct {
		change  func(n *v1.Node)
		actions string
		logged  bool
	}{
		"nothing":        {func(*v1.Node) {}, "", false},
		"a label":        {func(n *v1.Node) { n.Labels["a"] = "2" }, "UpdateNodeLabel", true},
		"the host name":  {func(n *v1.Node) { n.Labels[v1.LabelHostname] = "h" }, "UpdateNodeLabel", true},
		"no host name":   {func(n *v1.Node) { delete(n.Labels, v1.LabelHostname) }, "UpdateNodeLabel", true},
		"a taint":        {func(n *v1.Node) { n.Spec.Taints[0].Effect = v1.TaintEffectNoExecute }, "UpdateNodeTaint", true},
		"a taint's time": {func(n *v1.Node) { n.Spec.Taints[0].TimeAdded = &metav1.Time{} }, "", false},
		"a cordon":       {func(n *v1.Node) { n.Spec.Unschedulable = true }, "UpdateNodeTaint", true},
		"the size":       {func(n *v1.Node) { n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("2") }, "UpdateNodeAllocatable", true},
		"the same size":  {func(n *v1.Node) { n.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("1000m") }, "", false},
		"capacity":       {func(n *v1.Node) { n.Status.Capacity = n.Status.Allocatable }, "", false},
		"a feature":      {func(n *v1.Node) { n.Status.DeclaredFeatures = nil }, "UpdateNodeDeclaredFeature", true},
		"an image":       {func(n *v1.Node) { n.Status.Images[0].SizeBytes = 2 }, "", true},
		"a condition":    {func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }, "UpdateNodeCondition", false},
		"a heartbeat":    {func(n *v1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }, "", false},
		"an annotation":  {func(n *v1.Node) { n.Annotations = map[string]string{"a": ""} }, "UpdateNodeAnnotation", false},
		"the policy":     {func(n *v1.Node) { n.Spec.PodPreemptionPolicy = &v1.NodePodPreemptionPolicy{} }, "UpdateNodePreemptionPolicy", false},
		"two":            {func(n *v1.Node) { n.Labels["b"], n.Spec.Taints = "", nil }, "UpdateNodeLabel|UpdateNodeTaint", true},
	} {
		was, is := node(), node()
		test.change(is)
		for _, way := range [][2]*v1.Node{{was, is}, {is, was}} {
			c := cluster.New()
			before := *c.SetNode(way[0])
			at := c.Log.Len()
			n := c.SetNode(way[1])
			actions := (nodeActions(&before, n) | otherNodeActions(way[0], way[1])).String()
			if logged := c.Log.Len() > at; actions != test.actions || logged != test.logged {
				t.Errorf("%s: %q, in the log: %t, want %q, %t", name, actions, logged, test.actions, test.logged)
			}
		}
	}
}
