package admission

import v1 "k8s.io/api/core/v1"

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
	value, policy := int32(0), ptrTo(v1.PreemptLowerPriority)
	if class != nil {
		spec.PriorityClassName, value, policy = class.Name, class.Value, class.PreemptionPolicy
	}
	if policy == nil {
		// The API server defaults it in the class; files may lack it.
		policy = ptrTo(v1.PreemptLowerPriority)
	}
	// The API server's plugin has the same check and words; without it, users could write any
	// number.
	if spec.Priority != nil && *spec.Priority != value {
		return newRefusal("spec.priority", "the integer value of priority (%d) must not be provided in pod spec; priority "+
			"admission controller computed %d from the given PriorityClass name", *spec.Priority, value)
	}
	if spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != *policy {
		return newRefusal("spec.preemptionPolicy",
			"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission "+
				"controller computed %s from the given PriorityClass name", *spec.PreemptionPolicy, *policy)
	}
	spec.Priority, spec.PreemptionPolicy = ptrTo(value), ptrTo(*policy)
	return nil
}

// ptrTo returns a pointer to a copy of the value.
func ptrTo[T any](value T) *T { return &value }
