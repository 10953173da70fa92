// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/admit"
)

// This file resizes pods in place, like the kubelet's allocation manager: immediately if the node
// has enough free resources. Otherwise, the reason of the condition PodResizePending explains the
// delay.

// resizePod changes the pod's resources in place if they fit on the node. Otherwise the pod keeps
// its resources, and a condition reports that the resize is pending. A Deferred resize is retried
// when resources become free; an Infeasible one exceeds the node's allocatable resources. As in the
// kubelet, a pod resizes all its containers or none.
func (f *Fleet) resizePod(p *pod, pl *play) {
	var changed []int
	for i := range pl.status.ContainerStatuses {
		cs, c := &pl.status.ContainerStatuses[i], &p.object.Spec.Containers[i]
		// A container that is not running will start with the spec's amounts.
		if cs.State.Running == nil || cs.Resources == nil {
			continue
		}
		if !semanticEqual(cs.Resources.Requests, c.Resources.Requests) || !semanticEqual(cs.Resources.Limits, c.Resources.Limits) {
			changed = append(changed, i)
		}
	}

	p.deferred, p.counted = false, nil
	if len(changed) == 0 {
		dropCondition(pl.status, v1.PodResizePending)
		return
	}

	// Use the amounts of the spec for this pod, and the allocated amounts for the other pods.
	wants := admit.DemandOf(p.object, false)
	if r := admit.Room(wants, p.node.object, p.node.demandsWithout(p)); r != nil {
		p.deferred, p.counted = true, nil
		// Check whether the resize would fit on the empty node.
		if never := admit.Room(wants, p.node.object, nil); never != nil {
			pl.setCondition(v1.PodResizePending, true, v1.PodReasonInfeasible, never.Message)
		} else {
			pl.setCondition(v1.PodResizePending, true, v1.PodReasonDeferred, r.Message)
		}
		return
	}

	for _, i := range changed {
		pl.reportSize(&p.object.Spec.Containers[i], &pl.status.ContainerStatuses[i])
	}
	dropCondition(pl.status, v1.PodResizePending)
}

// allocatedPod returns a copy of a pod whose resize is pending, with the resources allocated to
// each container instead of the resources in its spec. A kubelet reads the allocation from its
// checkpoint; here it is read from the status.
func allocatedPod(object *v1.Pod) *v1.Pod {
	o := *object
	o.Spec.Containers = slices.Clone(object.Spec.Containers)
	for i := range o.Spec.Containers {
		c := &o.Spec.Containers[i]
		for _, cs := range object.Status.ContainerStatuses {
			if cs.Name == c.Name && cs.Resources != nil {
				c.Resources = *cs.Resources
			}
		}
	}
	return &o
}

// dropCondition removes a condition.
func dropCondition(st *v1.PodStatus, kind v1.PodConditionType) {
	st.Conditions = slices.DeleteFunc(st.Conditions, func(c v1.PodCondition) bool { return c.Type == kind })
}
