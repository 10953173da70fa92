// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
)

// band is the set of pending pods of a pod group that must share one domain, such as one rack. key
// is the topology key of the group's constraint.
type band struct {
	group *groups.Group
	key   string
	fixed string // domain of a group with running pods
	pods  []int  // positions in demand.order
}

// bands lists the groups with a topology constraint, in the order of their first pods' attempts.
func (d *demand) bands() (list []*band) {
	of := map[*groups.Group]*band{}
	for i, p := range d.order {
		g := d.world.GroupOf(p)
		if g == nil || g.TopologyKey() == "" {
			continue
		}
		if of[g] == nil {
			of[g] = &band{group: g, key: g.TopologyKey()}
			list = append(list, of[g])
		}
		of[g].pods = append(of[g].pods, i)
	}
	if len(list) == 0 {
		return nil
	}

	for _, n := range d.world.Cluster().Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			if b := of[d.world.GroupOf(p)]; b != nil && !p.Terminating {
				// Running pods of the group bind the rest to their domain.
				b.fixed = n.Get(b.key)
			}
		}
	}
	return list
}

// confine restricts the pods of each group to the kinds of nodes of one domain: the cheapest domain
// with room for all of them. It uses room on existing nodes of the domain first.
//
// taken holds the suitable kinds of each pod, in order, and is modified. Domains are chosen for one
// group after the other: an earlier group gets the cheapest domain, even if a later group needs it
// more. If no domain takes a whole group, its pods are helpless, because a part of the group would
// not be scheduled.
func (d *demand) confine(taken [][]int) {
	spent := make([]int, len(d.offers)) // by offer: nodes of limited offers used by earlier groups
	for _, b := range d.bands() {
		var best *housing
		for _, domain := range d.domainsOf(b, taken) {
			// Among domains of equal cost, take the first by name.
			if h := d.house(b, domain, taken, spent); h != nil && (best == nil || h.cost < best.cost-tiny) {
				best = h
			}
		}

		if best == nil {
			why := fmt.Sprintf("no domain of %s takes all %d pods of PodGroup %q, whatever is bought",
				b.key, len(b.pods), b.group.Name.Name)
			for _, i := range b.pods {
				if len(taken[i]) > 0 {
					d.helpless = append(d.helpless, Waiting{d.order[i].Namespace(), d.order[i].Name(), why})
				}
				taken[i] = nil
			}
			continue
		}
		for at, i := range b.pods {
			taken[i] = best.kinds[at]
			if node := best.nodes[at]; node != nil {
				d.kept[d.order[i].UID()] = node.Object()
			}
		}
		// The nodes are not bought yet, but nodes of limited offers must be reserved for this
		// group.
		for _, bin := range best.bins {
			spent[bin.Bin]++
		}
	}
}

// tiny is the tolerance for comparing prices, which are sums of floating-point numbers.
const tiny = 1e-9

// domainsOf lists the possible domains for the pods of a group, sorted. If pods of the group are
// already running, it returns only their domain.
func (d *demand) domainsOf(b *band, taken [][]int) (list []string) {
	if b.fixed != "" {
		return []string{b.fixed}
	}
	for _, i := range b.pods {
		for _, k := range taken[i] {
			if domain := d.kinds[k].labels[b.key]; domain != "" {
				list = append(list, domain)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// housing is a possible placement of a group's pods in a domain.
//
// It reserves nothing until confine chooses it.
type housing struct {
	kinds [][]int         // by pod of the band: the kinds for pods that need a new node
	nodes []*cluster.Node // by pod of the band: the existing node with room
	bins  []packing.Bought
	cost  float64
}

// house finds room for all pods of a group in a domain, or returns nil. spent holds, by offer, the
// number of nodes used by earlier groups.
func (d *demand) house(b *band, domain string, taken [][]int, spent []int) *housing {
	// Fill existing nodes first: they cost nothing.
	h := &housing{kinds: make([][]int, len(b.pods)), nodes: make([]*cluster.Node, len(b.pods))}
	rooms := d.roomsIn(b.key, domain)
	rejected := map[*cluster.PodClass][]string{}
	var items []*item
	for at, i := range b.pods {
		p := d.order[i]
		size := d.sizeOf(p)
		if h.nodes[at] = d.roomFor(p, size, rooms, rejected); h.nodes[at] != nil {
			continue
		}
		for _, k := range d.heaviest(taken[i]) {
			if d.kinds[k].labels[b.key] == domain {
				h.kinds[at] = append(h.kinds[at], k)
			}
		}
		// A single pod without a place rules out the domain for the whole group.
		if len(h.kinds[at]) == 0 {
			return nil
		}
		// The remaining pods need new nodes. A quick packing (24 rounds) estimates the price; the
		// plan later packs all items together.
		items = append(items, &item{pods: []*cluster.Pod{p}, size: size, kinds: h.kinds[at], apart: apartOf(p.Class)})
	}
	if len(items) == 0 {
		return h
	}

	problem := d.numbers(merged(items))
	d.limit(problem, spent)
	solution := packing.Solve(problem, packing.Options{Rounds: 24})
	// The limits of the pools do not allow all of them.
	if slices.Max(solution.Left) > 0 {
		return nil
	}
	h.bins, h.cost = solution.Bins, solution.Cost
	return h
}

// room is the free room of a node. free is by resource, in the order of demand.names, and shrinks
// with each pod assigned to the node.
type room struct {
	node *cluster.Node
	free []int64
}

// roomsIn lists the nodes of a domain, except trial nodes, with their current room. The room is not
// shared between groups, so two groups may count on the same room; the engine corrects that.
func (d *demand) roomsIn(key, domain string) (list []*room) {
	for _, n := range d.world.Cluster().Nodes {
		if n == nil || isTrial(n.Name) || n.Get(key) != domain {
			continue
		}
		r := &room{node: n, free: make([]int64, len(d.names))}
		for i, name := range d.names {
			r.free[i] = n.Size.Amount(name) - n.Requested.Amount(name)
			if name == v1.ResourcePods {
				r.free[i] = n.Size.Amount(name) - int64(len(n.Pods))
			}
		}
		list = append(list, r)
	}
	return list
}

// roomFor takes the pod's room from the first node with enough room and no rejection by a plugin,
// and returns that node or nil. Pods that repel each other by node are not put on existing nodes,
// because the pods there are not considered here. rejected caches the plugins' rejections by class.
func (d *demand) roomFor(p *cluster.Pod, size []int64, rooms []*room, rejected map[*cluster.PodClass][]string) *cluster.Node {
	profile := d.world.Profile(p.Class.Spec.SchedulerName)
	if len(rooms) == 0 || profile == nil || len(apartOf(p.Class)) > 0 {
		return nil
	}

	why := rejected[p.Class]
	if why == nil {
		nodes := make([]*cluster.Node, len(rooms))
		for i, r := range rooms {
			nodes[i] = r.node
		}
		// One evaluation covers all nodes, for all pods of the class.
		why = decide.NewPlain(d.world.Cluster(), profile).Rejections(p, nodes)
		rejected[p.Class] = why
	}

	for i, r := range rooms {
		if why[i] == "" && packing.Holds(r.free, size) {
			for k := range size {
				r.free[k] -= size[k]
			}
			return r.node
		}
	}
	return nil
}
