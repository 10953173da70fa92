package workload

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// autoscaled is the annotation of pods whose requests a vertical autoscaler set as they were made.
const autoscaled = "vpaUpdates"

// AsMade returns the pod with what its containers requested when its controller made it of a
// template that it still has: a pod that was resized in place comes back as it was before. The pod
// itself is not changed, and is returned where there is nothing to put back: its controller is not
// known, or what sets requests as pods are made will set them again.
func (t *Table) AsMade(p *v1.Pod) *v1.Pod {
	// The first change of a spec makes it 2.
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

// putBackAll does putBack for containers by their names.
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

// putBack sets what a template names. A limit stands for a request that is not named, as the API
// server has it; what is named nowhere was filled in when the pod was made.
func putBack(to, of *v1.ResourceRequirements) (changed bool) {
	requests := maps.Clone(of.Limits)
	if requests == nil {
		requests = v1.ResourceList{}
	}
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
