// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// treeAttempt decides the groups of a tree of composites in one step. A group in no tree is decided
// as a tree with a single leaf and no root; only its fields attempts, whole, uid and leaves are
// set. A tree decides one group after the other, in upstream's traversal order, each by a separate
// attempt that takes the placements of earlier groups into account. If a composite has too few
// settled children, all placements below it are given up. If the root has enough settled children,
// the remaining placements are started in one step; otherwise no placement is started.
//
// It has more methods than other types because one pass needs all of its state. Separate files hold
// the domains (treedomains), the room made by other pods (treepostfilter), the steps of an attempt
// (decidegroup) and its outcome (groupoutcome).
type treeAttempt struct {
	*attempts
	root      *groups.Composite // nil for a group in no tree
	whole     groups.Child      // the root, or the group in no tree
	uid       types.UID         // of whole
	leaves    []*groupAttempt   // groups with pending pods, in upstream's order
	attemptOf map[*groups.Group]*groupAttempt

	until     int       // amount of the decider's work at which the attempt ends
	shortened bool      // the attempt ended at that limit
	within    []confine // domains of the composites currently being placed
	// failing holds the composites given up in the last pass, with the number of their settled
	// children.
	failing  map[*groups.Composite]int
	inDomain bool // a composite has a topology constraint
	placed   bool // at least one group was placed, even if its placement was given up later
}

// confine limits pods to the nodes of one domain.
type confine struct{ key, domain string }

// newTree returns an attempt for pending pods of a group, or of its tree, given in decision order
// within each group.
func (s *attempts) newTree(g *groups.Group, items []*queue.Item) *treeAttempt {
	root := g.Root()
	if root == nil {
		leaf := s.newGroup(g, items, nil)
		return &treeAttempt{attempts: s, whole: groups.Child{Group: g}, uid: g.Object.UID, leaves: []*groupAttempt{leaf}}
	}
	t := &treeAttempt{attempts: s, root: root, whole: groups.Child{Composite: root}, uid: root.UID()}
	t.attemptOf = map[*groups.Group]*groupAttempt{}
	byGroup := map[*groups.Group][]*queue.Item{}
	for _, item := range items {
		byGroup[s.groupOf(item)] = append(byGroup[s.groupOf(item)], item)
	}

	for _, g := range root.Leaves() {
		if list := byGroup[g]; len(list) > 0 {
			a := s.newGroup(g, list, t)
			t.leaves, t.attemptOf[g] = append(t.leaves, a), a
		}
	}
	for _, item := range items {
		item.Together = len(items)
	}
	t.shareDelay()
	return t
}

// beginPart begins a part of the attempt (placing the tree, or making room for it) with the full
// limit of work.
func (t *treeAttempt) beginPart() {
	t.until = t.leaves[0].profile.Decider.Work() + t.limits.Work<<min(t.root.Shortened, gang.MostDoublings)
}

// shareDelay ends the preemption delay for all pods once it is over for one pod.
func (t *treeAttempt) shareDelay() {
	over := slices.ContainsFunc(t.members(), func(m *member) bool { return !m.asked.Delayed })
	for _, m := range t.members() {
		m.asked.Delayed = m.asked.Delayed && !over
	}
}

// members lists the pods to decide.
func (t *treeAttempt) members() (all []*member) {
	for _, a := range t.leaves {
		all = append(all, a.members...)
	}
	return all
}

// renew restarts the attempts for the groups below a composite.
func (t *treeAttempt) renew(c *groups.Composite) {
	for _, a := range t.below(c) {
		a.renew()
	}
}

// below lists the attempts for the groups below a composite; for a group in no tree, its own.
func (t *treeAttempt) below(c *groups.Composite) (list []*groupAttempt) {
	if c == t.root {
		return t.leaves
	}
	for _, g := range c.Leaves() {
		if a := t.attemptOf[g]; a != nil {
			list = append(list, a)
		}
	}
	return list
}

// rewind removes the pods placed below a composite from their nodes.
func (t *treeAttempt) rewind(c *groups.Composite) {
	for _, a := range slices.Backward(t.below(c)) {
		a.attempt.Rewind()
	}
}

// anyPlaced reports whether a pod of a child, or below it, is placed.
func (t *treeAttempt) anyPlaced(child groups.Child) bool {
	isPlaced := func(a *groupAttempt) bool { return a != nil && len(a.attempt.Placed()) > 0 }
	if child.Group != nil {
		return isPlaced(t.attemptOf[child.Group])
	}
	return slices.ContainsFunc(t.below(child.Composite), isPlaced)
}

// placeGroup places one group. A group that meets its requirement is settled, even if its remaining
// pods are not placed.
func (t *treeAttempt) placeGroup(child groups.Child, how placeOptions) (settled bool, err error) {
	a := t.attemptOf[child.Group]
	if a == nil {
		return t.podGroups.progress.isSettled(child), nil
	}
	before := t.podGroups.progress.isSettled(child)
	if a.profile.Decider.Work() >= t.until && !t.limits.Unhurried {
		t.shortened = true
		for _, m := range a.members {
			m.asked.Failure = gang.NotReached
		}
		return before, nil
	}

	a.attempt = gang.New(a.newRequest())
	err = a.attempt.Place()
	t.shortened = t.shortened || a.attempt.Verdict().Shortened
	switch {
	case err != nil:
		return false, err
	case a.attempt.HasEnough():
		t.placed = true
		return true, nil
	}
	if a.attempt.Rewind(); how.preemption != nil && how.preemption.MakeFor(a.attempt) {
		return true, nil
	}
	return before, nil
}

// hasAny reports whether a child is one of some groups, or has one of them below it.
func hasAny(child groups.Child, some map[*groups.Group]bool) bool {
	if child.Group != nil {
		return some[child.Group]
	}
	return len(some) > 0 && slices.ContainsFunc(child.Composite.Leaves(), func(g *groups.Group) bool { return some[g] })
}

// mayHelpToRepeat reports whether an attempt that placed no pods may end differently in the same
// state: because it was ended early, or because enough groups fit by themselves but conflict with
// each other. As a side effect, it records the reasons why groups do not fit by themselves.
func (t *treeAttempt) mayHelpToRepeat() bool {
	if t.inDomain || t.shortened || !t.placed {
		return t.inDomain || t.shortened
	}

	alone := map[*groups.Group]bool{}
	for _, a := range t.leaves {
		a.renew()
		if settled, err := t.placeGroup(groups.Child{Group: a.group}, placeOptions{}); err == nil && settled {
			alone[a.group] = len(a.attempt.Placed()) > 0
		}
		a.attempt.Rewind()
	}
	return t.shortened || t.anyHopeful(t.whole, alone)
}

// anyHopeful reports whether a group that fits by itself would be placed if all groups that fit by
// themselves were placed.
func (t *treeAttempt) anyHopeful(of groups.Child, alone map[*groups.Group]bool) bool {
	var holds func(of groups.Child) bool
	holds = func(of groups.Child) bool {
		if of.Group != nil {
			return alone[of.Group] || t.podGroups.progress.isSettled(of)
		}
		return t.podGroups.progress.holdsFor(of.Composite, holds)
	}
	if !holds(of) {
		return false
	}
	if of.Group != nil {
		return alone[of.Group]
	}
	return slices.ContainsFunc(of.Composite.Children(), func(child groups.Child) bool { return t.anyHopeful(child, alone) })
}

// renew restarts the attempt: all results about the members are dropped, and the members are
// confined to the tree's domains.
func (a *groupAttempt) renew() {
	confined := map[*cluster.PodClass]*cluster.PodClass{}
	for _, m := range a.members {
		asked := m.asked
		asked.Form = gang.Form{Pod: m.item.Pod, Asked: a.nominations.asContender(m.Waiting, m.item.Pod)}
		if len(a.tree.within) == 0 {
			continue
		}

		// A member confined to a domain gets a new class, different from its original class.
		for _, in := range a.tree.within {
			asked.Pod = gang.SelectDomain(asked.Pod, in.key, in.domain)
		}
		class := confined[m.Waiting.Class]
		if class == nil {
			class = a.nominations.asContender(a.cluster.Pending(asked.Pod), asked.Pod).Class
			confined[m.Waiting.Class] = class
		}
		as := *m.Waiting
		as.Class = class
		asked.Asked = &as
	}

	a.attempt = gang.New(a.newRequest())
}

// endGroups notifies out-of-tree plugins that the attempt is over.
func (t *treeAttempt) endGroups() {
	for _, a := range t.leaves {
		a.endGroup()
	}
}

// lacksOwn reports whether a group has found too few nodes for its own pods.
func (a *groupAttempt) lacksOwn() bool {
	v := a.attempt.Verdict()
	return v.Fit < v.Needed || v.NoDomain != ""
}

// wordsOf returns the message for fitting groups that are not placed, which describes the shortage
// of a composite.
func (t *treeAttempt) wordsOf(c *groups.Composite) string {
	children := c.Children()
	return fmt.Sprintf("composite pod group %q is unschedulable: %d of %d groups fit, %s needed at once",
		c.Name.Name, t.failing[c], len(children), gang.AreNeeded(c.MinGroupCount()))
}

// failingAbove returns the lowest given-up composite above a group, or the root if no composite
// above it was given up.
func (t *treeAttempt) failingAbove(g *groups.Group) *groups.Composite {
	for c := g.Parent(); c != nil; c = c.Parent() {
		if _, failing := t.failing[c]; failing {
			return c
		}
	}
	return t.root
}

// firstFailing returns the first group below a composite that does not fit.
func (t *treeAttempt) firstFailing(c *groups.Composite) *groupAttempt {
	for _, g := range c.Leaves() {
		if a := t.attemptOf[g]; a != nil && a.lacksOwn() {
			return a
		}
	}
	return nil
}

// A group of a tree is tried in many placements before one is found that fits the whole tree. A
// groupState is one of these placements. It holds the nodes of the group's pods, so that the
// placement can be restored, and the form of each pod confined to the domains of that placement.
type groupState struct {
	target  *groupAttempt
	attempt *gang.Attempt
	places  []gang.Place
	forms   []gang.Form // forms of the group's pods, in their order
}

// rememberGroups returns the current state of the groups below a composite.
func (t *treeAttempt) rememberGroups(c *groups.Composite) (list []groupState) {
	for _, a := range t.below(c) {
		s := groupState{target: a, attempt: a.attempt, places: a.attempt.CurrentPlaces()}
		for _, m := range a.members {
			s.forms = append(s.forms, m.asked.Form)
		}
		list = append(list, s)
	}
	return list
}

// restoreGroups restores the given state of the groups. None of their pods may be placed.
func (t *treeAttempt) restoreGroups(list []groupState) (err error) {
	for _, s := range list {
		s.target.attempt = s.attempt
		for i, m := range s.target.members {
			m.asked.Form = s.forms[i]
		}
		if !s.attempt.PlaceAll(s.places) {
			err = fmt.Errorf("pods of group %q do not fit where they were found to", s.target.group.Name.Name)
		}
	}
	return err
}

// remember returns a function that restores the current state of the tree after its pods were taken
// off their nodes.
func (t *treeAttempt) remember() (restore func()) {
	was, failing := *t, maps.Clone(t.failing)
	list := t.rememberGroups(t.root)
	return func() {
		t.failing, t.shortened, t.placed, t.inDomain = failing, was.shortened, was.placed, was.inDomain
		_ = t.restoreGroups(list) // a pod that is now refused is omitted
	}
}

// limit limits a group's request to the remaining work of the tree attempt.
func (t *treeAttempt) limit(r *gang.Request) {
	r.Limits.Work = max(1, t.until-r.Decider.Work())
	r.Limits.Search /= max(1, len(t.attemptOf))
	r.Earlier = gang.Memory{}
	if len(t.within) > 0 {
		within := slices.Clone(t.within)
		r.Eligible = func(n *cluster.Node) bool { return isWithin(n, within) }
	}
}

func isWithin(n *cluster.Node, all []confine) bool {
	return !slices.ContainsFunc(all, func(c confine) bool {
		domain, ok := gang.DomainOf(n, c.key)
		return !ok || domain != c.domain
	})
}

// placeOptions holds the options for placing a tree.
type placeOptions struct {
	// first holds groups to place, with the composites above them, before the other children.
	first map[*groups.Group]bool
	// preemption makes room by preemption for groups that do not fit; nil: no preemption.
	preemption *gang.TreeRoom
}

// withoutNominations places the tree with the nominations of its pods suspended. Pods without a
// node afterwards are nominated again. Without nominations, it places nothing.
func (t *treeAttempt) withoutNominations(place func() (settled bool, err error)) (settled bool, err error) {
	if len(t.nominatedNodes()) > 0 {
		err = gang.WithoutNominations(t.cluster, t.requestFor(t.leaves).Members, func() error {
			settled, err = place()
			return err
		})
	}
	return settled, err
}
