// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
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
	checkSums := func(of string, pod, sums v1.ResourceList) {
		for _, name := range sortedKeys(sums) {
			sum := sums[name]
			if all, set := pod[name]; set && sum.Cmp(all) > 0 {
				errs = append(errs, field.Invalid(path.Child(of).Key(string(name)), all.String(),
					fmt.Sprintf("must be greater than or equal to aggregate container %s of %s", of, sum.String())))
			}
		}
	}
	checkSums("requests", spec.Resources.Requests, PodRequests(pod, OnlyContainers))
	// Only limits on huge pages add up: limits on CPU do not promise that all containers can reach
	// them simultaneously.
	hugePages := maps.Clone(spec.Resources.Limits)
	maps.DeleteFunc(hugePages, func(name v1.ResourceName, _ resource.Quantity) bool { return !isHugePages(name) })
	checkSums("limits", hugePages, PodLimits(pod, OnlyContainers))
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
	if (countedResources.Has(name) || IsExtendedResource(name)) && quantity.MilliValue()%1000 != 0 {
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
		if !containerResources.Has(name) && !isHugePages(name) {
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
	if !strings.Contains(string(name), "/") && !containerResources.Has(name) && !countedResources.Has(name) && !quotaResources.Has(name) &&
		!isHugePages(name) && !isHugePages(quotaOf(name)) {
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return nil
}

// validatePorts checks the ports of a container one by one; validateHostPorts finds duplicates. A
// host port of 0 is unset. The protocol must be set: defaulting precedes validation.
//
// This file covers ports and device claims, the resources of a node or pod that containers use by
// number or name. Package plugins checks whether a port is free on a node.
func validatePorts(ports []v1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, port := range ports {
		path := path.Index(i)
		errs = append(errs, requiredErrors(path.Child("containerPort"), port.ContainerPort,
			validation.IsValidPortNum(int(port.ContainerPort)))...)
		if port.HostPort != 0 {
			errs = append(errs, invalidErrors(path.Child("hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))...)
		}
		if port.Protocol == "" {
			errs = append(errs, field.Required(path.Child("protocol"), ""))
		}
		errs = append(errs, oneOf(path.Child("protocol"), port.Protocol, v1.ProtocolSCTP, v1.ProtocolTCP, v1.ProtocolUDP)...)
	}

	return errs
}

// validateHostPorts finds host ports requested twice by the containers of one pod and, with host
// networking, host ports that differ from the container port. The same port on two addresses is not
// a duplicate here, even if one of the addresses is empty.
func validateHostPorts(containers []v1.Container, hostNetwork bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range containers {
		for j, port := range containers[i].Ports {
			path := path.Index(i).Child("ports").Index(j).Child("hostPort")
			if hostNetwork && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(path, port.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
			if port.HostPort == 0 {
				continue
			}
			// The key is part of the message, in upstream's form.
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if seen[key] {
				errs = append(errs, field.Duplicate(path, key))
			}
			seen[key] = true
		}
	}

	return errs
}

// claimNames returns the names by which containers refer to the pod's claims.
func claimNames(claims []v1.PodResourceClaim) map[string]bool {
	names := map[string]bool{}
	for _, claim := range claims {
		if claim.Name != "" {
			names[claim.Name] = true
		}
	}
	return names
}

// validateResourceClaims checks the claims of a pod: each has a unique name, and either a claim or
// a template.
func validateResourceClaims(claims []v1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, claim := range claims {
		path := path.Index(i)
		switch {
		// A claim without a name cannot be a duplicate.
		case claim.Name == "":
			errs = append(errs, field.Required(path.Child("name"), ""))
		case seen[claim.Name]:
			errs = append(errs, field.Duplicate(path.Child("name"), claim.Name))
		default:
			errs = append(errs, invalidErrors(path.Child("name"), claim.Name, validation.IsDNS1123Label(claim.Name))...)
			seen[claim.Name] = true
		}
		direct, template := claim.ResourceClaimName, claim.ResourceClaimTemplateName
		if direct != nil && template != nil {
			errs = append(errs, field.Invalid(path, claim,
				"at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"))
		}
		// A claim either exists or is made for the pod by a controller.
		if direct == nil && template == nil {
			errs = append(errs, field.Invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
		if direct != nil {
			errs = append(errs, invalidErrors(path.Child("resourceClaimName"), *direct,
				apivalidation.NameIsDNSSubdomain(*direct, false))...)
		}
		if template != nil {
			errs = append(errs, invalidErrors(path.Child("resourceClaimTemplateName"), *template,
				apivalidation.NameIsDNSSubdomain(*template, false))...)
		}
	}

	return errs
}

// validateClaimRefs checks the claims used by a container (refs) against the pod's claims (known,
// by name). A container uses either the whole claim or individual requests, not both.
func validateClaimRefs(refs []v1.ResourceClaim, known map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	used := map[string]bool{}
	for i, ref := range refs {
		path := path.Index(i)
		if ref.Name == "" {
			errs = append(errs, field.Required(path, ""))
			continue
		}
		// The whole claim is already in use, so a single request of it is also a duplicate.
		if used[ref.Name] {
			errs = append(errs, field.Duplicate(path, ref.Name))
		} else {
			errs = append(errs, useClaim(ref, used, path)...)
		}
		if !known[ref.Name] {
			// Like the API server, list the existing names, but sort them to keep the message
			// stable.
			missing := field.NotFound(path, ref.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if len(known) > 0 {
				missing.Detail = "must be one of the names in pod.spec.resourceClaims: " +
					strings.Join(slices.Sorted(maps.Keys(known)), ", ")
			}
			errs = append(errs, missing)
		}
	}

	return errs
}

// useClaim records in used that a container uses a claim, or one of its requests, and reports a
// second use.
//
//	a, a          duplicate
//	a/x, a/y      fine: two requests of one claim
//	a/x, a        duplicate: the whole claim includes the request
func useClaim(ref v1.ResourceClaim, used map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	key := ref.Name
	if ref.Request != "" {
		errs = append(errs, invalidErrors(path.Child("request"), ref.Request, validation.IsDNS1123Label(ref.Request))...)
		key += "/" + ref.Request
	}

	switch {
	// The container uses the same request, or the whole claim, twice.
	case used[key]:
		errs = append(errs, field.Duplicate(path, key))
	case ref.Request == "":
		for other := range used {
			if strings.HasPrefix(other, ref.Name+"/") {
				errs = append(errs, field.Duplicate(path, ref.Name))
			}
		}
	}

	used[key] = true
	return errs
}
