// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/quota"
)

// bounds holds the ResourceQuotas and LimitRanges of namespaces, which limit new pods and set their
// defaults. Package quota implements the rules; this type tracks usage.
//
// Callers must charge and release a pod at most once; they record the charge in pod.charged.
type bounds struct {
	// now is the time at which the world began. It does not advance; see isOverdue.
	now time.Time
	// quotas and ranges are keyed by namespace, each list in order of arrival.
	quotas map[string][]*quotaUse
	ranges map[string][]*v1.LimitRange
	// freed holds the namespaces where quota may have become available. pods.createAllowed clears
	// it.
	freed map[string]bool
}

// quotaUse is a quota and the usage of its pods, computed from existing pods. The status in the
// manifests may be stale and is ignored.
type quotaUse struct {
	*v1.ResourceQuota
	used v1.ResourceList
}

// newBounds returns bounds without any usage.
func newBounds(quotas []*v1.ResourceQuota, ranges []*v1.LimitRange) *bounds {
	b := &bounds{quotas: map[string][]*quotaUse{}, ranges: map[string][]*v1.LimitRange{}, freed: map[string]bool{}}
	for _, q := range quotas {
		b.quotas[q.Namespace] = append(b.quotas[q.Namespace], &quotaUse{q, v1.ResourceList{}})
	}
	for _, r := range ranges {
		b.ranges[r.Namespace] = append(b.ranges[r.Namespace], r)
	}
	return b
}

// fillDefaults applies the namespace's default requests and limits to the containers of a new pod,
// like the API server's LimitRanger. It modifies the pod.
func (b *bounds) fillDefaults(p *v1.Pod) {
	for _, r := range b.ranges[p.Namespace] {
		for i := range r.Spec.Limits {
			item := &r.Spec.Limits[i]
			if item.Type != v1.LimitTypeContainer {
				continue
			}
			// Without defaults, the API server uses the maximum as limit, and the limit as request.
			limits := orElse(item.Default, item.Max)
			requests := orElse(orElse(item.DefaultRequest, limits), item.Min)
			for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
				for j := range list {
					list[j].Resources.Limits = orElse(list[j].Resources.Limits, limits)
					list[j].Resources.Requests = orElse(list[j].Resources.Requests, requests)
				}
			}
		}
	}
}

// orElse returns list plus the entries found only in other. It modifies neither.
func orElse(list, other v1.ResourceList) v1.ResourceList {
	if len(other) == 0 {
		return list
	}
	all := maps.Clone(other)
	maps.Copy(all, list)
	return all
}

// chargePod charges a pod to the quotas of its namespace. A new pod that exceeds a quota or
// violates a limit range is not charged, and chargePod returns the API server's message. An
// existing pod was admitted before, possibly under other quotas, and is always charged.
func (b *bounds) chargePod(p *v1.Pod, isNew bool) (refusal string) {
	if isNew && !rules.IsTerminal(p) {
		if refusal = b.refusalOf(p); refusal != "" {
			return refusal
		}
	}
	if len(b.quotas[p.Namespace]) == 0 {
		return ""
	}
	usage := b.usageOf(p)
	for _, q := range b.quotas[p.Namespace] {
		if quota.Covers(q.ResourceQuota, p) {
			q.changeUsed(usage, (*apiresource.Quantity).Add)
		}
	}
	return ""
}

// refusalOf returns the reason a new pod violates a limit range or exceeds a quota; empty if it
// does neither. It does not charge the pod.
func (b *bounds) refusalOf(p *v1.Pod) string {
	if why := cmp.Or(b.invalidByDefault(p), b.limitRefusal(p)); why != "" || len(b.quotas[p.Namespace]) == 0 {
		return why
	}
	usage := b.usageOf(p)
	for _, q := range b.quotas[p.Namespace] {
		if !quota.Covers(q.ResourceQuota, p) {
			continue
		}
		if why := quota.Refuses(q.ResourceQuota, q.used, p, usage); why != "" {
			return fmt.Sprintf("pods %q is forbidden: %s", p.Name, why)
		}
	}
	return ""
}

// releasePod reverses the charge of a pod. The quota may then admit pods of the namespace that it
// refused earlier.
func (b *bounds) releasePod(p *v1.Pod) {
	for _, q := range b.quotas[p.Namespace] {
		if quota.Covers(q.ResourceQuota, p) {
			q.changeUsed(b.usageOf(p), (*apiresource.Quantity).Sub)
			b.freed[p.Namespace] = true
		}
	}
}

// changeUsed adds a pod's usage to the quota's usage, or subtracts it. It keeps only resources
// limited by the quota.
func (q *quotaUse) changeUsed(usage v1.ResourceList, how func(*apiresource.Quantity, apiresource.Quantity)) {
	for name := range q.Spec.Hard {
		if amount, ok := usage[name]; ok {
			sum := q.used[name].DeepCopy()
			how(&sum, amount)
			q.used[name] = sum
		}
	}
}

// addLimits adds quotas and limit ranges, replacing same-named ones. The pods already charged count
// against the new quotas.
func (b *bounds) addLimits(quotas []*v1.ResourceQuota, ranges []*v1.LimitRange, charged []*v1.Pod) {
	for _, object := range quotas {
		q := &quotaUse{object, v1.ResourceList{}}
		for _, p := range charged {
			if p.Namespace == q.Namespace && quota.Covers(q.ResourceQuota, p) {
				q.changeUsed(b.usageOf(p), (*apiresource.Quantity).Add)
			}
		}
		b.quotas[q.Namespace] = replaceOrAppend(b.quotas[q.Namespace], q)
		b.freed[q.Namespace] = true
	}
	for _, r := range ranges {
		b.ranges[r.Namespace] = replaceOrAppend(b.ranges[r.Namespace], r)
		b.freed[r.Namespace] = true
	}
}

// usageOf returns a pod's usage, including overhead, by the quotas' resource names. An ended or
// overdue pod counts only as an object.
func (b *bounds) usageOf(p *v1.Pod) v1.ResourceList {
	if rules.IsTerminal(p) || b.isOverdue(p) {
		return v1.ResourceList{"count/pods": apiresource.MustParse("1")}
	}
	return quota.UsageOf(p)
}

// isOverdue reports whether the pod should have ended before the world began. deletionTimestamp is
// the end of the grace period; like the quota controller, isOverdue requires another full grace
// period after it. Such pods remain on unresponsive nodes, and must not block their quota.
func (b *bounds) isOverdue(p *v1.Pod) bool {
	grace := time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && b.now.After(p.DeletionTimestamp.Add(grace))
}

// replaceOrAppend returns the list with the object replacing the one of the same namespace and
// name, or appended if there is none. It does not modify the list's elements.
func replaceOrAppend[T metav1.Object](list []T, object T) []T {
	i := slices.IndexFunc(list, func(o T) bool { return o.GetName() == object.GetName() && o.GetNamespace() == object.GetNamespace() })
	if i < 0 {
		return append(list, object)
	}
	list = slices.Clone(list)
	list[i] = object
	return list
}

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
		switch ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); {
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
