// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Placer finds nodes for as many members as possible on the cluster in its current, possibly
// hypothetical state. It tries several orders, then searches.
type Placer struct {
	*Request
	bound     *Bound
	tentative *Tentative

	searched int  // judgements of nodes by the search
	gaveUp   bool // the search ended at its limit
	quiet    bool // reasons of failures are not recorded
	declined bool // a plugin rejected a member's node during Reserve
}

// hasEnough reports whether at least the needed number of members is placed.
func (p *Placer) hasEnough() bool { return len(p.tentative.placed) >= p.Need }

// place looks for nodes for as many members as possible. The result of the first pass, in
// upstream's order, is final if it places as many as the group needs. It is also final if the order
// cannot matter: all members then take the same room, so no other order places more. Otherwise
// place retries members that may depend on others, then tries other orders, and finally searches
// for a placement. It ends early at the bound of the attempt.
func (p *Placer) place() error {
	if err := p.passFirst(); err != nil || p.isDone() {
		return err
	}
	if !p.OrderMatters() || len(p.tentative.placed) == 0 && !p.declined {
		return nil // if no member fits alone, no order helps
	}
	if err := p.repeatPass(); err != nil || p.isDone() {
		return err
	}

	for _, order := range []func() []*Member{p.orderBySize, p.orderByFailure} {
		ordered := order()
		p.tentative.Rewind(0)
		if err := p.pass(ordered); err != nil {
			return err
		}
		if err := p.repeatPass(); err != nil || p.isDone() {
			return err
		}
	}

	p.tentative.Rewind(0)
	if p.searchPlacement() {
		return p.repeatPass() // more members than needed may fit
	}
	return nil
}

// isDone reports whether no other order needs to be tried.
func (p *Placer) isDone() bool { return p.hasEnough() || p.bound.shortened }

// passFirst is the pass that records the failures of members. If the last attempt was shortened,
// passFirst reuses the nodes found by it. It ends early at the bound of the attempt.
func (p *Placer) passFirst() error {
	failed := failures{c: p.Cluster}
	for i, m := range p.Members {
		if m.Node != nil {
			continue
		}
		if other := failed.find(m); other != nil {
			m.Failure = other.Failure
			continue
		}
		if p.bound.isOver() {
			p.endFirst(p.Members[i:])
			return nil
		}

		placed, err := p.tryAgain(m)
		if err != nil {
			return err
		}
		if !placed {
			if !p.quiet {
				m.Failure = p.Decider.Diagnose(m.Asked)
			}
			failed.note(m)
		}
	}

	return nil
}

// endFirst records which members were not examined before the bound, and the nodes found so far,
// with which the next attempt begins.
func (p *Placer) endFirst(rest []*Member) {
	p.bound.shortened = true
	for _, m := range rest {
		if m.Node == nil {
			m.Failure = NotReached
		}
	}
	p.bound.reached = map[types.UID]string{}
	for _, m := range p.tentative.placed {
		p.bound.reached[m.Pod.UID] = m.Node.Name
	}
}

// pass tries each unplaced member, in the given order. It ends early at the bound of the attempt.
func (p *Placer) pass(order []*Member) error {
	failed := failures{c: p.Cluster}
	for _, m := range order {
		if m.Node != nil || failed.find(m) != nil {
			continue
		}
		if p.bound.isOver() {
			p.bound.shortened = true
			return nil
		}

		placed, err := p.tryMember(m)
		if err != nil {
			return err
		}
		if !placed {
			failed.note(m)
		}
	}

	return nil
}

// passFits reports whether enough members are placed after one pass over all of them.
func (p *Placer) passFits() bool { return p.pass(p.Members) == nil && p.hasEnough() }

// repeatPass retries the members without a node as long as each round places at least one: a member
// may depend on a member placed later.
func (p *Placer) repeatPass() error {
	for {
		before := len(p.tentative.placed)
		if before == len(p.Members) {
			return nil
		}
		if err := p.pass(p.Members); err != nil || len(p.tentative.placed) == before {
			return err
		}
	}
}

// placeAnyhow places the needed number of members, if possible. It keeps the failures recorded for
// the current cluster.
func (p *Placer) placeAnyhow() bool {
	failures, gaveUp := p.Failures(), p.gaveUp
	p.quiet = true
	defer func() {
		p.SetFailures(failures)
		p.gaveUp, p.quiet = gaveUp, false
	}()
	return p.place() == nil && p.hasEnough()
}

// tryMember decides a member and counts it on its node. It returns false if no node is feasible.
func (p *Placer) tryMember(m *Member) (placed bool, err error) {
	p.bound.addEffort(costOfDecision)
	return p.takeNode(m, p.Decider.Decide(m.Asked))
}

// tryAgain is like tryMember, but reuses the node found by a shortened last attempt if it is still
// feasible, so that this attempt gets further. Members that depend on other pods or on a plugin's
// results are always decided again.
func (p *Placer) tryAgain(m *Member) (placed bool, err error) {
	n := p.Cluster.Node(p.Earlier.Reached[m.Pod.UID])
	class := m.Waiting.Class
	if n == nil || class.HasAffinity() || len(class.Spec.TopologySpreadConstraints)+len(class.Spec.ResourceClaims) > 0 ||
		len(p.Profile.Outside)+len(p.Profile.Extenders) > 0 || !p.Decider.Plain().Fits(m.Asked, n) {
		return p.tryMember(m)
	}
	return p.takeNode(m, decide.Decision{Node: n, Feasible: 1})
}

// takeNode counts a member on the node found for it, if any.
func (p *Placer) takeNode(m *Member, found decide.Decision) (placed bool, err error) {
	if found.Err != nil {
		m.Err = found.Err
		return false, found.Err
	}
	if found.Node == nil {
		return false, nil
	}

	if err := p.tentative.Place(m, found); err != nil {
		if refusal := Refusal(nil); errors.As(err, &refusal) { // the plugin rejects only this node
			p.declined = true
			return false, nil
		}
		m.Err = err
		return false, err
	}
	return true, nil
}

// orderBySize orders members by their largest requested share of any resource of the nodes.
func (p *Placer) orderBySize() []*Member {
	var all cluster.Resources
	for n := range p.eachNode {
		all.Add(&n.Size.Resources)
	}
	return slices.SortedStableFunc(slices.Values(p.Members), func(x, y *Member) int {
		return cmp.Compare(LargestShare(&y.Waiting.Class.Requests, &all), LargestShare(&x.Waiting.Class.Requests, &all))
	})
}

// LargestShare returns the largest requested share of CPU, memory or another resource. It ignores
// other resources of which there are none: a DeviceClass may provide them.
func LargestShare(requested, all *cluster.Resources) float64 {
	largest := max(float64(requested.MilliCPU)/float64(max(all.MilliCPU, 1)), float64(requested.Memory)/float64(max(all.Memory, 1)))
	for name, amount := range requested.Scalars {
		if total := all.Scalars[name]; total > 0 {
			largest = max(largest, float64(amount)/float64(total))
		}
	}
	return largest
}

// orderByFailure orders members so that those without a node after the last pass come first.
func (p *Placer) orderByFailure() []*Member {
	return slices.SortedStableFunc(slices.Values(p.Members), func(x, y *Member) int {
		return rules.FalseFirst(x.Node != nil, y.Node != nil)
	})
}

// failures holds the members that failed at a position of the log, one for equal members: while
// nothing changes, other members that equal them also fail. It distinguishes members because those
// of different sizes may alternate.
type failures struct {
	c        *cluster.Cluster
	position int
	byClass  map[*cluster.PodClass]*Member
	claiming []*Member // members with resource claims, which never share a class
}

func (f *failures) note(m *Member) {
	if position := f.c.Log.Len(); f.position != position || f.byClass == nil {
		*f = failures{f.c, position, map[*cluster.PodClass]*Member{}, nil}
	}
	f.byClass[m.Asked.Class] = m
	if len(m.Asked.Class.Spec.ResourceClaims) > 0 {
		f.claiming = append(f.claiming, m)
	}
}

// find returns a failed member that equals m, or nil. It returns nil for a nominated member, which
// may fit where others do not.
func (f *failures) find(m *Member) *Member {
	if f.position != f.c.Log.Len() || m.Waiting.Nominated != "" {
		return nil
	}
	of := m.Asked.Class
	if found := f.byClass[of]; found != nil || len(of.Spec.ResourceClaims) == 0 {
		return found
	}
	i := slices.IndexFunc(f.claiming, func(other *Member) bool {
		class := other.Asked.Class
		return class.Needs == of.Needs && class.Look == of.Look && len(class.Spec.Volumes)+len(of.Spec.Volumes) == 0 &&
			plugins.NeedEqualDevices(f.c, m.Asked, other.Asked)
	})
	if i < 0 {
		return nil
	}
	return f.claiming[i]
}
