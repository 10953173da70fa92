// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// extendedResources lets a pod that requests special hardware run on the nodes reserved for that
// hardware. Such nodes have a taint with the resource's name as its key. It is kube-apiserver's
// plugin ExtendedResourceToleration, disabled by default there.
//
// For example, a request of example.com/gpu adds the toleration example.com/gpu:NoSchedule,
// regardless of the taint's value.
func extendedResources(r *request) error {
	var names []string
	for _, container := range slices.Concat(r.pod.Spec.Containers, r.pod.Spec.InitContainers) {
		for name := range container.Resources.Requests {
			if rules.IsExtendedResource(name) {
				names = append(names, string(name))
			}
		}
	}
	// Sort the names, because requests are maps and the result must not depend on their order.
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > 0 {
		r.pod.Spec.Tolerations = setTolerations(r.pod.Spec.Tolerations, names)
	}
	return nil
}

// setTolerations adds a toleration for each of the keys, or replaces existing tolerations that
// differ only in seconds. It does not modify the given list.
func setTolerations(list []v1.Toleration, keys []string) []v1.Toleration {
	same, without := map[string][]int{}, map[string]bool{} // by key: tolerations like the added one, and whether one has no seconds
	for i := range list {
		t := &list[i]
		if t.Operator == v1.TolerationOpExists && t.Effect == v1.TaintEffectNoSchedule && t.Value == "" {
			same[t.Key] = append(same[t.Key], i)
			without[t.Key] = without[t.Key] || t.TolerationSeconds == nil
		}
	}

	result := slices.Clone(list)
	for _, key := range keys {
		wanted := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}
		switch {
		case without[key]:
			continue
		case len(same[key]) == 0:
			result = append(result, wanted)
		}
		for _, i := range same[key] {
			result[i] = wanted
		}
	}
	return result
}
