// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// judge determines the rule of a held pod from the annotations of its workload and its namespace,
// and applies the policies that need no plan.
func (g *Guard) judge(h *heldPod, pod *v1.Pod) {
	var workload, namespace map[string]string
	if owner := g.cluster.Workloads().ControllerOf(pod); owner != nil {
		workload = owner.Object.GetAnnotations()
		if top := g.cluster.Workloads().ControllerOf(owner.Object); top != nil {
			workload = top.Object.GetAnnotations()
		}
	}
	if ns, ok := world.Get[*v1.Namespace](g.cluster.World, "", pod.Namespace); ok {
		namespace = ns.Annotations
	}
	h.rule = g.options.RuleOf(workload, namespace)
	switch {
	case h.rule.Policy == evictionguard.Allow:
		h.final, h.wanted = true, evictionguard.Admitted+"the policy of its workload"
	case h.rule.Policy == evictionguard.Finish && rules.ControllerKind(pod) == rules.Job:
		h.final, h.wanted = true, evictionguard.Held+"waiting until it finishes"
	}
}

// expire admits or denies an eviction at its deadline. A surge in progress is not given up.
func (g *Guard) expire(h *heldPod) {
	left := h.rule.Deadline - g.wall().Sub(h.requested)
	switch {
	case left > 0:
		g.wake(g.now.Add(left))
	case !strings.HasPrefix(h.wanted, evictionguard.Admitted) && !strings.HasPrefix(h.wanted, evictionguard.Denied):
		h.final = true
		if why := fmt.Sprintf("held for %v: %s", h.rule.Deadline, strings.TrimPrefix(h.wanted, evictionguard.Held)); h.rule.Deny {
			h.wanted = evictionguard.Denied + why
		} else {
			h.wanted = evictionguard.Admitted + why
		}
	}
}

// admits reports whether a pod that cannot be replaced first leaves without a proof.
func (g *Guard) admits(uid types.UID) bool {
	h := g.held[uid]
	return h != nil && h.rule.Policy != evictionguard.Place && g.options.Fallback != evictionguard.Place
}

// carryOut begins the surges of a plan, admits the pods that cannot surge, and reports why the
// others wait. While pods of several namespaces wait, one namespace has at most half of the surges.
func (g *Guard) carryOut(plan *rebalance.Draining) {
	g.planning, g.planned = false, g.now
	if g.stopping {
		return
	}
	most, count, used, waiting := g.mostSurges(), 0, map[string]int{}, map[string]bool{}
	for _, s := range g.surges.list {
		used[s.Namespace] += len(s.all())
		count += len(s.all())
	}
	for i := range plan.Pods {
		if plan.Pods[i].Surge != nil {
			waiting[plan.Pods[i].Namespace] = true
		}
	}
	half := max(1, most/2)
	var begun [][]*departure // the pods of a workload that leave together
	for _, k := range slices.Concat(plan.Refused, plan.Ignored) {
		g.settle(k.UID, evictionguard.Admitted+k.Why)
	}
	for _, k := range plan.Later {
		if k.NoSurge != "" && g.admits(k.UID) {
			g.settle(k.UID, evictionguard.Admitted+k.NoSurge)
			continue
		}
		g.setStatus(k.UID, evictionguard.Held+"no place yet: "+k.Why)
	}
	slices.SortStableFunc(plan.Pods, func(a, b rebalance.Departure) int {
		return cmp.Compare(used[a.Namespace], used[b.Namespace])
	})

	for i := range plan.Pods {
		p := &plan.Pods[i]
		victim := g.cluster.pod(p.Namespace, p.Name, p.UID)
		switch h := g.held[p.UID]; {
		case h == nil || h.final || victim == nil || victim.DeletionTimestamp != nil:
		case p.Surge == nil && p.Waits != "" && h.rule.Policy != evictionguard.Place:
			g.setStatus(p.UID, evictionguard.Held+p.Waits)
		case p.Surge == nil && g.admits(p.UID):
			g.settle(p.UID, evictionguard.Admitted+p.NoSurge)
		case p.Surge == nil && p.To == "":
			g.setStatus(p.UID, evictionguard.Held+"nothing replaces it")
		case p.Surge == nil: // only as long as plans prove it
			g.setStatus(p.UID, evictionguard.Admitted+"its replacement fits on "+p.To)
		case slices.ContainsFunc(g.surges.list, func(s *surge) bool { return s.scaled.UID == p.Surge.UID }):
			g.setStatus(p.UID, evictionguard.Held+"another pod of "+p.Owner+" is being replaced")
		case g.cluster.surging(p.Surge.Scaled):
			g.setStatus(p.UID, evictionguard.Held+"another run is replacing a pod of "+p.Owner)
		case count >= most || len(waiting) > 1 && used[p.Namespace] >= half:
			g.setStatus(p.UID, evictionguard.Held+"too many pods are being replaced")
			if used[p.Namespace] < half {
				g.reclaim(used, half)
			}
		default:
			d := &departure{Departure: *p, owner: rules.OwnerOf(victim), known: g.cluster.podsOf(rules.OwnerOf(victim))}
			i := slices.IndexFunc(begun, func(b []*departure) bool { return b[0].Surge.UID == p.Surge.UID })
			switch {
			case i < 0:
				begun = append(begun, []*departure{d})
			case len(begun[i]) >= min(p.Surge.Most, mostTogether) || h.failed+g.held[begun[i][0].UID].failed > 0:
				g.setStatus(p.UID, evictionguard.Held+"another pod of "+p.Owner+" is being replaced")
				continue
			default:
				begun[i] = append(begun[i], d)
			}
			count++
			used[p.Namespace]++
			g.setStatus(p.UID, evictionguard.Held+"starting a replacement on "+p.To)
		}
	}
	for _, pods := range begun {
		g.surges.begin(pods[0], pods[1:]...)
	}
}

// reclaim gives up a surge whose replacement is not ready for long, of a namespace that has more
// than half of the surges, so that a pod of another namespace can be replaced.
func (g *Guard) reclaim(used map[string]int, half int) {
	for _, s := range g.surges.list {
		if s.step == growing && used[s.Namespace] > half && g.now.Sub(s.since) >= failsFor {
			used[s.Namespace] -= len(s.all())
			s.outdated = true
			g.surges.giveUp(s, "pods of other namespaces wait")
			return
		}
	}
}

// mostSurges returns the limit of concurrent surges.
func (g *Guard) mostSurges() int {
	placed := rules.Count(world.All[*v1.Pod](g.cluster.World), func(p *v1.Pod) bool { return p.Spec.NodeName != "" })
	return max(fewestSurges, int(g.options.Share*float64(placed)))
}
