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

// check independently proves that the plan's nodes hold their pods, so that the cost is real: every
// pod has a node or is pending, the requests of a node's pods fit the launched type, and
// anti-affinity holds. Zones left open by Karpenter are counted instead, in zoneSkew and astray.
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

// fits reports whether the node's allocatable resources cover its pods' requests.
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

// term is an affinity or a spread constraint of pods, with the labels that it selects.
type term struct {
	key, value string // the only label
	topology   string
	kind       termKind
}

type termKind int

const (
	together termKind = iota
	apart
	evenly
)

// terms lists the distinct terms of all pods. Affinities of the benchmark select their own pods.
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

// count counts the pods selected by the term, by domain. Since the nodes are unnamed, their index
// in the plan replaces the hostname.
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

// astray counts the pods with an affinity outside of the domain of most of their peers. Karpenter
// may leave two possible zones for the first pod, and ignore that pod for the next one.
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

// zoneSkew returns the difference in pods between the fullest and the emptiest zone with any node,
// at the end and for the worst of the spread constraints. Karpenter counts a pod in a zone only
// once its NodeClaim is restricted to it.
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
