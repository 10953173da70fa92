// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"errors"
	"slices"
)

// keepPriority restores fields omitted by a client that sends the whole pod again. The priority set
// at the pod's creation stays, regardless of later changes of the class.
func keepPriority(r *request) error {
	r.pod.Spec.Priority = cmp.Or(r.pod.Spec.Priority, r.old.Spec.Priority)
	r.pod.Spec.PreemptionPolicy = cmp.Or(r.pod.Spec.PreemptionPolicy, r.old.Spec.PreemptionPolicy)
	return nil
}

// giveLater gives an existing pod the tolerations it would get at creation, because the pod may be
// older than the rules. The API only allows adding tolerations, and a pod with a finalizer cannot
// even be deleted if updates of it are refused. Therefore giveLater removes no tolerations, adds
// none that the namespace does not allow, and skips a terminating pod. It omits rules that also
// write other fields, because those fields are immutable now.
func giveLater(r *request) error {
	if r.pod.DeletionTimestamp != nil {
		return nil
	}
	// The rules run on a copy, so that a refusal leaves the pod unchanged.
	with := *r
	pod := *r.pod
	with.pod = &pod
	for _, rule := range []rule{lostNodes, memoryPressure, extendedResources} {
		if err := rule(&with); errors.As(err, new(*Refusal)) {
			return nil // irrelevant for an already admitted pod
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
