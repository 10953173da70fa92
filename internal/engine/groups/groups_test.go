// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package groups_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

func member(name, group string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	if group != "" {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	}
	return p
}

// TestMembersCount verifies that pods count before and after their PodGroup appears, that pods of
// other schedulers count once they have a node, and that terminated pods and pods being deleted do
// not count. A group without object and members is dropped.
func TestMembersCount(t *testing.T) {
	s, name := groups.New(), cluster.Name{Namespace: "ns", Name: "g"}
	counts := func(want int) {
		t.Helper()
		got := -1
		if g := s.Get(name); g != nil {
			got = g.Count()
		}
		if got != want {
			t.Errorf("counts %d pods, want %d", got, want)
		}
	}
	if g, by := s.SetPod(member("lone", ""), true); g != nil || by != 0 {
		t.Error("a pod that names no group has one")
	}
	if _, by := s.SetPod(member("a", "g"), true); by != 1 {
		t.Error("a has not joined")
	}
	if _, by := s.SetPod(member("a", "g"), true); by != 0 {
		t.Error("a has joined twice")
	}
	s.SetPod(member("foreign", "g"), false)
	counts(1)
	if _, by := s.SetPod(member("foreign", "g"), true); by != 1 {
		t.Error("a pod of another scheduler has not joined with its node")
	}
	counts(2)
	g := s.SetObject(&groups.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g", UID: "1"},
		Spec:       groups.PodGroup{}.Spec,
	})
	g.Object.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}
	if g.MinCount() != 3 || g.Count() != 2 || s.GroupOf("a") != g || s.ByUID("1") != g {
		t.Errorf("group %+v", g)
	}
	leaves := member("foreign", "g")
	leaves.DeletionTimestamp = &metav1.Time{}
	if _, by := s.SetPod(leaves, true); by != -1 {
		t.Error("a pod that is being deleted counts")
	}
	counts(1)
	for uid := range g.Counted {
		if uid != "a" {
			t.Errorf("%s is yielded as one that counts", uid)
		}
	}
	ended := member("a", "g")
	ended.Status.Phase = v1.PodSucceeded
	if g, _ := s.SetPod(ended, true); g != nil {
		t.Errorf("a pod that has ended belongs to %v", g.Name)
	}
	s.LosePod("a")
	counts(0)
	if _, by := s.LosePod("foreign"); by != 0 {
		t.Error("a pod that did not count is lost to the count")
	}
	counts(0)
	s.LoseObject(name)
	counts(-1)
}

// TestGates verifies that names and dependencies of the gates equal upstream's.
func TestGates(t *testing.T) {
	all := groups.Gates{Generic: true, Topology: true, Claims: true, Policy: true, Composite: true}
	for _, c := range []struct {
		set  map[string]bool
		want groups.Gates
		bad  bool
	}{
		{nil, groups.Gates{}, false},
		{map[string]bool{"GenericWorkload": true}, groups.Gates{Generic: true}, false},
		{map[string]bool{"TopologyAwareWorkloadScheduling": true}, groups.Gates{}, true},
		{map[string]bool{"AllAlpha": true, "AllBeta": true}, all, false},
		{map[string]bool{"AllAlpha": true}, groups.Gates{}, false},
		{map[string]bool{"AllBeta": true, "DRAWorkloadResourceClaims": false}, groups.Gates{Generic: true}, false},
		{map[string]bool{"DRAWorkloadResourceClaims": true}, groups.Gates{}, true},
		{map[string]bool{"PodGroupPreemptionPolicy": true}, groups.Gates{}, true},
		{map[string]bool{"CompositePodGroup": true, "GenericWorkload": true}, groups.Gates{}, true},
		{map[string]bool{"AllAlpha": true, "GenericWorkload": true, "TopologyAwareWorkloadScheduling": false},
			groups.Gates{Generic: true, Policy: true}, false},
		{map[string]bool{"GenericWorkload": true, "DRAWorkloadResourceClaims": true}, groups.Gates{Generic: true, Claims: true}, false},
	} {
		if got, err := groups.GatesOf(c.set); got != c.want || (err != nil) != c.bad {
			t.Errorf("%v: %+v, %v; want %+v", c.set, got, err, c.want)
		}
	}
}
