// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// BenchmarkTenThousandNodes explains a pod that fits nowhere, for three reasons, on 10,000 nodes
// with 100,000 pods. It excludes the time to read them.
func BenchmarkTenThousandNodes(b *testing.B) {
	w, err := simulate.Open(manifest.Assemble("bench", metropolis(10_000, 10)), simulate.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"waits", "there-77"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				e, err := explain.Of(w, explain.Options{Namespace: "default", Name: name})
				if err != nil {
					b.Fatal(err)
				}
				if name == "waits" && len(e.Suggestions) == 0 {
					b.Fatal(e.Summary)
				}
			}
		})
	}
}

func metropolis(nodes, podsEach int) []metav1.Object {
	var objects []metav1.Object
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		n := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
				v1.LabelHostname: name, v1.LabelTopologyZone: fmt.Sprintf("z%d", i%3), "pool": fmt.Sprint(i % 20),
			}},
			Status: v1.NodeStatus{Allocatable: amounts("8", "32Gi")},
		}
		n.Status.Allocatable[v1.ResourcePods] = amounts("110", "1")[v1.ResourceCPU]
		if i%5 == 0 {
			n.Spec.Taints = []v1.Taint{{Key: "team", Value: fmt.Sprint(i % 4), Effect: v1.TaintEffectNoSchedule}}
		}
		objects = append(objects, n)
		for j := range podsEach {
			p := pod(fmt.Sprintf("there-%d", i*podsEach+j), amounts("700m", "2Gi"))
			p.Labels = map[string]string{"app": fmt.Sprint(j)}
			p.Spec.NodeName = name
			objects = append(objects, p)
		}
	}
	p := pod("waits", amounts("2", "4Gi"))
	p.Spec.NodeSelector = map[string]string{"pool": "3"}
	p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selects("1"),
	}}
	return append(objects, p)
}
