package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// bounds are the ResourceQuotas and LimitRanges of namespaces: what they allow for new pods, and
// the defaults that they set.
type bounds struct {
	now    time.Time // when the world began
	quotas map[string][]*quota
	ranges map[string][]*v1.LimitRange
	// freed are the namespaces whose quotas may have room for more than before.
	freed map[string]bool
}

type quota struct {
	*v1.ResourceQuota
	used v1.ResourceList
}

func newBounds(quotas []*v1.ResourceQuota, ranges []*v1.LimitRange) *bounds {
	b := &bounds{quotas: map[string][]*quota{}, ranges: map[string][]*v1.LimitRange{}, freed: map[string]bool{}}
	for _, q := range quotas {
		b.quotas[q.Namespace] = append(b.quotas[q.Namespace], &quota{q, v1.ResourceList{}})
	}
	for _, r := range ranges {
		b.ranges[r.Namespace] = append(b.ranges[r.Namespace], r)
	}
	return b
}

// fill sets the namespace's default requests and limits on the containers of a new pod that set
// none.
func (b *bounds) fill(p *v1.Pod) {
	for _, r := range b.ranges[p.Namespace] {
		for i := range r.Spec.Limits {
			item := &r.Spec.Limits[i]
			if item.Type != v1.LimitTypeContainer {
				continue
			}
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

// orElse adds to a list what only the other one has.
func orElse(list, other v1.ResourceList) v1.ResourceList {
	if len(other) == 0 {
		return list
	}
	all := list.DeepCopy()
	if all == nil {
		all = v1.ResourceList{}
	}
	for name, amount := range other {
		if _, ok := all[name]; !ok {
			all[name] = amount
		}
	}
	return all
}

// charge counts a pod against the quotas of its namespace. A new pod that exceeds one of them, or a
// limit range, is refused with the API server's message.
func (b *bounds) charge(p *v1.Pod, isNew bool) (refusal string) {
	if isNew && !rules.IsTerminal(p) {
		if refusal = b.refuses(p); refusal != "" {
			return refusal
		}
	}
	if len(b.quotas[p.Namespace]) == 0 {
		return ""
	}
	usage := b.usageOf(p)
	for _, q := range b.quotas[p.Namespace] {
		if q.covers(p) {
			q.count(usage, (*apiresource.Quantity).Add)
		}
	}
	return ""
}

// refuses says why a new pod is outside a limit range, or exceeds a quota; empty if it does not.
func (b *bounds) refuses(p *v1.Pod) string {
	if why := b.outside(p); why != "" || len(b.quotas[p.Namespace]) == 0 {
		return why
	}
	usage := b.usageOf(p)
	for _, q := range b.quotas[p.Namespace] {
		if !q.covers(p) {
			continue
		}
		if why := q.refuses(p, usage); why != "" {
			return fmt.Sprintf("pods %q is forbidden: %s", p.Name, why)
		}
	}
	return ""
}

// release no longer counts a pod that was charged.
func (b *bounds) release(p *v1.Pod) {
	for _, q := range b.quotas[p.Namespace] {
		if q.covers(p) {
			q.count(b.usageOf(p), (*apiresource.Quantity).Sub)
			b.freed[p.Namespace] = true
		}
	}
}

// count changes what is used by a pod's usage.
func (q *quota) count(usage v1.ResourceList, how func(*apiresource.Quantity, apiresource.Quantity)) {
	for name := range q.Spec.Hard {
		if amount, ok := usage[name]; ok {
			sum := q.used[name].DeepCopy()
			how(&sum, amount)
			q.used[name] = sum
		}
	}
}

// restrict adds quotas and limit ranges, or replaces those of the same name. The quotas count the
// pods that are charged already.
func (b *bounds) restrict(quotas []*v1.ResourceQuota, ranges []*v1.LimitRange, charged []*v1.Pod) {
	for _, object := range quotas {
		q := &quota{object, v1.ResourceList{}}
		for _, p := range charged {
			if p.Namespace == q.Namespace && q.covers(p) {
				q.count(b.usageOf(p), (*apiresource.Quantity).Add)
			}
		}
		b.quotas[q.Namespace] = with(b.quotas[q.Namespace], q)
		b.freed[q.Namespace] = true
	}
	for _, r := range ranges {
		b.ranges[r.Namespace] = with(b.ranges[r.Namespace], r)
		b.freed[r.Namespace] = true
	}
}

// covers reports whether the pod matches all the quota's scopes.
func (q *quota) covers(p *v1.Pod) bool {
	for _, scope := range q.Spec.Scopes {
		if !inScope(p, v1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: v1.ScopeSelectorOpExists}) {
			return false
		}
	}
	if q.Spec.ScopeSelector != nil {
		for _, requirement := range q.Spec.ScopeSelector.MatchExpressions {
			if !inScope(p, requirement) {
				return false
			}
		}
	}
	return true
}

func inScope(p *v1.Pod, r v1.ScopedResourceSelectorRequirement) bool {
	deadline := p.Spec.ActiveDeadlineSeconds != nil
	bestEffort := rules.QOS(p) == v1.PodQOSBestEffort
	switch r.ScopeName {
	case v1.ResourceQuotaScopeTerminating:
		return deadline
	case v1.ResourceQuotaScopeNotTerminating:
		return !deadline
	case v1.ResourceQuotaScopeBestEffort:
		return bestEffort
	case v1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort
	case v1.ResourceQuotaScopePriorityClass:
		class := p.Spec.PriorityClassName
		switch r.Operator {
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

// namesNamespaces reports whether a term of pod affinity or anti-affinity is about other namespaces
// than the pod's own.
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
	return near != nil && (required(near.RequiredDuringSchedulingIgnoredDuringExecution) || preferred(near.PreferredDuringSchedulingIgnoredDuringExecution)) ||
		far != nil && (required(far.RequiredDuringSchedulingIgnoredDuringExecution) || preferred(far.PreferredDuringSchedulingIgnoredDuringExecution))
}

// refuses returns why the quota refuses a new pod: the pod does not specify an amount that the
// quota counts, or exceeds it.
func (q *quota) refuses(p *v1.Pod, usage v1.ResourceList) string {
	if missing := q.missing(p); missing != "" {
		return fmt.Sprintf("failed quota: %s: must specify %s", q.Name, missing)
	}
	var requested, used, limited []string
	for _, name := range sortedNames(q.Spec.Hard) {
		amount, ok := usage[name]
		if !ok {
			continue
		}
		sum, before, hard := q.used[name].DeepCopy(), q.used[name], q.Spec.Hard[name]
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

// missing lists the containers that must specify CPU or memory because the quota counts it.
func (q *quota) missing(p *v1.Pod) string {
	if resource.IsPodLevelResourcesSet(p) {
		return ""
	}
	var parts []string
	for _, name := range sortedNames(q.Spec.Hard) {
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

var mustBeSaid = map[v1.ResourceName]bool{
	v1.ResourceCPU: true, v1.ResourceRequestsCPU: true, v1.ResourceLimitsCPU: true,
	v1.ResourceMemory: true, v1.ResourceRequestsMemory: true, v1.ResourceLimitsMemory: true,
}

func sortedNames(list v1.ResourceList) []v1.ResourceName {
	names := make([]v1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// usageOf returns what a pod counts for, overhead included, by the names that quotas use. One that
// has ended, or should have, is counted as an object only.
func (b *bounds) usageOf(p *v1.Pod) v1.ResourceList {
	if rules.IsTerminal(p) || b.overdue(p) {
		return v1.ResourceList{"count/pods": apiresource.MustParse("1")}
	}
	usage := amountsOf(rules.PodRequests(p, resource.PodResourcesOptions{UseStatusResources: true}),
		rules.PodLimits(p, resource.PodResourcesOptions{UseStatusResources: true}))
	usage[v1.ResourcePods], usage["count/pods"] = apiresource.MustParse("1"), apiresource.MustParse("1")
	return usage
}

// overdue reports whether the pod should have ended before the world began: as in the quota
// controller, its grace period is over once more since its deletionTimestamp, which is its end.
func (b *bounds) overdue(p *v1.Pod) bool {
	grace := time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second
	return p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && b.now.After(p.DeletionTimestamp.Add(grace))
}

func amountsOf(requests, limits v1.ResourceList) v1.ResourceList {
	usage := v1.ResourceList{}
	for name, amount := range requests {
		switch {
		case name == v1.ResourceCPU, name == v1.ResourceMemory, name == v1.ResourceEphemeralStorage:
			usage[name], usage[v1.DefaultResourceRequestsPrefix+name] = amount, amount
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
