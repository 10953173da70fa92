// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// gauge is a number that a plan reduces. countPod is called for every pod added to a node (by = 1)
// or removed from it (by = -1), and in a trial also for pods not actually moved.
//
// A gauge must be reversible: counting a pod and uncounting it restores the value. It must not read
// cluster state that a trial does not change, such as the pods of a node; the gauge losses
// therefore keeps its own list of pods.
type gauge interface {
	gaugeName() string
	countPod(p *pod, n *cluster.Node, by int64)
	currentValue() int64
}

// ledger is the gauge of violated constraints: the sum of all excesses.
//
//   - Spread: the pods of each domain in excess of the lowest count plus maxSkew.
//   - Required anti-affinity: ordered pairs of pods in one domain, where a term of the first pod
//     repels the second.
//   - Required affinity: terms without a matching pod in the domain.
//   - Node selector and affinity, and NoSchedule taints: one for each pod that does not match its
//     node, and one for each taint of its node that a pod does not tolerate.
//
// Each spread constraint and each term is a group, which the pods of many classes may share; the
// concern of a class lists its groups. Counting a pod touches only the groups of its concern, so
// the cost of a trial does not grow with the cluster.
//
// As in kube-scheduler, a constraint binds only the pods that have it: a group without such a pod
// is never violated.
type ledger struct {
	title string
	// action is DoNotSchedule for the ledger of hard constraints, and ScheduleAnyway for the ledger
	// of soft spread constraints, which counts nothing else.
	action v1.UnsatisfiableConstraintAction
	w      *world
	// groups holds all groups in order of discovery, and byKey finds the group of equal
	// constraints.
	groups []*group
	byKey  map[string]*group
	byID   map[int32]*concern // by class
	layers map[string]*layer  // by group.placed
	known  []*concern
	// static counts the violations between pods and their own nodes; sum is the excess of the
	// groups.
	static int64
	sum    int64
	pods   int64 // number of counted pods
	// touched holds the groups changed since watchGroups, with their excess before. It is nil if
	// groups are not watched.
	touched map[*group]int64
}

// concern holds the constraints relevant to the pods of a class.
//
// All pods of a class have the same labels, constraints and tolerations. judge returns why a node
// does not match the class's node selector and affinity; judge itself is nil if any node matches.
type concern struct {
	class *cluster.PodClass
	judge func(n *cluster.Node) *plugins.Rejection
	// own holds the groups of the class's constraints; counts holds the groups that count its pods.
	// If a class spreads its own pods, the group is in both maps. If other pods repel the class,
	// the group is only in counts.
	own    map[*group]bool
	counts map[*group]bool
	groups []*group // the groups of own and counts, in order of discovery

	pods    map[*pod]bool // counted pods
	misfits int64         // part of static caused by these pods
}

// newLedger returns an empty ledger. title labels the number for the user.
func newLedger(w *world, title string, action v1.UnsatisfiableConstraintAction) *ledger {
	return &ledger{title: title, action: action, w: w, byKey: map[string]*group{}, byID: map[int32]*concern{}, layers: map[string]*layer{}}
}

func (l *ledger) gaugeName() string { return l.title }

func (l *ledger) currentValue() int64 { return l.sum + l.static }

// isHard reports whether l is the ledger of hard constraints; a world has only one.
func (l *ledger) isHard() bool { return l.action == v1.DoNotSchedule }

// concernOf returns the concern of a pod's class, and creates it on first use.
func (l *ledger) concernOf(p *pod) *concern {
	if known := l.byID[p.Class.ID]; known != nil {
		return known
	}
	k := &concern{class: p.Class, own: map[*group]bool{}, counts: map[*group]bool{}, pods: map[*pod]bool{}}
	l.byID[p.Class.ID] = k
	l.known = append(l.known, k)

	// A new class may be counted by known constraints, and may bring constraints counting known
	// classes; addGroup handles the latter.
	for _, g := range l.groups {
		if g.countsClass(p.Class, l.w.c) {
			k.counts[g] = true
			k.groups = append(k.groups, g)
		}
	}

	if s := l.w.schedulerOf(p); s != nil {
		l.readSpread(k, p, s)
		if l.isHard() {
			l.readNode(k, p, s)
		}
	}

	if l.isHard() {
		for _, terms := range []struct {
			list []cluster.Term
			anti bool
		}{{p.Class.RequiredAffinity, false}, {p.Class.RequiredAntiAffinity, true}} {
			for i := range terms.list {
				l.addOwn(k, l.termGroup(&terms.list[i], terms.anti))
			}
		}
	}

	return k
}

// readNode reads the node selector and node affinity of a class with the scheduler's own plugin,
// including the affinity added by the plugin's arguments.
func (l *ledger) readNode(k *concern, p *pod, s *scheduler) {
	if s.affinity != nil {
		k.judge = s.affinity.Filter(l.w.c, p.Pod).Node
	}
}

// readSpread reads the spread constraints of a class, with the defaults of the scheduler's profile.
// Invalid constraints do not count: the scheduler would not place such a pod either.
func (l *ledger) readSpread(k *concern, p *pod, s *scheduler) {
	if s.spread == nil {
		return
	}
	var constraints []plugins.SpreadConstraint
	var err error
	if l.isHard() {
		constraints, err = s.spread.Hard(l.w.c, p.Pod)
	} else {
		constraints, _, err = s.spread.Soft(l.w.c, p.Pod)
	}
	if err != nil {
		return
	}
	byDefault := !l.isHard() && len(p.Spec().TopologySpreadConstraints) == 0
	for i := range constraints {
		c := new(constraints[i])
		if byDefault { // without a requested skew, the scheduler simply prefers more even nodes
			c.MaxSkew = 1
		}
		// Two constraints share a group if they count the same pods in the same domains.
		// p.Class.Static covers the other criteria for including nodes: node affinity and
		// tolerations.
		key := fmt.Sprintf("%s/%s/%s/%d/%d/%s/%s/%x", p.Namespace(), c.TopologyKey, c.Selector, c.MaxSkew,
			c.MinDomains, c.NodeAffinityPolicy, c.NodeTaintsPolicy, p.Class.Static)
		g := l.byKey[key]
		if g == nil {
			g = &group{
				text:   fmt.Sprintf("spread of %s over %s, maxSkew %d", c.Selector, c.TopologyKey, c.MaxSkew),
				spread: c, include: plugins.NewSpreadInclusion(p.Pod), space: p.Namespace(),
				placed: fmt.Sprintf("%s/%s/%s/%x", c.TopologyKey, c.NodeAffinityPolicy, c.NodeTaintsPolicy, p.Class.Static),
			}
			l.addGroup(key, g)
		}
		l.addOwn(k, g)
	}
}

// termGroup returns the group of a term of required affinity or anti-affinity. Equal terms of
// different classes or workloads form one group.
func (l *ledger) termGroup(t *cluster.Term, anti bool) *group {
	word := "affinity"
	if anti {
		word = "anti-affinity"
	}
	key := fmt.Sprintf("%s/%s/%s/%s/%s", word, strings.Join(t.Namespaces, ","), t.NamespaceSelector, t.Selector, t.TopologyKey)
	g := l.byKey[key]
	if g == nil {
		g = &group{text: fmt.Sprintf("%s to %s over %s", word, t.Selector, t.TopologyKey), term: t, anti: anti, placed: t.TopologyKey}
		l.addGroup(key, g)
	}
	return g
}

// addGroup adds a new group, which may count known classes, and the pods of these classes counted
// before.
func (l *ledger) addGroup(key string, g *group) {
	l.byKey[key] = g
	l.groups = append(l.groups, g)
	g.startCounting(l.layerFor(g))
	for _, k := range l.known {
		if g.countsClass(k.class, l.w.c) {
			k.counts[g] = true
			k.groups = append(k.groups, g)
		}
	}
	if l.pods > 0 {
		l.recountGroup(g)
	}
}

// recountGroup counts a group from the existing pods. It scans all placed pods, so it is used only
// for changes of nodes and for groups found late.
func (l *ledger) recountGroup(g *group) {
	g.startCounting(l.layerFor(g))
	for _, p := range l.w.placed {
		if k := l.byID[p.Class.ID]; k != nil && p.counted != nil && (k.own[g] || k.counts[g]) {
			g.movePod(p.counted, k.own[g], k.counts[g], 1)
		}
	}
	l.sum -= g.excess
	g.excess = g.measureExcess()
	l.sum += g.excess
}

// recountTaints recounts the groups that depend on a node's taints. Only spread constraints with
// nodeTaintsPolicy: Honor depend on taints; a node with a new, untolerated taint leaves all of
// their domains. Layers are recomputed on next use.
func (l *ledger) recountTaints() {
	clear(l.layers)
	for _, g := range l.groups {
		if g.spread != nil && g.spread.NodeTaintsPolicy == v1.NodeInclusionPolicyHonor {
			l.recountGroup(g)
		}
	}
}

// addOwn records that the class has the group's constraint.
func (l *ledger) addOwn(k *concern, g *group) {
	if !k.own[g] {
		k.own[g] = true
		if !k.counts[g] {
			k.groups = append(k.groups, g)
		}
	}
}

// countPod implements gauge.
func (l *ledger) countPod(p *pod, n *cluster.Node, by int64) {
	k := l.concernOf(p)
	l.pods += by
	if by > 0 {
		k.pods[p] = true
	} else {
		delete(k.pods, p)
	}
	if l.isHard() {
		wrong := by * countMisfits(k, p, n)
		k.misfits += wrong
		l.static += wrong
	}

	for _, g := range k.groups {
		// On a node without the topology key, the pod has no domain: it neither violates the
		// constraint nor counts.
		if !g.movePod(n, k.own[g], k.counts[g], by) {
			continue
		}
		if l.touched != nil {
			if _, known := l.touched[g]; !known {
				l.touched[g] = g.excess
			}
		}
		l.sum -= g.excess
		g.excess = g.measureExcess()
		l.sum += g.excess
	}
}

// podsInExcess yields the pods of the classes involved in a violation. Removing any other pod
// cannot lower the ledger, so the search need not examine every pod of the cluster.
func (l *ledger) podsInExcess(yield func(*pod) bool) {
	for _, k := range l.known {
		if k.misfits == 0 && !slices.ContainsFunc(k.groups, func(g *group) bool { return g.excess > 0 }) {
			continue
		}
		// The loop needs a copy, since measuring a pod's gain uncounts and recounts the pod.
		for _, p := range slices.Collect(maps.Keys(k.pods)) {
			if !yield(p) {
				return
			}
		}
	}
}

// countMisfits counts the violations between a pod and its own node; a static pod suits any node.
func countMisfits(k *concern, p *pod, n *cluster.Node) (wrong int64) {
	if isStatic(p) {
		return 0
	}
	if k.judge != nil && k.judge(n) != nil {
		wrong++
	}
	return wrong + int64(len(repellingTaints(p.Pod, n)))
}

// repellingTaints returns the NoSchedule taints not tolerated by the pod. NoExecute taints are left
// to the eviction controller. A cordon and Berth's own taint do not affect pods already on the
// node.
func repellingTaints(p *cluster.Pod, n *cluster.Node) []*v1.Taint {
	return slices.DeleteFunc(plugins.Untolerated(p, n), func(t *v1.Taint) bool {
		return t.Effect != v1.TaintEffectNoSchedule || t.Key == v1.TaintNodeUnschedulable || t.Key == EmptyingTaint
	})
}

// watchGroups starts recording changed groups, until touched is nil again.
func (l *ledger) watchGroups() { l.touched = map[*group]int64{} }

// worstRaised returns a group with a greater excess than at watchGroups, or nil. The total is
// insufficient: a move may lower one constraint's excess and raise another's by the same amount. Of
// several groups it returns the first by text, so that messages do not depend on map order.
func (l *ledger) worstRaised() (worst *group) {
	for g, before := range l.touched {
		if g.excess > before && (worst == nil || g.text < worst.text) {
			worst = g
		}
	}
	return worst
}

// describeViolation describes the pod's violations on its current node, or returns "". It names
// only groups with a lower excess without the pod: other violations are due to other pods.
func (l *ledger) describeViolation(p *pod) string {
	k := l.concernOf(p)
	if k.judge != nil && k.judge(p.Node) != nil {
		return "the node does not match its node affinity"
	}
	if taints := repellingTaints(p.Pod, p.Node); len(taints) > 0 && l.isHard() {
		return "does not tolerate " + taints[0].ToString()
	}

	for _, g := range k.groups {
		before := g.excess
		g.movePod(p.Node, k.own[g], k.counts[g], -1)
		after := g.measureExcess()
		g.movePod(p.Node, k.own[g], k.counts[g], 1)
		if after < before {
			return g.text
		}
	}

	return ""
}
