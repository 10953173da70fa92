// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validatePorts checks the ports of a container one by one; validateHostPorts finds duplicates. A
// host port of 0 is unset. The protocol must be set: defaulting precedes validation.
//
// This file covers ports and device claims, the resources of a node or pod that containers use by
// number or name. Package plugins checks whether a port is free on a node.
func validatePorts(ports []v1.ContainerPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, port := range ports {
		path := path.Index(i)
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(path.Child("containerPort"), ""))
		} else {
			errs = append(errs, invalidErrors(path.Child("containerPort"), port.ContainerPort,
				validation.IsValidPortNum(int(port.ContainerPort)))...)
		}
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
