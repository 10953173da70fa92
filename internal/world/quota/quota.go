// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// This file implements the rules of kube-controller-manager's quota controller and of the API
// server's admission plugin ResourceQuota. Amounts are kept under the names used by quotas:
//
//	container request cpu: 1    -> cpu: 1, requests.cpu: 1
//	container limit   cpu: 2    -> limits.cpu: 2
//	the pod itself              -> pods: 1, count/pods: 1

// Covers reports whether the pod matches all the quota's scopes. A quota without scopes covers all
// pods of its namespace; the caller compares the namespaces.
func Covers(q *v1.ResourceQuota, p *v1.Pod) bool {
	if slices.ContainsFunc(q.Spec.Scopes, func(scope v1.ResourceQuotaScope) bool {
		return !inScope(p, v1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: v1.ScopeSelectorOpExists})
	}) {
		return false
	}
	// All scopes of both fields must match.
	return q.Spec.ScopeSelector == nil || !slices.ContainsFunc(q.Spec.ScopeSelector.MatchExpressions,
		func(r v1.ScopedResourceSelectorRequirement) bool { return !inScope(p, r) })
}

// inScope reports whether a pod matches one scope. Only the scope of priority classes has a
// relevant operator. An unknown scope matches no pod, so a newer API's quota counts nothing here.
func inScope(p *v1.Pod, r v1.ScopedResourceSelectorRequirement) bool {
	deadline := p.Spec.ActiveDeadlineSeconds != nil
	switch bestEffort := rules.QOS(p) == v1.PodQOSBestEffort; r.ScopeName {
	case v1.ResourceQuotaScopeTerminating:
		return deadline
	case v1.ResourceQuotaScopeNotTerminating:
		return !deadline
	case v1.ResourceQuotaScopeBestEffort:
		return bestEffort
	case v1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort
	case v1.ResourceQuotaScopePriorityClass:
		switch class := p.Spec.PriorityClassName; r.Operator {
		case v1.ScopeSelectorOpExists:
			return class != ""
		case v1.ScopeSelectorOpDoesNotExist:
			return class == ""
		case v1.ScopeSelectorOpIn:
			return class != "" && slices.Contains(r.Values, class)
		case v1.ScopeSelectorOpNotIn:
			return !slices.Contains(r.Values, class)
		}
	case v1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return namesNamespaces(p.Spec.Affinity)
	}

	return false
}

// namesNamespaces reports whether a term of pod affinity or anti-affinity selects namespaces other
// than the pod's own. Preferred terms count as well as required ones.
func namesNamespaces(a *v1.Affinity) bool {
	if a == nil {
		return false
	}
	names := func(t *v1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	required := func(list []v1.PodAffinityTerm) bool {
		return slices.ContainsFunc(list, func(t v1.PodAffinityTerm) bool { return names(&t) })
	}
	preferred := func(list []v1.WeightedPodAffinityTerm) bool {
		return slices.ContainsFunc(list, func(t v1.WeightedPodAffinityTerm) bool { return names(&t.PodAffinityTerm) })
	}
	near, far := a.PodAffinity, a.PodAntiAffinity
	return near != nil && (required(near.RequiredDuringSchedulingIgnoredDuringExecution) ||
		preferred(near.PreferredDuringSchedulingIgnoredDuringExecution)) ||
		far != nil && (required(far.RequiredDuringSchedulingIgnoredDuringExecution) ||
			preferred(far.PreferredDuringSchedulingIgnoredDuringExecution))
}

// Refuses returns why the quota refuses a new pod, in the API server's words: the pod lacks an
// amount counted by the quota, or exceeds the quota. It returns "" if the quota admits the pod.
// current is the usage of the quota's pods, and usage is the usage of the new pod. The caller must
// have checked that the quota covers the pod.
func Refuses(q *v1.ResourceQuota, current v1.ResourceList, p *v1.Pod, usage v1.ResourceList) string {
	// As in the API server, an unspecified amount cannot be counted.
	if missing := missing(q, p); missing != "" {
		return fmt.Sprintf("failed quota: %s: must specify %s", q.Name, missing)
	}
	var requested, used, limited []string
	for _, name := range sorted(q.Spec.Hard) {
		amount, ok := usage[name]
		if !ok {
			continue
		}
		// Name all exceeded amounts, sorted, because users compare the message with the API
		// server's.
		sum, before, hard := current[name].DeepCopy(), current[name], q.Spec.Hard[name]
		if sum.Add(amount); sum.Cmp(hard) > 0 {
			requested = append(requested, fmt.Sprintf("%s=%s", name, amount.String()))
			used = append(used, fmt.Sprintf("%s=%s", name, before.String()))
			limited = append(limited, fmt.Sprintf("%s=%s", name, hard.String()))
		}
	}

	if len(requested) == 0 {
		return ""
	}
	return fmt.Sprintf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
		q.Name, strings.Join(requested, ","), strings.Join(used, ","), strings.Join(limited, ","))
}

// missing lists, for each amount of CPU or memory counted by the quota, the containers that do not
// specify it. Containers need not specify any amount if the pod has pod-level resources.
func missing(q *v1.ResourceQuota, p *v1.Pod) string {
	if resource.IsPodLevelResourcesSet(p) {
		return ""
	}
	var parts []string
	for _, name := range sorted(q.Spec.Hard) {
		if !mustBeSaid[name] {
			continue
		}
		var silent []string
		for _, list := range [][]v1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range list {
				if _, said := amountsOf(list[i].Resources.Requests, list[i].Resources.Limits)[name]; !said {
					silent = append(silent, list[i].Name)
				}
			}
		}
		if len(silent) > 0 {
			slices.Sort(silent)
			parts = append(parts, fmt.Sprintf("%s for: %s", name, strings.Join(silent, ",")))
		}
	}

	return strings.Join(parts, "; ")
}

// mustBeSaid lists the amounts that a pod must specify if a quota counts them. A missing amount of
// any other resource, such as devices, counts as zero.
var mustBeSaid = map[v1.ResourceName]bool{
	v1.ResourceCPU: true, v1.ResourceRequestsCPU: true, v1.ResourceLimitsCPU: true,
	v1.ResourceMemory: true, v1.ResourceRequestsMemory: true, v1.ResourceLimitsMemory: true,
}

// sorted returns the sorted names of amounts, because messages must not depend on the order of a
// map.
func sorted(list v1.ResourceList) []v1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

// UsageOf returns the usage, including overhead, of a pod that has not ended, under the names used
// by quotas. For a pod being resized in place, its kubelet's allocation counts as well.
func UsageOf(p *v1.Pod) v1.ResourceList {
	options := resource.PodResourcesOptions{UseStatusResources: true}
	usage := amountsOf(rules.PodRequests(p, options), rules.PodLimits(p, options))
	usage[v1.ResourcePods], usage["count/pods"] = apiresource.MustParse("1"), apiresource.MustParse("1")
	return usage
}

// Sum returns the sum of two lists. Neither is changed.
func Sum(a, b v1.ResourceList) v1.ResourceList {
	sum := a.DeepCopy()
	if sum == nil {
		sum = v1.ResourceList{}
	}
	for name, amount := range b {
		total := sum[name]
		total.Add(amount)
		sum[name] = total
	}
	return sum
}

// amountsOf puts requests and limits under the names used by quotas. Extended resources are counted
// as requests only, and their limits are the same.
func amountsOf(requests, limits v1.ResourceList) v1.ResourceList {
	usage := v1.ResourceList{}
	for name, amount := range requests {
		switch {
		case name == v1.ResourceCPU, name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage:
			usage[name], usage[v1.DefaultResourceRequestsPrefix+name] = amount, amount
		// Huge pages are counted under both names.
		case strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix):
			usage[name], usage[v1.DefaultResourceRequestsPrefix+name] = amount, amount
		case cluster.IsScalar(name):
			usage[v1.DefaultResourceRequestsPrefix+name] = amount
		}
	}

	for name, amount := range limits {
		switch name {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
			usage["limits."+name] = amount
		}
	}
	return usage
}
