// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
)

// resolvePriority resolves the pod's class, or the default class, to a number. Users never set the
// number: an existing one, as on a second pass, must equal the class's value. A pod without a
// class, in a cluster without a default one, has priority 0 and may preempt.
func resolvePriority(r *request) error {
	spec := &r.pod.Spec
	if r.AfterAPIServer && spec.PriorityClassName == "" && spec.Priority != nil && *spec.Priority == 0 {
		// The API server found no default class. If a default class is known here, it was created
		// later. This process must follow the API server, because it would otherwise refuse every
		// pod that the API server admitted before observing the class.
		return nil
	}
	class, err := classFor(r, spec.PriorityClassName)
	if err != nil {
		return err
	}
	value, policy := priorityOf(class)
	// The class may have been recreated with the pod's value since the cache last observed it.
	if live, ok := r.Objects.(freshClasses); ok && class != nil && differs(spec, value, policy) {
		if class, err = live.FreshPriorityClass(class.Name); err != nil {
			return fmt.Errorf("priority class %s: %w", spec.PriorityClassName, err)
		}
		value, policy = priorityOf(class)
	}
	if class != nil {
		spec.PriorityClassName = class.Name
	}
	// The API server's plugin has the same check and wording; without this check, users could set
	// any number.
	if spec.Priority != nil && *spec.Priority != value {
		return newRefusal("spec.priority", "the integer value of priority (%d) must not be provided in pod spec; priority "+
			"admission controller computed %d from the given PriorityClass name", *spec.Priority, value)
	}
	if spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != policy {
		return newRefusal("spec.preemptionPolicy",
			"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission "+
				"controller computed %s from the given PriorityClass name", *spec.PreemptionPolicy, policy)
	}
	spec.Priority, spec.PreemptionPolicy = new(value), new(policy)
	return nil
}

// freshClasses is implemented by Objects that may lag behind the API server.
type freshClasses interface {
	FreshPriorityClass(name string) (*schedulingv1.PriorityClass, error)
}

// priorityOf returns the priority and policy of a class's pods; nil means no class. The API server
// defaults a class's policy, but files may lack it.
func priorityOf(class *schedulingv1.PriorityClass) (value int32, policy v1.PreemptionPolicy) {
	policy = v1.PreemptLowerPriority
	if class == nil {
		return 0, policy
	}
	if class.PreemptionPolicy != nil {
		policy = *class.PreemptionPolicy
	}
	return class.Value, policy
}

// differs reports whether the pod already has a different priority or policy.
func differs(spec *v1.PodSpec, value int32, policy v1.PreemptionPolicy) bool {
	return spec.Priority != nil && *spec.Priority != value || spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != policy
}
