package admission

import (
	"errors"
	"slices"
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
	allowed, _, err := allowList(r)
	if err != nil {
		return nil // allowedTolerations refuses new tolerations with this error
	}
	list := slices.Clip(r.pod.Spec.Tolerations)
	has, allows := newTolerationSet(list), newTolerationSet(allowed)
	for i := range pod.Spec.Tolerations {
		if t := &pod.Spec.Tolerations[i]; !has.has(t) && (len(allowed) == 0 || allows.covers(t)) {
			has.add(t)
			list = append(list, *t)
		}
	}
	r.pod.Spec.Tolerations = list
	return nil
}

// isRefusal reports whether the error is about the pod, and not about a lookup that failed.
func isRefusal(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal)
}
