// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file places the pods of a tree: composite by composite, each in one domain of its topology
// key if it has one.

// placeSomehow places the tree while protecting the room of its nominated pods from its other pods.
// If that fails, it places the tree without this protection. The attempt of a group in no tree
// protects nominations itself, apart from the nominations of the group's reservation.
func (t *treeAttempt) placeSomehow() (settled bool, err error) {
	if t.root == nil {
		a := t.leaves[0]
		a.suspendNominations()
		err = a.attempt.Place()
		return err == nil && a.attempt.HasEnough(), err
	}
	t.beginPart()
	if settled, err = t.placeInSomeOrder(); settled || err != nil || t.shortened {
		return settled, err
	}
	return t.withoutNominations(t.placeInSomeOrder)
}

// placeInSomeOrder places the tree in upstream's order. If that fails, the failed groups are placed
// first. It reports whether enough pods are placed.
func (t *treeAttempt) placeInSomeOrder() (settled bool, err error) {
	if settled, err = t.placeTree(placeOptions{}); settled || err != nil {
		return settled, err
	}
	if !t.placed || t.shortened {
		return false, nil
	}
	failed := map[*groups.Group]bool{}
	for _, a := range t.leaves {
		failed[a.group] = !a.attempt.HasEnough() && slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Failure != nil })
	}
	return t.placeTree(placeOptions{first: failed})
}

// placeTree places the tree from scratch. It reports whether enough pods, and at least one pod, are
// placed.
func (t *treeAttempt) placeTree(how placeOptions) (settled bool, err error) {
	t.failing = map[*groups.Composite]int{}
	t.renew(t.root)
	settled, err = t.place(t.whole, how)
	if err != nil || !settled || !t.anyPlaced(t.whole) {
		t.rewind(t.root)
		return false, err
	}
	return true, nil
}

// place places the pods below a child and reports whether the child is then settled. If not, place
// takes the placements back.
func (t *treeAttempt) place(child groups.Child, how placeOptions) (settled bool, err error) {
	switch {
	case child.Group != nil:
		return t.placeGroup(child, how)
	case child.Composite.TopologyKey() != "":
		return t.placeInDomains(child.Composite, how)
	}
	return t.placeChildren(child.Composite, how)
}

// placeChildren places the children of a composite one after the other. The number of children to
// preempt for is limited to the number that the composite lacks.
func (t *treeAttempt) placeChildren(c *groups.Composite, how placeOptions) (settled bool, err error) {
	count, least, left := 0, t.podGroups.progress.leastGroups(c), how.preemption.Len()
	children := c.Children()
	slices.SortStableFunc(children, func(a, b groups.Child) int {
		switch first := hasAny(a, how.first); {
		case first == hasAny(b, how.first):
			return 0
		case first:
			return -1
		}
		return 1
	})

	var rest []groups.Child // children without placed pods
	for _, child := range children {
		settled, err := t.place(child, placeOptions{first: how.first})
		if err != nil {
			return false, err
		}
		if settled {
			count++
		}
		if how.preemption != nil && !t.anyPlaced(child) {
			rest = append(rest, child)
		}
	}

	for _, child := range rest {
		if count >= least && t.anyPlaced(groups.Child{Composite: c}) {
			break
		}
		before := t.podGroups.progress.isSettled(child)
		settled, err := t.place(child, how)
		if err != nil {
			return false, err
		}
		if settled && !before {
			count++
		}
	}

	// A composite with too few settled children gives up all of them, which frees their room for
	// other parts of the tree.
	if count >= least {
		delete(t.failing, c)
		return true, nil
	}
	t.failing[c] = count
	t.rewind(c)
	how.preemption.Restore(left)
	return false, nil
}

// treePlacement is a placement of the pods below a composite in one domain.
type treePlacement struct {
	domain string
	groups []groupState
	pods   int
	all    bool             // all pods below the composite are placed
	full   float64          // fill level of the domain with this placement, in percent
	leave  [][]*cluster.Pod // units preempted for this placement
	// failing is the value of treeAttempt.failing for this placement.
	failing map[*groups.Composite]int
}

// placeInDomains places the pods below a composite in one domain of its topology key. It chooses
// the domain with the least important victims, if any. Among equal domains it chooses the domain
// with the best score. As upstream, the score depends on the fill level of the domain and on the
// number of the composite's pods placed there.
func (t *treeAttempt) placeInDomains(c *groups.Composite, how placeOptions) (settled bool, err error) {
	t.inDomain = true
	key := c.TopologyKey()
	domains, err := t.listDomains(c, key)
	if err != nil {
		return false, err
	}
	if len(domains) == 0 {
		t.failing[c] = 0
		for _, a := range t.below(c) {
			a.attempt.FailForLackOfDomains(key)
		}
		return false, nil
	}

	before := t.countBefore(c)
	var fitting []treePlacement
	most, closest := -1, map[*groupAttempt][]*decide.Failure{}
	outside, failing := t.failing, t.failing
	for i, in := range t.listProspects(c, key, domains, how) {
		if i > 0 && t.isOver() {
			t.shortened = true
			break
		}
		if t.cannotBeBest(&in, fitting, how) {
			continue
		}
		left := how.preemption.Len()
		t.failing = maps.Clone(outside)
		settled, err := t.placeConfined(c, confine{key, in.Domain}, how)
		if err != nil {
			return false, err
		}
		if settled {
			p := t.describePlacement(c, confine{key, in.Domain})
			if p.pods += before; p.all {
				p.full = in.Full
			}
			t.rewind(c)
			p.leave = how.preemption.Restore(left)
			fitting = append(fitting, p)
			continue
		}
		how.preemption.Restore(left)
		if t.failing[c] > most {
			most, failing = t.failing[c], t.failing
			closest = t.listFailures(c, key)
		}
	}

	if len(fitting) == 0 {
		t.failing = failing
		t.failing[c] = max(most, 0)
		for a, failures := range closest {
			a.attempt.SetFailures(failures)
		}
		return false, nil
	}
	best := bestOf(fitting)
	t.failing = best.failing
	how.preemption.Remove(best.leave)
	return true, t.restoreGroups(best.groups)
}

// isOver reports whether the attempt must end.
func (t *treeAttempt) isOver() bool {
	return !t.limits.Unhurried && len(t.leaves) > 0 && t.leaves[0].profile.Decider.Work() >= t.until
}

// placeConfined places the pods below a composite in a domain.
func (t *treeAttempt) placeConfined(c *groups.Composite, to confine, how placeOptions) (settled bool, err error) {
	t.within = append(t.within, to)
	defer func() { t.within = t.within[:len(t.within)-1] }()
	t.renew(c)
	return t.placeChildren(c, how)
}

// listDomains lists the existing values of a key within the current domains of the composites
// above. If pods below the composite already have nodes, it returns only the value of these nodes.
func (t *treeAttempt) listDomains(c *groups.Composite, key string) ([]string, error) {
	var nodes []*cluster.Node
	for _, p := range t.podGroups.units.OnNodes(c.Leaves()...) {
		if !p.Terminating {
			nodes = append(nodes, p.Node)
		}
	}
	if pinned, err := gang.PinnedDomain(nodes, key); err != nil || len(pinned) > 0 {
		return pinned, err
	}

	all := map[string]bool{}
	for _, n := range t.cluster.Nodes {
		if n == nil || !isWithin(n, t.within) {
			continue
		}
		if domain, ok := gang.DomainOf(n, key); ok {
			all[domain] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// countBefore counts the pods below a composite that have nodes before the composite is placed.
func (t *treeAttempt) countBefore(c *groups.Composite) (count int) {
	for _, g := range c.Leaves() {
		count += t.podGroups.progress.countPlaced(g)
	}
	return count
}

// describePlacement describes the current placement of the pods below a composite.
func (t *treeAttempt) describePlacement(c *groups.Composite, in confine) treePlacement {
	t.nameDomains(c, in.key)
	p := treePlacement{domain: in.domain, groups: t.rememberGroups(c), failing: t.failing}
	p.all = true
	for i := range p.groups {
		p.pods += len(p.groups[i].places)
		p.all = p.all && len(p.groups[i].places) == len(p.groups[i].target.members)
	}
	p.full = t.leaves[0].attempt.PercentFull(in.key, in.domain, func(n *cluster.Node) bool { return isWithin(n, t.within) })
	return p
}

// bestOf returns the placement with the least important victims. Ties are broken by the best score,
// and then by the name of the domain.
func bestOf(list []treePlacement) treePlacement {
	most := 1
	for i := range list {
		most = max(most, list[i].pods)
	}
	score := func(p *treePlacement) float64 { return p.full + 100*float64(p.pods)/float64(most) }
	return slices.MaxFunc(list, func(x, y treePlacement) int {
		return cmp.Or(gang.CompareVictims(y.leave, x.leave), cmp.Compare(score(&x), score(&y)), cmp.Compare(y.domain, x.domain))
	})
}

// listFailures returns the failures of the pods below a composite that found no node in a domain of
// a key.
func (t *treeAttempt) listFailures(c *groups.Composite, key string) map[*groupAttempt][]*decide.Failure {
	t.nameDomains(c, key)
	all := map[*groupAttempt][]*decide.Failure{}
	for _, a := range t.below(c) {
		all[a] = a.attempt.Failures()
	}
	return all
}

// nameDomains adds the nodes in other domains to the failures of pods below a composite.
func (t *treeAttempt) nameDomains(c *groups.Composite, key string) {
	for _, a := range t.below(c) {
		a.attempt.NameDomains(key)
	}
}

// listProspects lists the domains of a key that may have room for the pods below a composite, the
// best domain first. After each attempt that was ended early, the list starts with another domain.
func (t *treeAttempt) listProspects(c *groups.Composite, key string, domains []string, how placeOptions) []gang.Prospect {
	below := t.below(c)
	if len(below) == 0 {
		return nil
	}
	r := t.requestFor(below)
	r.TopologyKey, r.Need = key, t.countNeeded(groups.Child{Composite: c})
	list := gang.New(r).ListProspects(domains, how.preemption != nil)
	from := t.root.Shortened * 7 % len(list)
	return slices.Concat(list[from:], list[:from])
}

// requestFor returns a request for the pods of some groups together.
func (t *treeAttempt) requestFor(list []*groupAttempt) *gang.Request {
	r := list[0].newRequest()
	r.Members, r.TopologyKey = nil, ""
	for _, a := range list {
		for _, m := range a.members {
			r.Members = append(r.Members, m.asked)
		}
	}
	return r
}

// cannotBeBest reports whether a domain cannot improve on the fitting placements of a composite: it
// requires more important victims, or would have a lower fill level with all pods.
func (t *treeAttempt) cannotBeBest(in *gang.Prospect, fitting []treePlacement, how placeOptions) bool {
	return slices.ContainsFunc(fitting, func(p treePlacement) bool {
		if how.preemption != nil {
			return !in.MayCostLess(p.leave)
		}
		return p.all && (p.full > in.Full || p.full == in.Full && p.domain < in.Domain)
	})
}

// countNeeded returns the minimum number of pods to place for a child.
func (t *treeAttempt) countNeeded(of groups.Child) int {
	if of.Group != nil {
		return t.podGroups.progress.countMissing(of.Group)
	}
	least := t.podGroups.progress.leastGroups(of.Composite)
	var needed []int
	for _, child := range of.Composite.Children() {
		if t.podGroups.progress.isSettled(child) {
			least--
		} else {
			needed = append(needed, t.countNeeded(child))
		}
	}

	sum := 0
	slices.Sort(needed)
	for _, count := range needed[:min(max(0, least), len(needed))] {
		sum += count
	}
	return max(1, sum)
}
