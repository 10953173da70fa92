package admission

import (
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// startAnew removes from a pod what kube-apiserver's own plugins added before the webhook saw it
// and the rules would add as well: so the rules add it in their order and with the configured
// seconds, and the pod is the same as where the rules are compiled in. It removes nothing that
// would not be added again.
//
// What a user set must stay. If the pod's managed fields say that its creator set no tolerations,
// none are the user's. Otherwise, those behind the tolerations for lost nodes were added by
// plugins, which append to the user's; without these, those of the runtime class at the end. That
// can only err in the order: seconds that may be the user's own are left alone.
//
// For example (testdata/startanew.txt), a namespace wants 5 s for lost nodes. The pod comes with
// not-ready and unreachable for 300 s, which kube-apiserver has added, and the managed fields show
// no tolerations: both are removed, and lostNodes adds them with 5 s.
func startAnew(r *request) error {
	list := r.pod.Spec.Tolerations
	if !r.AfterAPIServer || len(list) == 0 {
		return nil
	}

	// What would be added again may be taken away.
	given := newTolerationSet(givenToAny(r))
	isGiven := func(t v1.Toleration) bool { return given.has(&t) }
	switch marker := slices.IndexFunc(list, ofAPIServer); {
	case broughtNoTolerations(r.pod):
		list = slices.DeleteFunc(slices.Clone(list), func(t v1.Toleration) bool { return isGiven(t) || ofAPIServer(t) })
	case marker >= 0:
		// With its capacity cut, so that appending does not overwrite the pod's own list.
		kept := list[:marker:marker]
		for _, t := range list[marker:] {
			if ofAPIServer(t) || !isGiven(t) {
				kept = append(kept, t)
			}
		}
		list = kept
	default:
		class := newTolerationSet(tolerationsOfClass(r))
		for len(list) > 0 && class.has(&list[len(list)-1]) {
			list = list[:len(list)-1]
		}
	}

	r.pod.Spec.Tolerations = list
	return nil
}

// givenToAny is what the rules add to a pod without tolerations.
func givenToAny(r *request) []v1.Toleration {
	bare := *r
	bare.pod = r.pod.DeepCopy()
	bare.pod.Spec.Tolerations = nil
	for _, rule := range []rule{lostNodes, namespaceTolerations, memoryPressure, extendedResources, dedicatedNodes, runtimeClass} {
		if rule(&bare) != nil {
			return nil // the pod is refused in a moment
		}
	}
	return bare.pod.Spec.Tolerations
}

// tolerationsOfClass are those that the pod's runtime class adds; nil if there are none, or if that
// cannot be found out.
func tolerationsOfClass(r *request) []v1.Toleration {
	class, err := classOf(r)
	if err != nil || class == nil || class.Scheduling == nil {
		return nil
	}
	return class.Scheduling.Tolerations
}

// ofAPIServer reports whether kube-apiserver's plugin DefaultTolerationSeconds
// writes such a toleration, with the seconds that it has by default.
func ofAPIServer(t v1.Toleration) bool {
	return (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable) && t.Operator == v1.TolerationOpExists && t.Value == "" &&
		t.Effect == v1.TaintEffectNoExecute && t.TolerationSeconds != nil && *t.TolerationSeconds == defaultSeconds
}

// broughtNoTolerations reports whether the pod's managed fields, which the API
// server writes before admission, show that its creator set no tolerations.
func broughtNoTolerations(pod *v1.Pod) bool {
	if len(pod.ManagedFields) == 0 {
		return false // not known
	}
	for _, entry := range pod.ManagedFields {
		var fields struct {
			Spec struct {
				Tolerations json.RawMessage `json:"f:tolerations"`
			} `json:"f:spec"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil || fields.Spec.Tolerations != nil {
			return false
		}
	}
	return true
}
