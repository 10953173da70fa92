// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	helper "k8s.io/component-helpers/resource"
)

// nameCheck checks that a name is a valid resource in its context: a container, or the pod as a
// whole.
type nameCheck func(name v1.ResourceName, path *field.Path) field.ErrorList

// validateResourceList checks amounts that are neither requests nor limits, such as overhead. Like
// upstream, it checks them as limits and reports errors at overhead.limits.
func validateResourceList(list v1.ResourceList, path *field.Path) field.ErrorList {
	return validateRequirements(&v1.ResourceRequirements{Limits: list}, containerResourceName, path)
}

// validateContainerResources checks requests and limits of a container, and the claims it uses.
// claims holds the names of the pod's claims.
func validateContainerResources(r *v1.ResourceRequirements, claims map[string]bool, path *field.Path) field.ErrorList {
	return append(validateRequirements(r, containerResourceName, path), validateClaimRefs(r.Claims, claims, path.Child("claims"))...)
}

// validateRequirements checks requests and limits against each other. Only native resources other
// than huge pages may have a request below the limit.
//
//	cpu: request 1, limit 2               fine
//	nvidia.com/gpu: request 1, limit 2    must be equal
//	nvidia.com/gpu: request 1             limit must be set
func validateRequirements(r *v1.ResourceRequirements, checkName nameCheck, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := path.Child("limits"), path.Child("requests")
	// The API server refuses huge pages without a request for CPU or memory.
	hugePages, cpuOrMemory := false, false
	// Check limits and requests separately before comparing them with each other.
	check := func(name v1.ResourceName, quantity resource.Quantity, path *field.Path) {
		errs = append(errs, checkName(name, path)...)
		errs = append(errs, validateAmount(name, quantity, path)...)
		if isHugePages(name) {
			hugePages = true
			if !isDivisible(name, quantity) {
				errs = append(errs, field.Invalid(path, quantity.String(),
					fmt.Sprintf("%s is not positive integer multiple of %s", quantity.String(), name)))
			}
		}
		cpuOrMemory = cpuOrMemory || name == v1.ResourceCPU || name == v1.ResourceMemory
	}

	for _, name := range sortedKeys(r.Limits) {
		check(name, r.Limits[name], limits.Key(string(name)))
	}
	for _, name := range sortedKeys(r.Requests) {
		request := r.Requests[name]
		check(name, request, requests.Key(string(name)))
		limit, limited := r.Limits[name]
		switch {
		// A limit without a request is valid: the request then defaults to the limit.
		case !limited && !mayOvercommit(name):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !mayOvercommit(name) && request.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(requests, request.String(),
				fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && request.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, request.String(),
				fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}

	if hugePages && !cpuOrMemory {
		errs = append(errs, field.Forbidden(path, "HugePages require cpu or memory"))
	}
	return errs
}

// validatePodResources checks pod-level resources, and that the containers fit into them: the sum
// of requests, each single limit, and the sum of limits for huge pages. nil is valid.
func validatePodResources(spec *v1.PodSpec, path *field.Path) field.ErrorList {
	if spec.Resources == nil {
		return nil
	}
	var errs field.ErrorList
	// Claims belong to containers; the claims of the pod are in spec.resourceClaims.
	if spec.Resources.Claims != nil {
		errs = append(errs, field.Forbidden(path.Child("claims"), "claims may not be set for Resources at pod-level"))
	}
	errs = append(errs, validateRequirements(spec.Resources, podResourceName, path)...)
	errs = append(errs, validateClaimRefs(spec.Resources.Claims, claimNames(spec.ResourceClaims), path.Child("claims"))...)

	pod := &v1.Pod{Spec: *spec}
	// Sum up as in the scheduler: use the larger of the init containers' peak and the sum of all
	// other containers.
	requested := PodRequests(pod, OnlyContainers)
	for _, name := range sortedKeys(requested) {
		sum := requested[name]
		if all, set := spec.Resources.Requests[name]; set && sum.Cmp(all) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), all.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String())))
		}
	}
	// Only limits on huge pages add up: limits on CPU do not promise that all containers can reach
	// them simultaneously.
	limited := PodLimits(pod, OnlyContainers)
	for _, name := range sortedKeys(limited) {
		sum := limited[name]
		if all, set := spec.Resources.Limits[name]; set && isHugePages(name) && sum.Cmp(all) > 0 {
			errs = append(errs, field.Invalid(path.Child("limits").Key(string(name)), all.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", sum.String())))
		}
	}
	// Check each limit separately: no container can use more than the pod.
	for i, container := range spec.Containers {
		for _, name := range sortedKeys(container.Resources.Limits) {
			limit := container.Resources.Limits[name]
			if all, set := spec.Resources.Limits[name]; set && limit.Cmp(all) > 0 {
				errs = append(errs, field.Invalid(path.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", all.String())))
			}
		}
	}
	return errs
}

// ValidateAmounts checks amounts of resources, such as the capacity of a node. It does not check
// names, because kubelets may report any resource of the node.
func ValidateAmounts(list v1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedKeys(list) {
		errs = append(errs, validateAmount(name, list[name], path.Child(string(name)))...)
	}
	return errs
}

// validateAmount checks one amount: not negative, and a whole number for countable resources. CPU
// may be a fraction.
func validateAmount(name v1.ResourceName, quantity resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if quantity.Sign() < 0 {
		errs = append(errs, field.Invalid(path, quantity.String(), apivalidation.IsNegativeErrorMsg))
	}
	if (countedResources[name] || IsExtendedResource(name)) && quantity.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(path, quantity, "must be an integer"))
	}
	return errs
}

// containerResourceName is the nameCheck for containers: CPU, memory, ephemeral storage, huge
// pages, or anything with a domain.
func containerResourceName(name v1.ResourceName, path *field.Path) field.ErrorList {
	errs := resourceName(name, path)
	switch {
	case !strings.Contains(string(name), "/"):
		if !containerResources[name] && !isHugePages(name) {
			errs = append(errs, field.Invalid(path, name, "must be a standard resource for containers"))
		}
	// Any name with a domain that contains kubernetes.io/ is accepted.
	case !isNative(name) && !IsExtendedResource(name):
		errs = append(errs, field.Invalid(path, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// podResourceName is the nameCheck for the pod as a whole, limited to the few resources listed by
// the library.
func podResourceName(name v1.ResourceName, path *field.Path) field.ErrorList {
	if errs := resourceName(name, path); len(errs) > 0 {
		return errs
	}
	if helper.IsSupportedPodLevelResource(name) {
		return nil
	}
	allowed := helper.SupportedPodLevelResources().UnsortedList()
	slices.Sort(allowed)
	return field.ErrorList{field.NotSupported(path, name, allowed)}
}

// resourceName checks the rules common to containers and pods: the name must be a qualified name,
// and a name without a domain must be known.
func resourceName(name v1.ResourceName, path *field.Path) field.ErrorList {
	if errs := invalidErrors(path, name, validation.IsQualifiedName(string(name))); len(errs) > 0 {
		return errs
	}
	if !strings.Contains(string(name), "/") && !containerResources[name] && !countedResources[name] && !quotaResources[name] &&
		!isHugePages(name) && !isHugePages(quotaOf(name)) {
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return nil
}
