package plugins

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Detail implements Detailer: the term that keeps the pod off a node, and a pod that it is about.
// The verdict needs counts only; this looks for a pod to name. nil if the terms cannot be parsed:
// then no node is looked at.
func (*InterPodAffinity) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	if p.Class.TermError != nil {
		return nil
	}
	d := &affinityDetail{c: c, a: NewAffinities(c, p.Class), pods: map[domainOfTerm]*cluster.Pod{},
		theirs: map[string]map[string]*cluster.Pod{}}
	d.findPods()
	return d.detailOf
}

// affinityDetail has one of the pods that a term is about, by the term and the domain; of the terms
// of placed pods that mean the pending one, by the domain alone. It is filled once, in findPods,
// and answers for every node.
type affinityDetail struct {
	c    *cluster.Cluster
	a    *Affinities
	pods map[domainOfTerm]*cluster.Pod
	// theirs has the pods that keep the pending one away; pods those that its own terms select.
	theirs map[string]map[string]*cluster.Pod // by topology key and value
}

// domainOfTerm is a term of the pending pod and a value of its topology key.
type domainOfTerm struct {
	term  *cluster.Term
	value string
}

// findPods looks at every pod once, and keeps the first by name for each term and domain.
func (d *affinityDetail) findPods() {
	own := d.a.own
	// Asked once per class: what a term selects does not depend on the node.
	selected := cacheByClass(func(class *cluster.PodClass) (terms []*cluster.Term) {
		for i := range own.RequiredAffinity {
			if d.a.Attracts(class) { // a pod has to match all terms
				terms = append(terms, &own.RequiredAffinity[i])
			}
		}
		for i := range own.RequiredAntiAffinity {
			// Anti-affinity terms are each on their own.
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

// noteRepelled keeps a pod whose anti-affinity means the pending one.
func (d *affinityDetail) noteRepelled(n *cluster.Node, key string, o *cluster.Pod) {
	value, ok := n.Lookup(key)
	if !ok {
		return
	}
	if d.theirs[key] == nil {
		d.theirs[key] = map[string]*cluster.Pod{}
	}
	d.theirs[key][value] = firstByName(d.theirs[key][value], o)
}

// firstByName makes the answer the same every time: pods of a node are in no order.
func firstByName(known, o *cluster.Pod) *cluster.Pod {
	if known == nil || nameOf(o) < nameOf(known) {
		return o
	}
	return known
}

// nameOf is the pod's namespace and name, as messages show it.
func nameOf(p *cluster.Pod) string { return p.Namespace() + "/" + p.Name }

// detailOf says the same as the plugin's rejection: affinity first, then anti-affinity, then that
// of others. "" for a node that the plugin lets pass.
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

	// The first by key of several, so that the text is the same every time.
	for _, key := range slices.Sorted(maps.Keys(d.theirs)) {
		if value, ok := n.Lookup(key); ok && d.theirs[key][value] != nil {
			return fmt.Sprintf("%s in %s=%s keeps it away", nameOf(d.theirs[key][value]), key, value)
		}
	}
	return ""
}
