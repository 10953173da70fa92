// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"

	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePodGroup checks the parts of a new pod group that affect scheduling: policy, topology,
// disruption mode and priority.
func ValidatePodGroup(g *schedulingv1beta1.PodGroup) field.ErrorList {
	spec := field.NewPath("spec")
	errs := append(ValidateMeta(&g.ObjectMeta, true), validateGroupPolicy(&g.Spec.SchedulingPolicy, spec.Child("schedulingPolicy"))...)
	// The constraints of groups and of composites are different API types with the same key.
	var keys []string
	if constraints := g.Spec.SchedulingConstraints; constraints != nil {
		for i := range constraints.Topology {
			keys = append(keys, constraints.Topology[i].Key)
		}
	}
	mode := g.Spec.DisruptionMode
	return append(errs, validateGroupRest(keys, mode == nil || (mode.Single == nil) != (mode.All == nil), g.Spec.Priority)...)
}

// ValidateCompositePodGroup checks the parts of a new group of pod groups that affect scheduling.
// It does not check that the parent exists: parents and children may be created in any order.
func ValidateCompositePodGroup(g *schedulingv1alpha3.CompositePodGroup) field.ErrorList {
	spec := field.NewPath("spec")
	errs := ValidateMeta(&g.ObjectMeta, true)
	path := spec.Child("schedulingPolicy")
	switch p := g.Spec.SchedulingPolicy; {
	case p.Basic == nil && p.Gang == nil:
		errs = append(errs, field.Required(path, "must be basic or gang"))
	case p.Basic != nil && p.Gang != nil:
		errs = append(errs, field.Invalid(path, "basic, gang", "must be one of basic and gang"))
	// A gang without groups would be placed without placing any pod.
	case p.Gang != nil && p.Gang.MinGroupCount < 1:
		errs = append(errs, field.Invalid(path.Child("gang", "minGroupCount"), p.Gang.MinGroupCount, "must be greater than or equal to 1"))
	}

	var keys []string
	if constraints := g.Spec.SchedulingConstraints; constraints != nil {
		for i := range constraints.Topology {
			keys = append(keys, constraints.Topology[i].Key)
		}
	}
	mode := g.Spec.DisruptionMode
	return append(errs, validateGroupRest(keys, mode == nil || (mode.Single == nil) != (mode.All == nil), g.Spec.Priority)...)
}

// validateGroupRest checks what groups and composites share. At most one topology key is valid,
// since all pods share one domain. The disruption mode is a union: exactly one member must be set;
// without a mode the pods are disrupted one by one. Some priorities are reserved for the system.
func validateGroupRest(keys []string, mode bool, priority *int32) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	path := spec.Child("schedulingConstraints", "topology")
	if len(keys) > 1 {
		errs = append(errs, field.TooMany(path, len(keys), 1))
	}
	for i, key := range keys {
		if key == "" {
			errs = append(errs, field.Required(path.Index(i).Child("key"), ""))
		}
	}
	if !mode {
		errs = append(errs, field.Invalid(spec.Child("disruptionMode"), "", "must be one of single and all"))
	}
	if priority != nil && *priority > HighestUserPriority {
		errs = append(errs, field.Invalid(spec.Child("priority"), *priority, fmt.Sprintf("must be at most %d", HighestUserPriority)))
	}
	return errs
}

// ValidateWorkload checks a workload on creation: it must have templates of either pod groups or
// composite groups, with different names. It does not check the contents of composite templates.
func ValidateWorkload(w *schedulingv1beta1.Workload) field.ErrorList {
	errs := ValidateMeta(&w.ObjectMeta, true)
	path, names := field.NewPath("spec", "podGroupTemplates"), map[string]bool{}
	switch count, composite := len(w.Spec.PodGroupTemplates), len(w.Spec.CompositePodGroupTemplates); {
	case count > 0 && composite > 0:
		errs = append(errs, field.Invalid(path, count, "must not be specified when compositePodGroupTemplates is"))
	case count == 0 && composite == 0:
		errs = append(errs, field.Required(path, "must have at least one item"))
	// The bound is the API's.
	case count > schedulingv1beta1.WorkloadMaxPodGroupTemplates:
		errs = append(errs, field.TooMany(path, count, schedulingv1beta1.WorkloadMaxPodGroupTemplates))
	}

	for i := range w.Spec.PodGroupTemplates {
		t := &w.Spec.PodGroupTemplates[i]
		if names[t.Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), t.Name))
		}
		names[t.Name] = true
		errs = append(errs, validateGroupPolicy(&t.SchedulingPolicy, path.Index(i).Child("schedulingPolicy"))...)
	}

	return errs
}

// validateGroupPolicy checks that a group is either basic or a gang, and that a gang has pods.
func validateGroupPolicy(p *schedulingv1beta1.PodGroupSchedulingPolicy, path *field.Path) field.ErrorList {
	switch {
	case p.Basic == nil && p.Gang == nil:
		return field.ErrorList{field.Required(path, "must be basic or gang")}
	case p.Basic != nil && p.Gang != nil:
		return field.ErrorList{field.Invalid(path, "basic, gang", "must be one of basic and gang")}
	case p.Gang != nil && p.Gang.MinCount < 1:
		return field.ErrorList{field.Invalid(path.Child("gang", "minCount"), p.Gang.MinCount, "must be greater than or equal to 1")}
	}
	return nil
}
