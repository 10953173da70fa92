// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

const packing = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: packing
  plugins: {multiPoint: {enabled: [{name: Fragmentation}]}}
  pluginConfig: [{name: Fragmentation, args: {tasks: [{requests: {nvidia.com/gpu: "4"}}]}}]
`

// TestDevicesByPool verifies the metrics for pods that each request four devices, so that a node
// with three devices is useless. Measuring starts after the first decision, because a scrape must
// not be the first to observe the workload.
func TestDevicesByPool(t *testing.T) {
	parsed, err := config.Parse("packing", []byte(packing), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, profile := cluster.New(), parsed.Profiles[0]
	for name, gpus := range map[string]string{"a": "8", "b": "3"} {
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"karpenter.sh/nodepool": "pool-" + name}},
			Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("64"), "nvidia.com/gpu": resource.MustParse(gpus)}},
		})
	}
	r := New()
	r.WatchDevices(func(look func(cycle.View)) {
		look(cycle.View{Cluster: c, Profiles: map[string]cycle.Profile{"packing": {Profile: profile}}})
	})
	if got := scrape(t, r); strings.Contains(got, "berth_scheduler_fragmentation_devices{") {
		t.Error("devices are measured before there was a decision")
	}

	profile.DeviceValuer().WhatComes(c)
	got := scrape(t, r)
	for _, want := range []string{
		`{pool="pool-a",profile="packing",resource="nvidia.com/gpu",state="size"} 8`,
		`{pool="pool-a",profile="packing",resource="nvidia.com/gpu",state="usable"} 8`,
		`{pool="pool-b",profile="packing",resource="nvidia.com/gpu",state="free"} 3`,
		`{pool="pool-b",profile="packing",resource="nvidia.com/gpu",state="usable"} 0`,
	} {
		if !strings.Contains(got, "berth_scheduler_fragmentation_devices"+want) {
			t.Errorf("there is no %s", want)
		}
	}

	c.RemoveNode("b")
	if got := scrape(t, r); strings.Contains(got, "pool-b") {
		t.Error("a pool that is gone is still measured")
	}
}
