// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Validation by LimitRanges. bounds.fillDefaults applies their defaults beforehand, so a pod
// without requests may pass thanks to the defaults of its namespace.

// invalidByDefault returns the reason the API server considers a new pod invalid with the defaults
// of its namespace, or "": a default limit may be below a container's request.
func (b *bounds) invalidByDefault(p *v1.Pod) string {
	if len(b.ranges[p.Namespace]) == 0 {
		return ""
	}
	faults := slices.DeleteFunc(rules.ValidatePodSpec(&p.Spec, field.NewPath("spec")), func(fault *field.Error) bool {
		return !strings.HasSuffix(fault.Field, ".resources.requests")
	})
	if len(faults) == 0 {
		return ""
	}
	return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), p.Name, faults).Error()
}

// limitRefusal returns the API server's message if a limit range of the pod's namespace refuses a
// new pod, or "". The message lists all violations of the first violated limit range, sorted and
// without duplicates, like the API server's aggregate.
func (b *bounds) limitRefusal(p *v1.Pod) (refusal string) {
	for _, r := range b.ranges[p.Namespace] {
		var faults []string
		for i := range r.Spec.Limits {
			switch item := &r.Spec.Limits[i]; item.Type {
			case v1.LimitTypeContainer:
				for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
					for j := range list {
						faults = append(faults, amounts{list[j].Resources.Requests, list[j].Resources.Limits}.violationsOf(item)...)
					}
				}
			case v1.LimitTypePod: // excludes the overhead added by a RuntimeClass
				options := resource.PodResourcesOptions{ExcludeOverhead: true}
				faults = append(faults, amounts{rules.PodRequests(p, options), rules.PodLimits(p, options)}.violationsOf(item)...)
			}
		}
		slices.Sort(faults)
		switch faults = slices.Compact(faults); len(faults) {
		case 0:
		case 1:
			return fmt.Sprintf("pods %q is forbidden: %s", p.Name, faults[0])
		default:
			return fmt.Sprintf("pods %q is forbidden: [%s]", p.Name, strings.Join(faults, ", "))
		}
	}
	return ""
}

// amounts holds the requests and limits of a container or a pod. A missing amount of a resource
// violates a minimum or maximum, just like a wrong amount.
type amounts struct{ requests, limits v1.ResourceList }

// violationsOf lists the violations of a rule, in no particular order. The texts match upstream's
// LimitRanger, including double spaces, because users search for them.
func (a amounts) violationsOf(rule *v1.LimitRangeItem) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for name, least := range rule.Min {
		request, requested := a.requests[name]
		limit, limited := a.limits[name]
		text := fmt.Sprintf("minimum %s usage per %s is %s", name, rule.Type, least.String())
		switch {
		case !requested:
			fault("%s.  No request is specified", text)
		case request.Cmp(least) < 0:
			fault("%s, but request is %s", text, request.String())
		case limited && limit.Cmp(least) < 0:
			fault("%s, but limit is %s", text, limit.String())
		}
	}

	// Like upstream, report a limit above the maximum even if the request also exceeds it.
	for name, most := range rule.Max {
		request, requested := a.requests[name]
		limit, limited := a.limits[name]
		text := fmt.Sprintf("maximum %s usage per %s is %s", name, rule.Type, most.String())
		switch {
		case !limited:
			fault("%s.  No limit is specified", text)
		case limit.Cmp(most) > 0:
			fault("%s, but limit is %s", text, limit.String())
		case requested && request.Cmp(most) > 0:
			fault("%s, but request is %s", text, request.String())
		}
	}

	for name, most := range rule.MaxLimitRequestRatio {
		request, limit := a.requests[name], a.limits[name]
		text := fmt.Sprintf("%s max limit to request ratio per %s is %s", name, rule.Type, most.String())
		switch ratio := ratioOf(limit, request); {
		case request.IsZero():
			fault("%s, but no request is specified or request is 0", text)
		case limit.IsZero():
			fault("%s, but no limit is specified or limit is 0", text)
		case ratio > most.AsApproximateFloat64():
			fault("%s, but provided ratio is %f", text, ratio)
		}
	}

	return faults
}

// ratioOf returns limit divided by request; 0 without a request, which is a separate violation.
func ratioOf(limit, request apiresource.Quantity) float64 {
	if request.IsZero() {
		return 0
	}
	return limit.AsApproximateFloat64() / request.AsApproximateFloat64()
}
