// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAPodThatAScorerSkipsIsNoExample verifies that resource balance is scored for a pod that
// requests a scored resource, even if the skeleton could have been made for a pod without such
// requests, which the scorer skips.
func TestAPodThatAScorerSkipsIsNoExample(t *testing.T) {
	for name, resources := range map[string][]config.ResourceSpec{
		"CPU":             {{Name: "cpu", Weight: 1}},
		"CPU and devices": {{Name: "cpu", Weight: 1}, {Name: "example.com/gpu", Weight: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			profile, err := plugins.NewProfile(plugins.DefaultSchedulerName, plugins.Default().At, plugins.Default().Weights, map[string]any{
				"NodeResourcesBalancedAllocation": &config.NodeResourcesBalancedAllocationArgs{Resources: resources},
			})
			if err != nil {
				t.Fatal(err)
			}
			c := benchCluster(3, false)
			d := New(c, profile, 1)
			for i, requests := range []v1.ResourceList{
				{v1.ResourceMemory: resource.MustParse("1Gi")},
				{v1.ResourceCPU: resource.MustParse("1")},
				{v1.ResourceMemory: resource.MustParse("2Gi")},
			} {
				pod := benchPod(i, "plain")
				pod.UID = types.UID("waiting-" + string(rune('a'+i)))
				pod.Spec.Containers[0].Resources.Requests = requests
				p := c.Pending(pod)
				holds(t, c, d, p, d.Decide(p))
			}
		})
	}
}
