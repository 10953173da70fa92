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
		switch port.Protocol {
		case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
		case "":
			errs = append(errs, field.Required(path.Child("protocol"), ""))
		default:
			errs = append(errs, field.NotSupported(path.Child("protocol"), port.Protocol,
				[]v1.Protocol{v1.ProtocolSCTP, v1.ProtocolTCP, v1.ProtocolUDP}))
		}
	}

	return errs
}

// validateHostPorts finds ports of the node that are asked for twice, and with
// host networking those that differ from the container's.
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
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if seen[key] {
				errs = append(errs, field.Duplicate(path, key))
			}
			seen[key] = true
		}
	}

	return errs
}

func claimNames(claims []v1.PodResourceClaim) map[string]bool {
	names := map[string]bool{}
	for _, claim := range claims {
		if claim.Name != "" {
			names[claim.Name] = true
		}
	}
	return names
}

func validateResourceClaims(claims []v1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, claim := range claims {
		path := path.Index(i)
		switch {
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

// validateClaimRefs checks the claims that a container uses against those
// that the pod has. A claim is used whole or by request, not both.
func validateClaimRefs(refs []v1.ResourceClaim, known map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	used := map[string]bool{}
	for i, ref := range refs {
		path := path.Index(i)
		if ref.Name == "" {
			errs = append(errs, field.Required(path, ""))
			continue
		}
		if used[ref.Name] {
			errs = append(errs, field.Duplicate(path, ref.Name))
		} else {
			errs = append(errs, useClaim(ref, used, path)...)
		}
		if !known[ref.Name] {
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

func useClaim(ref v1.ResourceClaim, used map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	key := ref.Name
	if ref.Request != "" {
		errs = append(errs, invalidErrors(path.Child("request"), ref.Request, validation.IsDNS1123Label(ref.Request))...)
		key += "/" + ref.Request
	}

	switch {
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
