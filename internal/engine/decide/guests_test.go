// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestPreemptorIsNoGuestToItself verifies that the cost of making room is recomputed for a
// nominated pod, even if the pod being decided does not name its nominated node. The cached cost
// was computed for another pod of the class and reserved room for the nominated pod.
func TestPreemptorIsNoGuestToItself(t *testing.T) {
	c := cluster.New()
	asks := func(name, cpu string, priority int32, node string, started int64) *v1.Pod {
		pod := benchPod(0, "plain")
		pod.Name, pod.UID, pod.Spec.NodeName, pod.Spec.Priority = name, types.UID(name), node, &priority
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
		if started > 0 {
			pod.Status.StartTime = &metav1.Time{Time: metav1.Unix(started, 0).Time}
		}
		return pod
	}
	for i := range 2 {
		name := fmt.Sprint("node-", i)
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}}})
		for j := range 2 { // the pods on node-0 have run for a shorter time and are cheaper victims
			c.SetPod(asks(fmt.Sprint("low-", i, j), "1", 0, name, int64(100-10*i)))
		}
	}
	d := New(c, plugins.Default(), 1)
	own := c.Pending(asks("own", "1", 10, "", 0))
	c.Nominate(own, "node-0")
	other := c.Pending(asks("other", "1", 10, "", 0))
	d.Decide(other)
	if found := d.Preempt(other); found.Node != c.Node("node-1") {
		t.Fatalf("another pod makes room on %s, want node-1, where nobody else is to go", found.name())
	}
	waiting := *own
	waiting.SetNominated("") // the API does not show the nomination yet
	d.Decide(&waiting)
	fast, plain := d.Preempt(&waiting), NewPlain(c, d.profile).Preempt(&waiting, d.Plain().Evaluate(&waiting))
	if fast.Node != plain.Node || fast.Node != c.Node("node-0") {
		t.Errorf("the nominated pod makes room on %s, the plain way on %s, want node-0", fast.name(), plain.name())
	}
}
