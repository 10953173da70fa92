package admission

import (
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// PriorityClass refuses a second default among the priority classes. What one
// class may say by itself (values above 1000000000, names that begin with
// system-) is validation's: package rules off line, the API server's live.
// isNew is false for a class that exists and is updated.
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

// ResolvePriority is the priority class by that name, or the default if the name is empty: its name
// and its value. It is for pod groups; pods have a rule of their own. Without a name and a default
// it is "" and 0.
func ResolvePriority(objects Objects, name string) (string, int32, error) {
	class, err := classFor(objects, name)
	if err != nil || class == nil {
		return "", 0, err
	}
	return class.Name, class.Value, nil
}

// classFor is the class by that name, or the default, which may be nil.
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
