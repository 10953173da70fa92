// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// BenchmarkDaemons measures the pods of a DaemonSet, each pinned by name to one of 3,000 nodes by
// node affinity, as created by the controller.
func BenchmarkDaemons(b *testing.B) {
	const nodes = 3000
	c := benchCluster(nodes, false)
	d := New(c, plugins.Default(), 1)
	const many = 20 * nodes // the cluster is full after this many pods
	pods := make([]*v1.Pod, many)
	for i := range pods {
		pods[i] = daemon(i, nodes)
	}
	for i := 0; b.Loop(); i++ {
		if i%many == many-1 {
			b.StopTimer()
			c = benchCluster(nodes, false)
			d = New(c, plugins.Default(), 1)
			b.StartTimer()
		}
		p := c.Pending(pods[i%many])
		decision := d.Decide(p)
		if decision.Node == nil {
			b.Fatalf("pod %d: no node", i)
		}
		c.Place(p, decision.Node)
	}
}

// daemon returns the i-th pod in a sequence of DaemonSets.
func daemon(i, nodes int) *v1.Pod {
	pod := benchPod(0, "plain")
	pod.Labels["app"] = fmt.Sprint(i / nodes)
	pod.Name, pod.UID = fmt.Sprintf("daemon-%d", i), types.UID(fmt.Sprint(i))
	pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
		NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{fmt.Sprintf("node-%d", i%nodes)},
		}}}},
	}}}
	return pod
}
