// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// startAnew removes the fields of a pod that kube-apiserver's own plugins added before the webhook
// and that the rules would also add. The rules then add them in their order and with the configured
// seconds, and the pod equals a pod admitted by compiled-in rules. It removes only fields that will
// be added again.
//
// The user's own tolerations must stay. If the pod's managed fields show that its creator set no
// tolerations, none of them are the user's. Otherwise, the tolerations after the ones for lost
// nodes are from plugins, which append to the user's tolerations. Without tolerations for lost
// nodes, the tolerations of the runtime class at the end are from plugins. A wrong guess can only
// affect the order: seconds possibly set by the user are kept.
//
// For example (testdata/startanew.txt), a namespace wants 5 s for lost nodes. The pod arrives with
// not-ready and unreachable for 300 s, added by kube-apiserver, and its managed fields show no
// tolerations: startAnew removes both, and lostNodes adds them with 5 s.
func startAnew(r *request) error {
	list := r.pod.Spec.Tolerations
	if !r.AfterAPIServer || len(list) == 0 {
		return nil
	}

	// Remove only tolerations that the rules add again.
	given := newTolerationSet(givenToAny(r))
	isGiven := func(t v1.Toleration) bool { return given.has(&t) }
	switch marker := slices.IndexFunc(list, ofAPIServer); {
	case broughtNoTolerations(r.pod):
		list = slices.DeleteFunc(slices.Clone(list), func(t v1.Toleration) bool { return isGiven(t) || ofAPIServer(t) })
	case marker >= 0:
		rest := slices.DeleteFunc(slices.Clone(list[marker:]), func(t v1.Toleration) bool { return !ofAPIServer(t) && isGiven(t) })
		list = slices.Concat(list[:marker], rest)
	default:
		class := newTolerationSet(tolerationsOfClass(r))
		for len(list) > 0 && class.has(&list[len(list)-1]) {
			list = list[:len(list)-1]
		}
	}

	r.pod.Spec.Tolerations = list
	return nil
}

// givenToAny returns the tolerations added by the rules to a pod without tolerations.
func givenToAny(r *request) []v1.Toleration {
	bare := *r
	bare.pod = r.pod.DeepCopy()
	bare.pod.Spec.Tolerations = nil
	for _, rule := range []rule{lostNodes, namespaceTolerations, memoryPressure, extendedResources, dedicatedNodes, runtimeClass} {
		if rule(&bare) != nil {
			return nil // the pod is about to be refused
		}
	}
	return bare.pod.Spec.Tolerations
}

// tolerationsOfClass returns the tolerations added by the pod's runtime class; nil if there are
// none, or if the lookup fails.
func tolerationsOfClass(r *request) []v1.Toleration {
	class, err := classOf(r)
	if err != nil || class == nil || class.Scheduling == nil {
		return nil
	}
	return class.Scheduling.Tolerations
}

// ofAPIServer reports whether kube-apiserver's plugin DefaultTolerationSeconds would add this
// toleration, with its default seconds.
func ofAPIServer(t v1.Toleration) bool {
	return (t.Key == v1.TaintNodeNotReady || t.Key == v1.TaintNodeUnreachable) && t.Operator == v1.TolerationOpExists && t.Value == "" &&
		t.Effect == v1.TaintEffectNoExecute && t.TolerationSeconds != nil && *t.TolerationSeconds == defaultSeconds
}

// broughtNoTolerations reports whether the pod's managed fields, written by the API server before
// admission, show that its creator set no tolerations.
func broughtNoTolerations(pod *v1.Pod) bool {
	if len(pod.ManagedFields) == 0 {
		return false // unknown
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
