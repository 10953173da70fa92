// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// check verifies that the plan is feasible, so that its cost is realistic: every pod has a node or
// is pending, the requests of a node's pods fit its instance type, and anti-affinity is satisfied.
// It does not verify constraints on zones, because Karpenter does not choose all zones; see
// zoneSkew and astray.
func (p plan) check(pods []*corev1.Pod) error {
	var broken []error
	placed := map[types.UID]bool{}
	for i, n := range p.nodes {
		for _, pod := range n.pods {
			if placed[pod.UID] {
				broken = append(broken, fmt.Errorf("pod %s has two nodes", pod.Name))
			}
			placed[pod.UID] = true
		}
		if err := n.fits(); err != nil {
			broken = append(broken, fmt.Errorf("node %d: %w", i, err))
		}
	}
	if len(placed)+p.pending != len(pods) {
		broken = append(broken, fmt.Errorf("%d pods placed and %d pending of %d", len(placed), p.pending, len(pods)))
	}

	for _, t := range terms(pods) {
		for domain, count := range p.count(t) {
			if t.kind == apart && count > 1 {
				broken = append(broken, fmt.Errorf("%d pods with %s=%s are on %s", count, t.key, t.value, domain))
			}
		}
	}
	return errors.Join(broken...)
}

// fits returns an error if the requests of the node's pods exceed its allocatable resources.
func (n node) fits() error {
	free := n.Capacity.DeepCopy()
	take := func(much corev1.ResourceList) {
		for name, q := range much {
			left := free[name]
			left.Sub(q)
			free[name] = left
		}
	}
	take(n.Overhead.Total())
	for _, pod := range n.pods {
		take(corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")})
		take(pod.Spec.Containers[0].Resources.Requests)
	}

	for name, left := range free {
		if left.Sign() < 0 {
			return fmt.Errorf("%s with %d pods: %s of %s are left", n.Name, len(n.pods), left.String(), name)
		}
	}
	return nil
}

// term is an affinity term or a spread constraint, with the label that it selects.
type term struct {
	key, value string // the only label of its selector
	topology   string
	kind       termKind
}

type termKind int

const (
	together termKind = iota
	apart
	evenly
)

// terms lists the distinct terms of all pods. In the benchmark, affinity terms select the pods that
// have them.
func terms(pods []*corev1.Pod) (all []term) {
	seen := map[term]bool{}
	add := func(t term, selector *metav1.LabelSelector) {
		for t.key, t.value = range selector.MatchLabels {
			if !seen[t] {
				seen[t] = true
				all = append(all, t)
			}
		}
	}

	for _, pod := range pods {
		for _, c := range pod.Spec.TopologySpreadConstraints {
			add(term{topology: c.TopologyKey, kind: evenly}, c.LabelSelector)
		}
		affinity := pod.Spec.Affinity
		if affinity != nil && affinity.PodAffinity != nil {
			for _, t := range affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				add(term{topology: t.TopologyKey, kind: together}, t.LabelSelector)
			}
		}
		if affinity != nil && affinity.PodAntiAffinity != nil {
			for _, t := range affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				add(term{topology: t.TopologyKey, kind: apart}, t.LabelSelector)
			}
		}
	}

	return all
}

// count returns the numbers of pods that the term selects, by domain. The nodes have no names, so
// the hostname is replaced by the index in the plan.
func (p plan) count(t term) map[string]int {
	domains := map[string]int{}
	for i, n := range p.nodes {
		domain := n.zone()
		if t.topology == corev1.LabelHostname {
			domain = fmt.Sprint("node ", i)
		}
		for _, pod := range n.pods {
			if pod.Labels[t.key] == t.value {
				domains[domain]++
			}
		}
	}
	return domains
}

// astray returns the number of pods whose affinity is not satisfied: they are outside of the domain
// that has the most pods of their term. The reason is that Karpenter may leave two possible zones
// for the first pod of a term, and ignore that pod when it places the next one.
func (p plan) astray(pods []*corev1.Pod) (count int) {
	for _, t := range terms(pods) {
		if t.kind != together {
			continue
		}
		all, most := 0, 0
		for _, here := range p.count(t) {
			all, most = all+here, max(most, here)
		}
		count += all - most
	}
	return count
}

// zoneSkew returns the final skew between zones, at the worst of the spread constraints: the
// difference in pods between the fullest and the emptiest of the zones with nodes. It may exceed
// maxSkew, because Karpenter does not count a pod in a zone before the pod's NodeClaim is
// restricted to that zone.
func (p plan) zoneSkew(pods []*corev1.Pod) (worst int) {
	zones := map[string]bool{}
	for _, n := range p.nodes {
		zones[n.zone()] = true
	}
	for _, t := range terms(pods) {
		if t.kind != evenly || t.topology != corev1.LabelTopologyZone {
			continue
		}
		most, least := 0, len(pods)
		domains := p.count(t)
		for zone := range zones {
			most, least = max(most, domains[zone]), min(least, domains[zone])
		}
		worst = max(worst, most-least)
	}
	return worst
}
