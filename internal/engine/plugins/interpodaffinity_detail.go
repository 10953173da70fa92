// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Detail implements Detailer. It names the term that keeps the pod off a node, and a pod that the
// term applies to. The verdict needs only counts, so Detail searches for such a pod. It returns nil
// if the terms cannot be parsed: no node is then examined.
func (*InterPodAffinity) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	if p.Class.TermError != nil {
		return nil
	}
	d := &affinityDetail{c: c, a: NewAffinities(c, p.Class), pods: map[domainOfTerm]*cluster.Pod{},
		theirs: map[string]map[string]*cluster.Pod{}}
	d.findPods()
	return d.detailOf
}

// affinityDetail holds one pod for each term and domain of the pending pod, and one pod for each
// domain closed by terms of placed pods that select the pending pod. findPods fills it once for all
// nodes.
type affinityDetail struct {
	c    *cluster.Cluster
	a    *Affinities
	pods map[domainOfTerm]*cluster.Pod
	// theirs holds the pods that repel the pending pod by their own terms; pods holds the pods
	// selected by the pending pod's own terms.
	theirs map[string]map[string]*cluster.Pod // by topology key and value
}

// domainOfTerm is a term of the pending pod and a value of its topology key.
type domainOfTerm struct {
	term  *cluster.Term
	value string
}

// findPods visits every pod once, and keeps the first by name for each term and domain.
func (d *affinityDetail) findPods() {
	own := d.a.own
	// The result is cached per class, because a term selects pods regardless of their node.
	selected := cacheByClass(func(class *cluster.PodClass) (terms []*cluster.Term) {
		for i := range own.RequiredAffinity {
			if d.a.Attracts(class) { // a pod must match all terms
				terms = append(terms, &own.RequiredAffinity[i])
			}
		}
		for i := range own.RequiredAntiAffinity {
			// Each anti-affinity term applies separately.
			if d.a.termSelects(&own.RequiredAntiAffinity[i], class) {
				terms = append(terms, &own.RequiredAntiAffinity[i])
			}
		}
		return terms
	})
	repelledBy := cacheByClass(d.a.RepelledBy)
	for _, n := range d.c.Nodes {
		if n == nil {
			continue
		}
		for _, o := range n.Pods {
			for _, t := range selected(o.Class) {
				if value, ok := n.Lookup(t.TopologyKey); ok {
					d.pods[domainOfTerm{t, value}] = firstByName(d.pods[domainOfTerm{t, value}], o)
				}
			}
			for _, key := range repelledBy(o.Class) {
				d.noteRepelled(n, key, o)
			}
		}
	}
}

// noteRepelled records a pod with anti-affinity to the pending pod.
func (d *affinityDetail) noteRepelled(n *cluster.Node, key string, o *cluster.Pod) {
	if value, ok := n.Lookup(key); ok {
		theirs := rules.Inner(d.theirs, key)
		theirs[value] = firstByName(theirs[value], o)
	}
}

// firstByName returns the pod with the first name, since a node's pods are unordered.
func firstByName(known, o *cluster.Pod) *cluster.Pod {
	if known == nil || nameOf(o) < nameOf(known) {
		return o
	}
	return known
}

// nameOf is the pod's namespace and name, in the form used by messages.
func nameOf(p *cluster.Pod) string { return p.Namespace() + "/" + p.Name() }

// detailOf describes the plugin's rejection: it checks affinity first, then anti-affinity, then the
// placed pods' anti-affinity. It returns "" for a passed node.
func (d *affinityDetail) detailOf(n *cluster.Node) string {
	own := d.a.own
	for i := range own.RequiredAffinity {
		t := &own.RequiredAffinity[i]
		switch value, ok := n.Lookup(t.TopologyKey); {
		case !ok:
			return "lacks the label " + t.TopologyKey
		case d.pods[domainOfTerm{t, value}] == nil:
			return fmt.Sprintf("no pod that matches %s in %s=%s", t.Selector, t.TopologyKey, value)
		}
	}

	for i := range own.RequiredAntiAffinity {
		t := &own.RequiredAntiAffinity[i]
		value, ok := n.Lookup(t.TopologyKey)
		if o := d.pods[domainOfTerm{t, value}]; ok && o != nil {
			return fmt.Sprintf("%s in %s=%s matches %s", nameOf(o), t.TopologyKey, value, t.Selector)
		}
	}

	// The first key in sorted order is described, to keep the text stable.
	for _, key := range slices.Sorted(maps.Keys(d.theirs)) {
		if value, ok := n.Lookup(key); ok && d.theirs[key][value] != nil {
			return fmt.Sprintf("%s in %s=%s keeps it away", nameOf(d.theirs[key][value]), key, value)
		}
	}
	return ""
}
