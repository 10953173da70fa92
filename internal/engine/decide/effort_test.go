// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// full returns a cluster and a pending pod. Preemption helps only on the last node, since most pods
// on the other nodes have a high priority.
func full(t *testing.T, nodes int, change func(*v1.Pod)) (*cluster.Cluster, *cluster.Pod) {
	t.Helper()
	c := benchCluster(nodes, false)
	for i := range nodes {
		for k := range 4 {
			pod := benchPod(0, "plain")
			pod.UID, pod.Spec.NodeName = types.UID(fmt.Sprint(i, "-", k)), fmt.Sprint("node-", i)
			pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("8")
			if i == nodes-1 {
				pod.Spec.Priority = new(int32(-5))
			} else if k > 0 { // not preemptible; only the first pod is, but it does not free enough room
				pod.Spec.Priority = new(int32(100))
			} else {
				pod.Spec.Priority = new(int32(-5))
			}
			c.SetPod(pod)
		}
	}
	pod := benchPod(1, "plain")
	pod.UID = "waiting"
	pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("16")
	change(pod)
	return c, c.Pending(pod)
}

// TestPreemptionGoesOnWhereItStopped verifies that an attempt examines nodes until its effort is
// exhausted, and that later attempts continue with the remaining nodes until one succeeds.
func TestPreemptionGoesOnWhereItStopped(t *testing.T) {
	const nodes = 40
	c, p := full(t, nodes, func(*v1.Pod) {})
	d := New(c, plugins.Default(), 1)
	d.limits.Effort = 3 * costOfFirstLook
	attempts := 0
	for {
		if found := d.Decide(p); found.Node != nil || found.Err != nil {
			t.Fatalf("%+v", found)
		}
		attempts++
		found := d.Preempt(p)
		if found.Node != nil {
			if found.Node.Name != fmt.Sprint("node-", nodes-1) || len(found.Victims) != 2 {
				t.Errorf("%d victims on %s", len(found.Victims), found.Node.Name)
			}
			break
		}
		if !errors.Is(found.Err, ErrTooLong) || found.Message != ErrTooLong.Error() {
			t.Fatalf("attempt %d: %+v", attempts, found)
		}
		if attempts > nodes {
			t.Fatal("it never ends")
		}
	}
	if attempts < nodes/4 {
		t.Errorf("%d attempts", attempts)
	}
	if again := d.Preempt(p); again.Node == nil {
		t.Errorf("what was found is forgotten: %+v", again)
	}
}

// TestPlainPreemptionEnds verifies that preemption by Plain gives up if each victim costs a scan of
// all nodes, and that with enough effort it finds the node.
func TestPlainPreemptionEnds(t *testing.T) {
	c, p := full(t, 10, func(pod *v1.Pod) {
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{},
		}}
	})
	profile := plugins.Default()
	for i := range profile.Scorers {
		profile.Scorers[i].Weight = maxBuckets // exceeds the scores that groups of nodes can express
	}
	d := New(c, profile, 1)
	if _, pl := d.cache.rankingFor(p); pl.way != plainly {
		t.Fatalf("it is decided in way %d", pl.way)
	}
	if found := d.Preempt(p); found.Node == nil || found.Node.Name != "node-9" {
		t.Errorf("%+v", found)
	}
	d.limits.Effort = 2 * effort.CostOfPreparing(c, p)
	if found := d.Preempt(p); found.Node != nil || !errors.Is(found.Err, ErrTooLong) {
		t.Errorf("%+v", found)
	}
	c.Nominate(c.Pending(nominee()), "node-3")
	d.limits.Effort = 1
	if found := d.Decide(p); found.Err == nil {
		t.Errorf("judging a node that a pod is nominated to: %+v", found)
	}
}

func nominee() *v1.Pod {
	pod := benchPod(2, "plain")
	pod.UID, pod.Spec.Priority = "nominee", new(int32(1000))
	return pod
}
