// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Domains places a group within one domain of its topology key: the nodes with the same value of
// that label. Members confined to a domain are decided like pods that select the nodes of the
// domain.
type Domains struct {
	*Request
	bound  *Bound
	placer *Placer

	count   int    // number of domains of the topology key, at least 1; 0 if the group has no topology key
	none    string // message if no node has a domain
	closest string // domain where most members found a node, and where the failures of the other members occurred
	fills   fills
	byName  map[string][]*cluster.Node // built by nodesByDomain
}

// domainResult is a group's placement in one domain.
type domainResult struct {
	domain   string
	places   []Place
	failures []*decide.Failure // by member: the failure to find a node; nil if a node was found
	full     float64           // requested percentage of the domain, including the group; see fills
	score    float64           // set by chooseBest
}

// placeWithin tries the domains of the group's topology key until the effort is exhausted, skipping
// domains that cannot be better than the best so far. It leaves the members counted in the best
// domain.
func (d *Domains) placeWithin() error {
	domains, err := d.listDomains()
	if err != nil {
		return err
	}
	if d.count = max(1, len(domains)); len(domains) == 0 {
		d.none = lackOfDomains + d.TopologyKey
		d.FailForLackOfDomains(d.TopologyKey)
		return nil
	}

	d.Host.GeneratedPlacements(len(domains))
	d.fills = newFills(d.Request)
	d.fills.sortByFullest(domains)
	list := d.listPromising(domains, nil)
	if len(list) == 0 {
		list = []domainBound{{domain: d.findRoomiest(domains)}} // to record the reasons
	}
	d.Host.EvaluatedPlacements(len(domains)-len(list), false)

	fitting, err := d.tryDomains(list)
	if err != nil || len(fitting) == 0 {
		return err
	}
	best, err := d.chooseBest(fitting)
	if err != nil {
		return err
	}
	d.closest = best.domain
	d.confine(best.domain)
	d.SetFailures(best.failures)
	for _, p := range best.places {
		if err := d.placer.tentative.Place(p.Member, p.Decision); err != nil {
			return err
		}
	}
	return nil
}

const lackOfDomains = "no feasible placements found: no node has the label "

// FailForLackOfDomains records, for all members, the absence of a label on all nodes.
func (r *Request) FailForLackOfDomains(key string) {
	failure := &decide.Failure{Nodes: r.Cluster.Len(), Rejection: &plugins.Rejection{Reasons: []string{lackOfDomains + key}}}
	for _, m := range r.Members {
		m.Failure = failure
	}
}

// tryDomains places the members in each domain in turn, and returns the domains where enough of
// them fit. Without such a domain, it records the failures of the domain where most members fit.
func (d *Domains) tryDomains(list []domainBound) (fitting []domainResult, err error) {
	most := -1
	var failures []*decide.Failure
	for b := range inTurn(d.bound, list) {
		if len(fitting) > 0 && d.cannotBeBetter(b.domain, fitting) {
			continue
		}

		d.confine(b.domain)
		if err := d.placeConfined(); err != nil {
			return nil, err
		}
		if placed := len(d.placer.tentative.placed); placed > most {
			most, d.closest, failures = placed, b.domain, d.Failures()
		}
		if d.placer.hasEnough() {
			fitting = append(fitting, d.describePlacement(b.domain))
		}
		d.Host.EvaluatedPlacements(1, d.placer.hasEnough())
		d.placer.tentative.Rewind(0)
	}

	if len(fitting) == 0 {
		d.SetFailures(failures)
	}
	return fitting, nil
}

// chooseBest returns the best domain. Like upstream, the score is the sum of three parts: the
// utilization of the domain including the group, in percent, so that the tightest domain wins; the
// number of the group's pods placed there, in percent of the maximum over all domains; and the
// scores of out-of-tree plugins.
func (d *Domains) chooseBest(fitting []domainResult) (domainResult, error) {
	most := 0
	placements := make([]Placement, len(fitting))
	for i := range fitting {
		r := &fitting[i]
		most = max(most, d.PlacedBefore+len(r.places))
		placements[i] = Placement{Domain: r.domain, Nodes: d.nodesByDomain()[r.domain], Places: r.places}
	}

	outside, err := d.scoreOutside(placements)
	if err != nil {
		return domainResult{}, err
	}
	for i := range fitting {
		r := &fitting[i]
		r.score = r.full + 100*float64(d.PlacedBefore+len(r.places))/float64(most) + outside[i]
	}
	return slices.MaxFunc(fitting, func(x, y domainResult) int {
		return cmp.Or(cmp.Compare(x.score, y.score), cmp.Compare(y.domain, x.domain))
	}), nil
}

// scoreOutside returns the scores of out-of-tree plugins, or zeros if there are none.
func (d *Domains) scoreOutside(placements []Placement) ([]float64, error) {
	if !d.Host.ScoresPlacements() {
		return make([]float64, len(placements)), nil
	}
	return d.Host.ScorePlacements(placements)
}

// cannotBeBetter reports whether the domain cannot beat a domain where all members found a node.
// Among equally good domains, the first by name wins. The result is false if there are out-of-tree
// plugins, because their scores cannot be predicted.
func (d *Domains) cannotBeBetter(domain string, fitting []domainResult) bool {
	if d.Host.ScoresPlacements() {
		return false
	}
	most := d.fills.withAll(domain)
	return slices.ContainsFunc(fitting, func(r domainResult) bool {
		return len(r.places) == len(d.Members) && (r.full > most || r.full == most && r.domain < domain)
	})
}

// describePlacement returns the current placement in the domain.
func (d *Domains) describePlacement(domain string) domainResult {
	placed := d.placer.tentative.placed
	r := domainResult{domain: domain, failures: d.Failures(), full: d.fills.withAll(domain)}
	if len(placed) < len(d.Members) {
		r.full = d.fills.percentWith(domain, d.fills.sumRequests(placed))
	}
	r.places = d.placer.tentative.listPlaces()
	return r
}

// listDomains lists the values of the key found on nodes. If counted members already have nodes,
// the list contains only the value of these nodes, or nothing if the tree of the group confines it
// to nodes with other values.
func (d *Domains) listDomains() ([]string, error) {
	var nodes []*cluster.Node
	for uid := range d.Group.Counted {
		if p := d.Cluster.Pod(uid); p != nil && p.Node != nil {
			nodes = append(nodes, p.Node)
		}
	}
	if pinned, err := PinnedDomain(nodes, d.TopologyKey); err != nil || len(pinned) > 0 {
		return slices.DeleteFunc(pinned, func(domain string) bool { return len(d.nodesByDomain()[domain]) == 0 }), err
	}
	return slices.Sorted(maps.Keys(d.nodesByDomain())), nil
}

// PinnedDomain returns the value of a key shared by nodes, or nothing without nodes. It returns an
// error if a node has no value, or if the values differ.
func PinnedDomain(nodes []*cluster.Node, key string) (pinned []string, err error) {
	var bare []string
	for _, n := range nodes {
		if value, ok := DomainOf(n, key); ok {
			pinned = append(pinned, value)
		} else {
			bare = append(bare, n.Name)
		}
	}
	if len(bare) > 0 { // slices.Min makes the error independent of the order of the nodes
		return nil, fmt.Errorf("a pod of the group is on node %s, which has no label %s", slices.Min(bare), key)
	}
	slices.Sort(pinned)
	if pinned = slices.Compact(pinned); len(pinned) > 1 {
		return nil, fmt.Errorf("pods of the group are in more than one domain of %s: %v", key, pinned)
	}
	return pinned, nil
}

// nodesByDomain returns the nodes of each domain.
func (d *Domains) nodesByDomain() map[string][]*cluster.Node {
	if d.byName == nil {
		d.byName = map[string][]*cluster.Node{}
		for n := range d.eachNode {
			if domain, ok := d.domainOf(n); ok {
				d.byName[domain] = append(d.byName[domain], n)
			}
		}
	}
	return d.byName
}

// listPromising lists the domains where the needed number of members may fit after all pods allowed
// by mayLeave have left, the cheapest first; ties stay in order. If mayLeave is nil, no pod leaves.
func (d *Domains) listPromising(domains []string, mayLeave leaveRule) (list []domainBound) {
	nodes, least := d.nodesByDomain(), d.leastRequest()
	for _, domain := range domains {
		if b, ok := d.boundOn(nodes[domain], least, mayLeave); ok {
			b.domain = domain
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(x, y domainBound) int { return x.compare(&y) })
	return list
}

// findRoomiest returns the domain with room for the most members; among equally roomy domains, the
// first.
func (d *Domains) findRoomiest(domains []string) (roomiest string) {
	nodes, least := d.nodesByDomain(), d.leastRequest()
	most := -1
	for _, domain := range domains {
		if n := least.countIn(freeCapacityOn(nodes[domain], least.name, nil)); n > most {
			roomiest, most = domain, n
		}
	}
	return roomiest
}

// confine limits decisions about members to one domain. It clears the members' failures.
func (d *Domains) confine(domain string) {
	d.bound.addEffort(costOfDomain)
	d.Host.BeginPlacement(domain)
	confined := map[*cluster.PodClass]*cluster.PodClass{} // members of the same class also share a confined class
	for _, m := range d.Members {
		class := confined[m.Waiting.Class]
		if class == nil {
			pod := SelectDomain(m.Pod, d.TopologyKey, domain)
			class = d.Host.Contender(d.Cluster.Pending(pod), pod).Class
			confined[m.Waiting.Class] = class
		}
		asked := *m.Waiting
		asked.Class = class
		m.Asked, m.Failure = &asked, nil
	}
}

// confineToClosest confines members to the domain where most of them found a node. It keeps their
// failures.
func (d *Domains) confineToClosest() {
	failures := d.Failures()
	d.confine(d.closest)
	d.SetFailures(failures)
}

// SelectDomain returns a copy of the pod that selects the nodes of a domain.
func SelectDomain(of *v1.Pod, key, domain string) *v1.Pod {
	pod := *of
	pod.Spec.NodeSelector = map[string]string{}
	maps.Copy(pod.Spec.NodeSelector, of.Spec.NodeSelector)
	own, selects := pod.Spec.NodeSelector[key]
	pod.Spec.NodeSelector[key] = domain
	if selects && own != domain { // no node has both values
		pod.Spec.NodeSelector[key] = ""
	}
	return &pod
}

// PercentFull returns the share of a topology domain requested by the pods counted on its nodes,
// averaged over the resources used for scoring nodes. Only eligible nodes are considered.
func (r *Request) PercentFull(key, domain string, eligible func(*cluster.Node) bool) float64 {
	in := *r
	in.TopologyKey, in.Eligible = key, eligible
	f := newFills(&in)
	if f.byDomain[domain] == nil {
		return 0
	}
	return f.percentWith(domain, make([]float64, len(f.scored)))
}

// placeConfined places members confined to a domain.
func (d *Domains) placeConfined() error {
	defer d.NameDomains(d.TopologyKey)
	return d.placer.place()
}

// NameDomains rewrites the failures of members confined to a domain of key on nodes in other
// domains, since the pods themselves do not exclude these nodes. Members of the same class share a
// failure, which is rewritten only once.
func (r *Request) NameDomains(key string) {
	for _, m := range r.Members {
		if m.Failure == nil || m.Failure.Reasons[plugins.AffinityMismatch] == 0 {
			continue
		}
		reason, spec := "node(s) in other domains of "+key, m.Waiting.Class.Spec
		if len(spec.NodeSelector) > 0 || spec.NodeAffinity != nil {
			reason = plugins.AffinityMismatch + " or in other domains of " + key
		}
		nodes := m.Failure.Reasons[plugins.AffinityMismatch]
		delete(m.Failure.Reasons, plugins.AffinityMismatch)
		m.Failure.Reasons[reason] += nodes
	}
}
