package cycle

import (
	"fmt"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// treeAttempt decides the groups of a tree of composites in one step: one group after the other, as
// upstream goes through the tree, each by an attempt of its own that sees what those before it
// have placed. A composite of which too few children are settled gives up what was placed below it.
// If the root has enough, what is still placed then is started, in one step; otherwise nothing is.
type treeAttempt struct {
	*attempts
	root   *groups.Composite
	leaves []*groupAttempt // groups with pending pods, in upstream's order
	of     map[*groups.Group]*groupAttempt

	until     int       // of the decider's work: where the attempt ends
	shortened bool      // it did
	within    []confine // the domains of the composites that are being placed
	// failing are the composites that were given up in the last pass, and how many of their
	// children were settled.
	failing  map[*groups.Composite]int
	inDomain bool // a composite has a topology constraint
	placed   bool // some group was placed, even if it was given up later
}

// confine limits pods to the nodes of one domain.
type confine struct{ key, domain string }

// scheduleTree decides the pending pods of a tree, one of which was popped from the queue.
func (as *attempts) scheduleTree(root *groups.Composite, popped *queue.Item) {
	tree := root.Leaves()
	items := []*queue.Item{popped}
	for _, g := range tree {
		for _, uid := range as.listQueued(g) {
			if item := as.queue.Take(uid); item != nil {
				items = append(items, item)
			}
		}
	}
	if as.podGroups.isIncomplete(as.groupOf(popped)) {
		for _, item := range items {
			as.queue.Failed(item, as.now)
		}
		return
	}

	slices.SortFunc(items, compareMembers)
	t := as.newTree(root, items)
	defer t.endGroups()
	defer t.recoverPanic()
	profile := popped.Pod.Spec.SchedulerName
	if discord := as.findDiscord(tree, items); discord != nil {
		t.failAll(discord)
		as.observer().AttemptedGroup(profile, Errored, 0)
		return
	}
	for _, a := range t.leaves {
		a.beginGroup()
	}

	began := as.clock()
	result := t.settleTree()
	as.observer().AttemptedGroup(profile, result, as.clock().Sub(began))
}

// newTree returns an attempt for pending pods of a tree, given in the order in which those of each
// group are decided.
func (as *attempts) newTree(root *groups.Composite, items []*queue.Item) *treeAttempt {
	t := &treeAttempt{attempts: as, root: root, of: map[*groups.Group]*groupAttempt{}}
	byGroup := map[*groups.Group][]*queue.Item{}
	for _, item := range items {
		byGroup[as.groupOf(item)] = append(byGroup[as.groupOf(item)], item)
	}

	tree := root.Leaves()
	limit := as.limits.Work << min(root.Shortened, gang.MostDoublings)
	if p := as.profiles.byName[items[0].Pod.Spec.SchedulerName]; p != nil {
		t.until = p.Decider.Work() + limit
	}
	for _, g := range tree {
		if list := byGroup[g]; len(list) > 0 {
			a := as.newGroup(g, list, t)
			t.leaves, t.of[g] = append(t.leaves, a), a
		}
	}
	for _, item := range items {
		item.Together = len(items)
	}
	return t
}

// limit gives the attempt for a group what is left for the tree.
func (t *treeAttempt) limit(r *gang.Request) {
	r.Limits.Work = max(1, t.until-r.Decider.Work())
	r.Limits.Search /= max(1, len(t.of))
	r.Earlier = gang.Memory{}
	if len(t.within) > 0 {
		within := slices.Clone(t.within)
		r.Eligible = func(n *cluster.Node) bool { return isWithin(n, within) }
	}
}

func isWithin(n *cluster.Node, all []confine) bool {
	for _, c := range all {
		if domain, ok := gang.DomainOf(n, c.key); !ok || domain != c.domain {
			return false
		}
	}
	return true
}

// settleTree decides the pods, and starts their placements or returns them to the queue.
func (t *treeAttempt) settleTree() Result {
	began := t.clock()
	settled, err := t.placeInSomeOrder()
	retry := err == nil && !settled && t.mayHelpToRepeat()

	took := t.clock().Sub(began)
	t.observer().Decided(took)
	t.observer().DecidedGroup(took)
	switch {
	case err != nil:
		t.failAll(err)
		return Errored
	case settled:
		t.startPlacements()
		return Scheduled
	}
	t.rejectAll(retry)
	return Unschedulable
}

// placeInSomeOrder places the tree in upstream's order. If that does not suffice, the groups that
// failed come first. It tells whether some pods are placed, and these are enough.
func (t *treeAttempt) placeInSomeOrder() (settled bool, err error) {
	if settled, err = t.placeTree(nil); settled || err != nil {
		return settled, err
	}
	if !t.placed || t.shortened {
		return false, nil
	}
	failed := map[*groups.Group]bool{}
	for _, a := range t.leaves {
		failed[a.group] = !a.attempt.HasEnough() && slices.ContainsFunc(a.members, func(m *member) bool { return m.asked.Failure != nil })
	}
	return t.placeTree(failed)
}

// placeTree places the tree anew. Of the children of a composite those come first that are, or
// have below them, one of first.
func (t *treeAttempt) placeTree(first map[*groups.Group]bool) (settled bool, err error) {
	t.failing = map[*groups.Composite]int{}
	t.renew(t.root)
	settled, err = t.place(groups.Child{Composite: t.root}, first)
	if err != nil || !settled || !t.anyPlaced() {
		t.rewind(t.root)
		return false, err
	}
	return true, nil
}

// renew begins the attempts for the groups below a composite anew.
func (t *treeAttempt) renew(c *groups.Composite) {
	for _, g := range c.Leaves() {
		if a := t.of[g]; a != nil {
			a.renew()
		}
	}
}

// rewind takes what was placed below a composite off its nodes.
func (t *treeAttempt) rewind(c *groups.Composite) {
	leaves := c.Leaves()
	for _, g := range slices.Backward(leaves) {
		if a := t.of[g]; a != nil {
			a.attempt.Rewind()
		}
	}
}

func (t *treeAttempt) anyPlaced() bool {
	return slices.ContainsFunc(t.leaves, func(a *groupAttempt) bool { return len(a.attempt.Placed()) > 0 })
}

// place places what is below a child. It tells whether it is settled then: what was placed
// otherwise is taken back.
func (t *treeAttempt) place(of groups.Child, first map[*groups.Group]bool) (settled bool, err error) {
	switch {
	case of.Group != nil:
		return t.placeGroup(of)
	case of.Composite.TopologyKey() != "":
		return t.placeInDomains(of.Composite, first)
	}
	return t.placeChildren(of.Composite, first)
}

// placeGroup places one group. One that has what it asks for is settled, wherever the rest of its
// pods may go.
func (t *treeAttempt) placeGroup(of groups.Child) (settled bool, err error) {
	a := t.of[of.Group]
	if a == nil {
		return t.podGroups.isSettled(of), nil
	}
	before := t.podGroups.isSettled(of)
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
	a.attempt.Rewind()
	return before, nil
}

// placeChildren places the children of a composite one after the other.
func (t *treeAttempt) placeChildren(c *groups.Composite, first map[*groups.Group]bool) (settled bool, err error) {
	count, least := 0, t.podGroups.leastGroups(c)
	children := c.Children()
	slices.SortStableFunc(children, func(a, b groups.Child) int {
		return boolToInt(hasAny(b, first)) - boolToInt(hasAny(a, first))
	})
	for _, child := range children {
		settled, err := t.place(child, first)
		if err != nil {
			return false, err
		}
		if settled {
			count++
		}
	}
	if count >= least {
		delete(t.failing, c)
		return true, nil
	}
	t.failing[c] = count
	t.rewind(c)
	return false, nil
}

func boolToInt(is bool) int {
	if is {
		return 1
	}
	return 0
}

// hasAny tells whether a child is one of some groups, or has one of them below it.
func hasAny(of groups.Child, some map[*groups.Group]bool) bool {
	if of.Group != nil {
		return some[of.Group]
	}
	return len(some) > 0 && slices.ContainsFunc(of.Composite.Leaves(), func(g *groups.Group) bool { return some[g] })
}

// mayHelpToRepeat tells whether an attempt that placed nothing may end otherwise although nothing
// has changed: it was ended early, or groups that fit by themselves would be enough, but are in
// each other's way. It leaves noted why groups do not fit by themselves.
func (t *treeAttempt) mayHelpToRepeat() bool {
	if t.inDomain || t.shortened || !t.placed {
		return t.inDomain || t.shortened
	}

	alone := map[*groups.Group]bool{}
	for _, a := range t.leaves {
		a.renew()
		if settled, err := t.placeGroup(groups.Child{Group: a.group}); err == nil && settled {
			alone[a.group] = len(a.attempt.Placed()) > 0
		}
		a.attempt.Rewind()
	}
	return t.shortened || t.anyHopeful(groups.Child{Composite: t.root}, alone)
}

// anyHopeful tells whether a group that fits by itself would be placed if all those were.
func (t *treeAttempt) anyHopeful(of groups.Child, alone map[*groups.Group]bool) bool {
	var holds func(of groups.Child) bool
	holds = func(of groups.Child) bool {
		if of.Group != nil {
			return alone[of.Group] || t.podGroups.isSettled(of)
		}
		return t.podGroups.holdsFor(of.Composite, holds)
	}
	if !holds(of) {
		return false
	}
	if of.Group != nil {
		return alone[of.Group]
	}
	return slices.ContainsFunc(of.Composite.Children(), func(child groups.Child) bool { return t.anyHopeful(child, alone) })
}

// renew begins the attempt anew: nothing is known of the members, and they are confined to the
// domains that the tree is in.
func (a *groupAttempt) renew() {
	confined := map[*cluster.PodClass]*cluster.PodClass{}
	for _, m := range a.members {
		asked := m.asked
		asked.Pod, asked.Failure, asked.Err, asked.Rejectors = m.item.Pod, nil, nil, nil
		asked.Asked = a.nominations.asContender(m.Waiting, m.item.Pod)
		if len(a.tree.within) == 0 {
			continue
		}
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

// endGroups tells out-of-tree plugins that the attempt is over.
func (t *treeAttempt) endGroups() {
	for _, a := range t.leaves {
		a.endGroup()
	}
}

// recoverPanic ends the attempt of a tree whose decision panicked, deferred by scheduleTree.
func (t *treeAttempt) recoverPanic() {
	value := recover()
	if value == nil {
		return
	}
	for _, a := range t.leaves {
		a.takeOff()
	}
	t.reportPanic(t.leaves[0].members[0].placement, value)
	for _, a := range t.leaves {
		a.endAfterPanic(value)
	}
}

// lacksOwn tells whether a group has found too few nodes for its own pods.
func (a *groupAttempt) lacksOwn() bool {
	v := a.attempt.Verdict()
	return v.Fit < v.Needed || v.NoDomain != ""
}

// wordsOf say why groups that would fit are not placed: what a composite lacks.
func (t *treeAttempt) wordsOf(c *groups.Composite) string {
	children := c.Children()
	return fmt.Sprintf("composite pod group %q is unschedulable: %d of %d groups fit, %s needed at once",
		c.Name.Name, t.failing[c], len(children), areNeeded(c.MinGroupCount()))
}

func areNeeded(count int) string {
	if count == 1 {
		return "1 is"
	}
	return fmt.Sprintf("%d are", count)
}
