// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestAWorldIsBarren verifies that a world without nodes is barren even with waiting pods, but not
// with members of a group, and that a world with a node is not barren.
func TestAWorldIsBarren(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	member := pod.DeepCopy()
	member.Name, member.Spec.SchedulingGroup = "m", &v1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Allocatable = v1.ResourceList{v1.ResourcePods: resource.MustParse("1")}

	for what, c := range map[string]struct {
		objects []metav1.Object
		barren  bool
	}{
		"nothing":           {nil, true},
		"a pod":             {[]metav1.Object{pod}, true},
		"a node":            {[]metav1.Object{pod, node}, false},
		"a member of group": {[]metav1.Object{pod, member}, false},
	} {
		w, err := simulate.Open(manifest.Assemble("test", c.objects), simulate.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		if w.Barren() != c.barren {
			t.Errorf("%s: barren %v, want %v", what, w.Barren(), c.barren)
		}
		w.Settle()
		if w.Barren() != c.barren {
			t.Errorf("%s, once all is tried: barren %v, want %v", what, w.Barren(), c.barren)
		}
	}
}
