// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
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
	if class == nil {
		return 0, v1.PreemptLowerPriority
	}
	return class.Value, ptr.Deref(class.PreemptionPolicy, v1.PreemptLowerPriority)
}

// differs reports whether the pod already has a different priority or policy.
func differs(spec *v1.PodSpec, value int32, policy v1.PreemptionPolicy) bool {
	return spec.Priority != nil && *spec.Priority != value || spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != policy
}

// PriorityClass refuses a second default among the priority classes. The class's value and name
// (values above 1000000000 and the prefix system- are reserved) are validated elsewhere: by package
// rules for files, and by the API server in a cluster. isNew is false for an update of an existing
// class.
func PriorityClass(objects Objects, class *schedulingv1.PriorityClass, isNew bool) error {
	if !class.GlobalDefault {
		return nil
	}
	found, err := objects.DefaultPriorityClass()
	if err != nil {
		return fmt.Errorf("failed to get default priority class: %w", err)
	}
	if found == nil || !isNew && found.Name == class.Name {
		return nil
	}
	return apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), class.Name,
		fmt.Errorf("PriorityClass %s is already marked as default. Only one default can exist", found.Name))
}

// ResolvePriority returns the name and value of the given priority class, or of the default class
// if the name is empty. It serves pod groups; pods have a separate rule. If the name is empty and
// there is no default class, it returns "" and 0.
func ResolvePriority(objects Objects, name string) (string, int32, error) {
	class, err := classFor(objects, name)
	if err != nil || class == nil {
		return "", 0, err
	}
	return class.Name, class.Value, nil
}

// classFor returns the named class, or the default, which may be nil.
func classFor(objects Objects, name string) (*schedulingv1.PriorityClass, error) {
	if name == "" {
		class, err := objects.DefaultPriorityClass()
		if err != nil {
			return nil, fmt.Errorf("default priority class: %w", err)
		}
		return class, nil
	}
	class, err := objects.PriorityClass(name)
	if err != nil {
		return nil, fmt.Errorf("priority class %s: %w", name, err)
	}
	if class == nil {
		return nil, newRefusal("spec.priorityClassName", "no PriorityClass with name %s was found", name)
	}
	return class, nil
}
