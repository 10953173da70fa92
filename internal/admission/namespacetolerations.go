// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
)

// Namespace annotations with tolerations as JSON, as used by kube-apiserver's plugin
// PodTolerationRestriction.
const (
	DefaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	AllowedTolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// namespaceTolerations gives a pod the default tolerations of its namespace or, if the namespace
// has no such annotation, of the cluster. An empty annotation means no tolerations. The defaults
// are merged with the pod's own tolerations: if one toleration covers another, only the wider one
// is kept.
func namespaceTolerations(r *request) error {
	defaults, set, err := annotatedTolerations(r.namespace, DefaultTolerationsAnnotation)
	if err != nil {
		return err
	}
	if !set {
		defaults = r.DefaultTolerations
	}
	if len(defaults) > 0 {
		r.pod.Spec.Tolerations = mergeTolerations(r.pod.Spec.Tolerations, defaults)
	}
	return nil
}

// allowedTolerations refuses a pod with a toleration beyond the list allowed in its namespace.
// Tolerations added by admission also count, so a list must include the tolerations of lost nodes.
// Existing tolerations stay, regardless of the current list: on an update only new tolerations
// count, and on a terminating pod none.
func allowedTolerations(r *request) error {
	if r.old != nil && r.pod.DeletionTimestamp != nil {
		return nil
	}
	before := newTolerationSet(nil)
	if r.old != nil {
		before = newTolerationSet(r.old.Spec.Tolerations)
	}
	var allowed *tolerationSet
	scope := ""
	for i := range r.pod.Spec.Tolerations {
		t := &r.pod.Spec.Tolerations[i]
		if before.has(t) {
			continue
		}
		// Parse the list only for the first new toleration, so that pods without new tolerations
		// are not refused for a malformed annotation.
		if allowed == nil {
			list, of, err := allowList(r)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return nil
			}
			allowed, scope = newTolerationSet(list), of
		}
		if !allowed.covers(t) {
			return newRefusal("spec.tolerations",
				"pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}

	return nil
}

// allowList returns the tolerations allowed for the pod, and the scope of this setting; an empty
// list allows all.
func allowList(r *request) (allowed []v1.Toleration, scope string, err error) {
	allowed, set, err := annotatedTolerations(r.namespace, AllowedTolerationsAnnotation)
	if !set {
		return r.AllowedTolerations, "cluster", err
	}
	return allowed, "namespace", err
}

// annotatedTolerations parses a list from an annotation. set reports whether it is present: an
// empty annotation is an empty list. Invalid JSON refuses the pod, since the intent is unknown.
func annotatedTolerations(namespace *v1.Namespace, annotation string) (tolerations []v1.Toleration, set bool, err error) {
	text, set := namespace.Annotations[annotation]
	if text == "" {
		return nil, set, nil
	}
	if err := json.Unmarshal([]byte(text), &tolerations); err != nil {
		return nil, true, newRefusal("metadata.namespace",
			"namespace %s: annotation %s: %v; must be a JSON list of tolerations", namespace.Name, annotation, err)
	}
	return tolerations, true, nil
}
