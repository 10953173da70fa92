// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

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
