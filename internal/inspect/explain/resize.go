// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// explainResize explains a resize deferred by the kubelet: whether it fits, and otherwise whether
// preemption makes room for it. The pod must be hypothetically off its node.
func (e *explainer) explainResize(profile *plugins.Profile) {
	if !helper.IsPodResizeDeferred(e.object) {
		return
	}
	waiting := cluster.NewPod(e.c.ResizeClass(e.object), e.object.Name, e.object.UID)
	waiting.SetNominated(e.object.Spec.NodeName)
	e.out.Resize = "Its kubelet has deferred a resize of the pod" + e.resizeOutcome(profile, waiting)
	e.out.Summary += " " + e.out.Resize
}

// resizeOutcome completes the sentence about a deferred resize.
func (e *explainer) resizeOutcome(profile *plugins.Profile, waiting *cluster.Pod) string {
	if e.c.Node(waiting.Nominated).Taints.SparesPods {
		return "; the podPreemptionPolicy of the node disables preemption for it."
	}
	if e.w.Decider(profile.SchedulerName).Decide(waiting).Node != nil {
		return ", which fits now; the kubelet has yet to accept it."
	}
	e.tryPreemption(profile, waiting)
	p := e.out.Preemption
	if !p.Helps {
		return ", which does not fit, and preemption does not help: " + p.Message
	}
	return fmt.Sprintf(", which fits only without %s; a scheduler with the feature gate "+
		"InPlacePodVerticalScalingSchedulerPreemption makes room for it.", answer.Count(len(p.Victims), "other pod"))
}
