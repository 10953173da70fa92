// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// autoscaled is the annotation of pods with requests set by a vertical autoscaler at their
// creation.
const autoscaled = "vpaUpdates"

// AsMade returns the pod with the requests that its containers had at creation, if the template
// with these requests is still in use. The successor of a pod resized in place has this original
// size. AsMade does not modify the pod. It returns the pod unchanged if there is no original size
// to restore: the controller is unknown, or an autoscaler sets the requests again when the
// successor is created.
func (t *Table) AsMade(p *v1.Pod) *v1.Pod {
	// The first change of a spec sets the generation to 2.
	if p.Generation < 2 || p.Annotations[autoscaled] != "" {
		return p
	}
	l := t.ControllerOf(p)
	if l == nil || isOfAnotherTemplate(l.Object, p) {
		return p
	}

	made := p.DeepCopy()
	of := &l.Template.Spec
	changed := putBackAll(made.Spec.InitContainers, of.InitContainers)
	changed = putBackAll(made.Spec.Containers, of.Containers) || changed
	if made.Spec.Resources != nil && of.Resources != nil {
		changed = putBack(made.Spec.Resources, of.Resources) || changed
	}
	if !changed {
		return p
	}
	return made
}

// putBackAll applies putBack to containers of the same name.
func putBackAll(containers, of []v1.Container) (changed bool) {
	for i := range containers {
		for j := range of {
			if containers[i].Name == of[j].Name {
				changed = putBack(&containers[i].Resources, &of[j].Resources) || changed
			}
		}
	}
	return changed
}

// putBack restores the template's values. As in the API server, a limit replaces a missing request.
// Amounts missing from both lists were set when the pod was created, and remain.
func putBack(to, of *v1.ResourceRequirements) (changed bool) {
	requests := v1.ResourceList{}
	maps.Copy(requests, of.Limits)
	maps.Copy(requests, of.Requests)
	for _, list := range []struct{ to, of v1.ResourceList }{{to.Requests, requests}, {to.Limits, of.Limits}} {
		for name, amount := range list.of {
			if now, has := list.to[name]; has && now.Cmp(amount) != 0 {
				list.to[name], changed = amount, true
			}
		}
	}
	return changed
}
