package admission

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// keepPriority fills in what a client left out that sends the whole pod again: the priority that
// the pod was created with stays, whatever has become of the class.
func keepPriority(r *request) error {
	if r.pod.Spec.Priority == nil {
		r.pod.Spec.Priority = r.old.Spec.Priority
	}
	if r.pod.Spec.PreemptionPolicy == nil {
		r.pod.Spec.PreemptionPolicy = r.old.Spec.PreemptionPolicy
	}
	return nil
}

// giveLater gives a pod that exists the tolerations that it would be created with: it may be older
// than the rules. The API lets tolerations be added only, and a pod that could not be updated any
// more could not even be deleted if it has a finalizer. So nothing is taken away here, nothing
// given that the namespace does not allow, and a pod that is leaving is let go. Rules that also
// write other fields are left out: those cannot be changed any more.
func giveLater(r *request) error {
	if r.pod.DeletionTimestamp != nil {
		return nil
	}
	// The rules run on a copy, so that a refusal leaves the pod as it is.
	with := *r
	pod := *r.pod
	with.pod = &pod
	for _, rule := range []rule{lostNodes, memoryPressure, extendedResources} {
		if err := rule(&with); isRefusal(err) {
			return nil // of no concern to a pod that was let in before
		} else if err != nil {
			return err
		}
	}
	list := slices.Clip(r.pod.Spec.Tolerations)
	for _, t := range pod.Spec.Tolerations {
		if !containsToleration(list, t) && allowsToleration(r, &t) {
			list = append(list, t)
		}
	}
	r.pod.Spec.Tolerations = list
	return nil
}

// allowsToleration reports whether the namespace allows the toleration; not if its
// allow-list cannot be read.
func allowsToleration(r *request, t *v1.Toleration) bool {
	allowed, _, err := allowList(r)
	return err == nil && (len(allowed) == 0 || coveredByAny(t, allowed))
}

// isRefusal reports whether the error is about the pod, and not about a lookup that failed.
func isRefusal(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal)
}
