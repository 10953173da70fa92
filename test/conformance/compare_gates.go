// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// compareGates compares the messages of the plugins at PreEnqueue.
func (c *comparison) compareGates(ctx context.Context, pod *v1.Pod) {
	waiting := c.berth.cluster.Pending(pod)
	said := map[string]string{}
	for _, gate := range c.berth.profile.Gates {
		said[gate.Name()] = gate.Admit(waiting)
	}
	for _, f := range c.berth.profile.Filters {
		if gate, ok := f.(preEnqueue); ok {
			said[f.Name()] = gate.PreEnqueue(c.berth.cluster, waiting)
		}
	}
	for _, name := range []string{"SchedulingGates", "DynamicResources"} {
		gate, ok := c.upstream.plugins[name].(fwk.PreEnqueuePlugin)
		if !ok {
			continue // not among the compared plugins
		}
		c.totals.Messages++
		if want := gate.PreEnqueue(ctx, pod).Message(); want != said[name] {
			c.addDifference(pod, "", name, "gate", want, said[name])
		}
	}
}

// preEnqueue is implemented by the filters that gate pods depending on the cluster.
type preEnqueue interface {
	PreEnqueue(*cluster.Cluster, *cluster.Pod) (message string)
}
