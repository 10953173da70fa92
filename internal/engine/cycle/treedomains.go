package cycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// treePlacement is where the pods below a composite would go in one domain.
type treePlacement struct {
	domain string
	places map[*groupAttempt][]gang.Place
	pods   int
	full   float64 // how much of the domain is requested then, in percent
	// failures are why pods found no node there, in their order.
	failures map[*groupAttempt][]*decide.Failure
}

// placeInDomains places what is below a composite in one domain of its topology key: in the one
// with the best score, which is upstream's: how full the domain would be, and how many pods of the
// composite would be there.
func (t *treeAttempt) placeInDomains(c *groups.Composite, first map[*groups.Group]bool) (settled bool, err error) {
	t.inDomain = true
	key := c.TopologyKey()
	domains, err := t.listDomains(c, key)
	if err != nil {
		return false, err
	}
	if len(domains) == 0 {
		t.failing[c] = 0
		for _, g := range c.Leaves() {
			if a := t.of[g]; a != nil {
				a.attempt.FailForLackOfDomains(key)
			}
		}
		return false, nil
	}

	before := t.countBefore(c)
	var fitting []treePlacement
	most, closest := -1, map[*groupAttempt][]*decide.Failure{}
	for i, domain := range domains {
		if i > 0 && t.isOver() {
			t.shortened = true
			break
		}
		settled, err := t.placeConfined(c, confine{key, domain}, first)
		if err != nil {
			return false, err
		}
		if settled {
			p := t.describePlacement(c, confine{key, domain})
			p.pods += before
			fitting = append(fitting, p)
			t.rewind(c)
		} else if t.failing[c] > most {
			most = t.failing[c]
			closest = t.listFailures(c, key)
		}
	}

	if len(fitting) == 0 {
		t.failing[c] = most
		for a, failures := range closest {
			a.attempt.SetFailures(failures)
		}
		return false, nil
	}
	delete(t.failing, c)
	return t.placeAs(c, key, bestOf(fitting))
}

// isOver tells whether the attempt has to end.
func (t *treeAttempt) isOver() bool {
	return !t.limits.Unhurried && len(t.leaves) > 0 && t.leaves[0].profile.Decider.Work() >= t.until
}

// placeConfined places what is below a composite in a domain.
func (t *treeAttempt) placeConfined(c *groups.Composite, to confine, first map[*groups.Group]bool) (settled bool, err error) {
	t.within = append(t.within, to)
	defer func() { t.within = t.within[:len(t.within)-1] }()
	t.renew(c)
	return t.placeChildren(c, first)
}

// placeAs places the pods below a composite as they were placed in the domain before.
func (t *treeAttempt) placeAs(c *groups.Composite, key string, p treePlacement) (settled bool, err error) {
	t.within = append(t.within, confine{key, p.domain})
	defer func() { t.within = t.within[:len(t.within)-1] }()
	t.renew(c)
	for _, g := range c.Leaves() {
		a := t.of[g]
		if a == nil {
			continue
		}
		a.attempt.SetFailures(p.failures[a])
		if len(p.places[a]) == 0 {
			continue
		}
		if !a.attempt.PlaceAs(&gang.RoomPlan{Places: p.places[a]}) {
			return false, fmt.Errorf("pods of group %q do not fit where they were found to", g.Name.Name)
		}
	}
	return true, nil
}

// listDomains lists the values of a key that there are within the domains above, the first one
// changing with each attempt that was ended early. If pods below the composite have nodes already,
// it is only the value of those.
func (t *treeAttempt) listDomains(c *groups.Composite, key string) ([]string, error) {
	pinned, bare := map[string]bool{}, []string(nil)
	for _, p := range t.podGroups.units.OnNodes(c.Leaves()...) {
		if p.Terminating {
			continue
		}
		if domain, ok := gang.DomainOf(p.Node, key); ok {
			pinned[domain] = true
		} else {
			bare = append(bare, p.Node.Name)
		}
	}
	switch {
	case len(bare) > 0:
		return nil, fmt.Errorf("a pod of the group is on node %s, which has no label %s", slices.Min(bare), key)
	case len(pinned) > 1:
		return nil, fmt.Errorf("pods of the group are in more than one domain of %s: %v", key, slices.Sorted(maps.Keys(pinned)))
	case len(pinned) == 1:
		return slices.Sorted(maps.Keys(pinned)), nil
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
	list := slices.Sorted(maps.Keys(all))
	if from := t.root.Shortened * 7; len(list) > 0 {
		list = append(slices.Clone(list[from%len(list):]), list[:from%len(list)]...)
	}
	return list, nil
}

// countBefore counts the pods below a composite that had a node before.
func (t *treeAttempt) countBefore(c *groups.Composite) (count int) {
	for _, g := range c.Leaves() {
		placed, _ := t.podGroups.progress.countPlaced(g)
		count += placed
	}
	return count
}

// describePlacement describes where the pods below a composite count now.
func (t *treeAttempt) describePlacement(c *groups.Composite, in confine) treePlacement {
	p := treePlacement{domain: in.domain, places: map[*groupAttempt][]gang.Place{}, failures: t.listFailures(c, in.key)}
	for _, g := range c.Leaves() {
		a := t.of[g]
		if a == nil {
			continue
		}
		if places := a.attempt.CurrentPlaces(); len(places) > 0 {
			p.places[a] = places
			p.pods += len(places)
		}
	}
	p.full = t.leaves[0].attempt.PercentFull(in.key, in.domain, func(n *cluster.Node) bool { return isWithin(n, t.within) })
	return p
}

// bestOf returns the placement with the best score, of equal ones the first by name.
func bestOf(list []treePlacement) treePlacement {
	most := 1
	for i := range list {
		most = max(most, list[i].pods)
	}
	score := func(p *treePlacement) float64 { return p.full + 100*float64(p.pods)/float64(most) }
	return slices.MaxFunc(list, func(x, y treePlacement) int {
		return cmp.Or(cmp.Compare(score(&x), score(&y)), cmp.Compare(y.domain, x.domain))
	})
}

// listFailures returns why the pods below a composite found no node in a domain of a key.
func (t *treeAttempt) listFailures(c *groups.Composite, key string) map[*groupAttempt][]*decide.Failure {
	all := map[*groupAttempt][]*decide.Failure{}
	for _, g := range c.Leaves() {
		if a := t.of[g]; a != nil {
			a.attempt.NameDomains(key)
			all[a] = a.attempt.Failures()
		}
	}
	return all
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

// placeChildren places the children of a composite one after the other.
func (t *treeAttempt) placeChildren(c *groups.Composite, first map[*groups.Group]bool) (settled bool, err error) {
	count, least := 0, t.podGroups.progress.leastGroups(c)
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

	// Of a composite that lacks children none stays placed: their room is for others of the tree.
	if count >= least {
		delete(t.failing, c)
		return true, nil
	}
	t.failing[c] = count
	t.rewind(c)
	return false, nil
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
