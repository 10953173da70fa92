package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// extendedResources lets a pod that asks for special hardware onto nodes kept for it: such nodes
// carry a taint whose key is the resource's name. It is kube-apiserver's plugin
// ExtendedResourceToleration, which is off by default there.
//
// For example, a request of example.com/gpu adds the toleration example.com/gpu:NoSchedule,
// whatever the taint's value.
func extendedResources(r *request) error {
	var names []string
	for _, container := range slices.Concat(r.pod.Spec.Containers, r.pod.Spec.InitContainers) {
		for name := range container.Resources.Requests {
			if rules.IsExtendedResource(name) {
				names = append(names, string(name))
			}
		}
	}
	// Requests are maps; the result must not depend on their order.
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		r.pod.Spec.Tolerations = setToleration(r.pod.Spec.Tolerations, v1.Toleration{
			Key: name, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule,
		})
	}
	return nil
}

// setToleration adds a toleration, or replaces those that differ in seconds only. The list given is
// not changed.
func setToleration(list []v1.Toleration, wanted v1.Toleration) []v1.Toleration {
	found := false
	result := slices.Clone(list)
	for i := range result {
		if !wanted.MatchToleration(&result[i]) {
			continue
		}
		if apiequality.Semantic.DeepEqual(wanted, result[i]) {
			return list
		}
		result[i], found = wanted, true
	}
	if !found {
		result = append(result, wanted)
	}
	return result
}
