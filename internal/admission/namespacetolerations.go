package admission

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
)

// The annotations of a namespace with tolerations as JSON, as kube-apiserver's
// plugin PodTolerationRestriction reads them.
const (
	DefaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	AllowedTolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// namespaceTolerations gives a pod the default tolerations of its namespace, or those of the
// cluster if the namespace says nothing. An empty annotation says: none. They are merged with the
// pod's own: of two of which one covers the other, the wider one stays.
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

// allowedTolerations refuses a pod with a toleration that goes beyond those
// allowed in its namespace. Tolerations that admission itself added count,
// too: a list has to allow those of lost nodes. Those that a pod has already
// stay, whatever the list says by now: of an update only what is new counts,
// and of a pod that is leaving nothing.
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
		// The list is read for the first new toleration only: without any, an annotation that is no
		// list refuses nothing.
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

// allowList returns the tolerations that the pod may have, and whose setting this is; an empty list
// allows all.
func allowList(r *request) (allowed []v1.Toleration, scope string, err error) {
	allowed, set, err := annotatedTolerations(r.namespace, AllowedTolerationsAnnotation)
	if !set {
		return r.AllowedTolerations, "cluster", err
	}
	return allowed, "namespace", err
}

// annotatedTolerations reads a list from an annotation. set tells whether it is there: an empty one
// is a list without tolerations. One that is no JSON refuses the pod, since nobody knows what was
// meant.
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
