package admission

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
)

// resolvePriority resolves the class that the pod names, or the default class, to a number. Nobody
// writes the number by hand: one that is there already, as on a second pass, must be the class's
// own. A pod without a class, in a cluster without a default one, has priority 0 and may preempt.
func resolvePriority(r *request) error {
	spec := &r.pod.Spec
	if r.AfterAPIServer && spec.PriorityClassName == "" && spec.Priority != nil && *spec.Priority == 0 {
		// The API server has found no default class. One that this process knows of has come since,
		// and it is the API server whose word counts: else every pod of the moment between would be
		// refused.
		return nil
	}
	class, err := classFor(r, spec.PriorityClassName)
	if err != nil {
		return err
	}
	value, policy := priorityOf(class)
	// The pod may have the value of a class created again since the cache has seen it.
	if live, ok := r.Objects.(freshClasses); ok && class != nil && differs(spec, value, policy) {
		if class, err = live.FreshPriorityClass(class.Name); err != nil {
			return fmt.Errorf("priority class %s: %w", spec.PriorityClassName, err)
		}
		value, policy = priorityOf(class)
	}
	if class != nil {
		spec.PriorityClassName = class.Name
	}
	// The API server's plugin has the same check and words; without it, users could write any
	// number.
	if spec.Priority != nil && *spec.Priority != value {
		return newRefusal("spec.priority", "the integer value of priority (%d) must not be provided in pod spec; priority "+
			"admission controller computed %d from the given PriorityClass name", *spec.Priority, value)
	}
	if spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != policy {
		return newRefusal("spec.preemptionPolicy",
			"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission "+
				"controller computed %s from the given PriorityClass name", *spec.PreemptionPolicy, policy)
	}
	spec.Priority, spec.PreemptionPolicy = ptrTo(value), ptrTo(policy)
	return nil
}

// freshClasses is implemented by Objects that may be behind the API server.
type freshClasses interface {
	FreshPriorityClass(name string) (*schedulingv1.PriorityClass, error)
}

// priorityOf returns what a class gives to pods; nil is no class. The API server defaults the
// policy in a class, but files may lack it.
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

// differs reports whether a pod has another priority or policy already.
func differs(spec *v1.PodSpec, value int32, policy v1.PreemptionPolicy) bool {
	return spec.Priority != nil && *spec.Priority != value || spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != policy
}

// ptrTo returns a pointer to a copy of the value.
func ptrTo[T any](value T) *T { return &value }
