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

// namespaceTolerations gives a pod the default tolerations of its namespace,
// or those of the cluster if the namespace says nothing. An empty annotation
// says: none.
func namespaceTolerations(r *request) error {
	defaults, set, err := annotated(r.namespace, DefaultTolerationsAnnotation)
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
// too: a list has to allow those of lost nodes.
func allowedTolerations(r *request) error {
	allowed, set, err := annotated(r.namespace, AllowedTolerationsAnnotation)
	if err != nil {
		return err
	}
	scope := "namespace"
	if !set {
		allowed, scope = r.AllowedTolerations, "cluster"
	}
	if len(allowed) == 0 {
		return nil
	}
	for i := range r.pod.Spec.Tolerations {
		if !coveredByAny(&r.pod.Spec.Tolerations[i], allowed) {
			return refuse("spec.tolerations", "pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}
	return nil
}

func annotated(namespace *v1.Namespace, annotation string) (tolerations []v1.Toleration, set bool, err error) {
	text, set := namespace.Annotations[annotation]
	if text == "" {
		return nil, set, nil
	}
	if err := json.Unmarshal([]byte(text), &tolerations); err != nil {
		return nil, true, refuse("metadata.namespace", "namespace %s: annotation %s: %v; must be a JSON list of tolerations", namespace.Name, annotation, err)
	}
	return tolerations, true, nil
}
