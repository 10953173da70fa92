// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// demand is the numeric form of the pending pods and the available offers.
//
// The packing handles only items, bins and numbers. This type translates pods and offers into them:
// offers distinguishable by pods are of different kinds, the engine determines the kinds suitable
// for a pod, and pods with the same size and kinds become one item.
//
//	200 pods of 3 Deployments, of two sizes, one of them bound to zone a   -> 3 items
//	40 instance types in 3 zones                                           -> 3 kinds, 120 bins
type demand struct {
	world *simulate.World
	// kinds groups the offers: for pods, the offers of a kind differ only in size.
	kinds  []*kind
	kindOf []int // by offer
	offers []Offer
	// rooms and sizes are by resource, in the order of names: CPU, memory, pods, then other
	// requested resources.
	rooms   [][]int64 // by offer: the room for pods, excluding DaemonSet pods
	names   []v1.ResourceName
	items   []*item
	problem *packing.Problem
	// helpless lists the pods that fit no offer, with the reason.
	helpless []Waiting
	// trials has one node of each kind. The nodes are in the cluster only while read is running.
	trials   []*cluster.Node
	free     map[types.UID]*free
	spreads  *spreads
	cautious bool           // pods spread over nodes are limited to one per node
	order    []*cluster.Pod // the pods in the order of attempts
	distinct []bool         // by offer: no cheaper offer is equivalent for pods
	// kept maps pods of groups to existing nodes with room for them. limit is maker.limit.
	kept  map[types.UID]*v1.Node
	limit func(p *packing.Problem, also []int)
	// steady is set to exclude spot, and spotLimited if its markets are limited.
	steady, spotLimited bool
}

// kind is a set of offers that are equivalent for pods, apart from size. largest is the index of
// its largest offer, which represents the kind in evaluations by the engine. daemons is the sum of
// the requests of DaemonSet pods on a node of the kind.
type kind struct {
	labels  map[string]string // labels distinguishable by pods
	largest int
	weight  int32
	daemons cluster.Resources
}

// item is a set of pods that are equivalent for the packing. size is by resource. kinds holds
// indexes of demand.kinds, in the same order for equivalent pods.
//
// Pods are in the order of their turns, and assign places them in that order.
type item struct {
	pods  []*cluster.Pod
	size  []int64
	kinds []int
	apart []string // keys of the pods' groups with at most one pod per node
}

// free is a pod's input to the bound: its size and all offers it may use. It ignores all choices
// made in advance by a plan (a zone, a pool's weight), since a bound must hold for all plans. bins
// holds indexes of offers.
type free struct {
	size  []int64
	bins  []int
	apart []string
}

// Waiting is a pod that stays pending.
type Waiting struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Message   string `json:"message"`
}

// distinguishingKeys returns the label keys by which pods, and the DaemonSets of the world, can
// distinguish nodes.
//
// Fewer keys mean fewer kinds for the engine to evaluate: a catalog has thousands of offers, and
// often only zone and architecture matter to pods. The host name does not count, since it is
// different on each new node.
//
//	a pod with nodeSelector {arch: arm64} and a spread over zones   -> arch, zone
func distinguishingKeys(w *simulate.World, pods []*cluster.Pod) map[string]bool {
	keys := map[string]bool{v1.LabelTopologyZone: true}
	seen := map[*cluster.Spec]bool{}
	for _, p := range pods {
		if g := w.GroupOf(p); g != nil && g.TopologyKey() != "" {
			keys[g.TopologyKey()] = true
		}
		if spec := p.Class.Spec; !seen[spec] {
			seen[spec] = true
			addSelectedKeys(keys, spec.NodeSelector, spec.Affinity())
			for _, s := range spec.TopologySpreadConstraints {
				keys[s.TopologyKey] = true
			}
		}
		for _, list := range [][]cluster.Term{p.Class.RequiredAffinity, p.Class.RequiredAntiAffinity} {
			for _, term := range list {
				keys[term.TopologyKey] = true
			}
		}
	}

	for _, set := range w.DaemonSets() {
		addSelectedKeys(keys, set.Spec.Template.Spec.NodeSelector, set.Spec.Template.Spec.Affinity)
	}
	delete(keys, v1.LabelHostname)
	return keys
}

// addSelectedKeys adds the keys used by a node selector and required node affinity. Preferred
// affinity excludes no node.
func addSelectedKeys(keys map[string]bool, selector map[string]string, a *v1.Affinity) {
	for key := range selector {
		keys[key] = true
	}
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, r := range term.MatchExpressions {
			keys[r.Key] = true
		}
	}
}

// sort sorts the offers into kinds. Offers are of one kind if they agree in all relevant labels, in
// taints, and in the weight of their pool.
func (d *demand) sort(c *Catalog, keys map[string]bool) {
	of := map[string]int{}
	d.kindOf = make([]int, len(c.Offers))
	for i, o := range c.Offers {
		var b strings.Builder
		labels := map[string]string{}
		for key, value := range o.Node.Labels {
			// Volumes may refer to topology labels unused by pods.
			if keys[key] || strings.Contains(key, "topology") {
				labels[key] = value
			}
		}

		for _, key := range slices.Sorted(maps.Keys(labels)) {
			b.WriteString(key + "=" + labels[key] + " ")
		}
		// Templates belong to no pool and have weight 0.
		weight := int32(0)
		if o.pool >= 0 {
			weight = c.Pools[o.pool].Weight
		}

		b.WriteString(strconv.Itoa(int(weight)))
		if len(o.Node.Spec.Taints) > 0 {
			fmt.Fprint(&b, o.Node.Spec.Taints)
		}
		// Kinds are numbered in the order of offers, and therefore of prices.
		at, known := of[b.String()]
		if !known {
			at = len(d.kinds)
			of[b.String()] = at
			d.kinds = append(d.kinds, &kind{labels: labels, largest: i, weight: weight})
		}

		d.kindOf[i] = at
		if larger(o.Node, c.Offers[d.kinds[at].largest].Node) {
			d.kinds[at].largest = i
		}
	}
}

// larger reports whether a node has more CPU or, with the same CPU, more memory.
func larger(a, b *v1.Node) bool {
	return cmp.Or(a.Status.Allocatable.Cpu().Cmp(*b.Status.Allocatable.Cpu()),
		a.Status.Allocatable.Memory().Cmp(*b.Status.Allocatable.Memory())) > 0
}

// measure determines the relevant resources and the offers' room. An offer's room is its
// allocatable amount, minus the requests of the DaemonSet pods on such a node.
func (d *demand) measure(pods []*cluster.Pod) {
	d.names = []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods}
	more := map[v1.ResourceName]bool{}
	for _, p := range pods {
		if p.Class.Requests.EphemeralStorage > 0 {
			more[v1.ResourceEphemeralStorage] = true
		}
		for name := range p.Class.Requests.Scalars {
			more[name] = true
		}
	}
	d.names = append(d.names, slices.Sorted(maps.Keys(more))...)
	// DaemonSets choose nodes by labels and taints. These are the same for all offers of a kind, so
	// one offer suffices.
	for _, k := range d.kinds {
		k.daemons = d.world.DaemonRequests(d.offers[k.largest].Node)
	}
	for i, o := range d.offers {
		room, daemons := cluster.NewResources(o.Node.Status.Allocatable), d.kinds[d.kindOf[i]].daemons
		list := make([]int64, len(d.names))
		for r, name := range d.names {
			// A node too small for its DaemonSets has zero room, not less.
			list[r] = max(room.Amount(name)-daemons.Amount(name), 0)
		}
		d.rooms = append(d.rooms, list)
	}
	// Of several offers that are equivalent for pods, the bound needs only the cheapest, because it
	// ignores limits.
	same := map[string]bool{}
	for i := range d.offers {
		key := strconv.AppendInt(nil, int64(d.kindOf[i]), 10)
		for _, room := range d.rooms[i] {
			key = strconv.AppendInt(append(key, ' '), room, 10)
		}
		d.distinct = append(d.distinct, !same[string(key)]) // the cheaper offer is first
		same[string(key)] = true
	}
}

// sizeOf returns a pod's size, in the order of names. Its pod slot is one of the resources.
func (d *demand) sizeOf(p *cluster.Pod) []int64 {
	list := make([]int64, len(d.names))
	for r, name := range d.names {
		if list[r] = p.Class.Requests.Amount(name); name == v1.ResourcePods {
			list[r] = 1
		}
	}
	return list
}

// group groups the pods into items.
//
// The steps build on each other: first the suitable kinds of each pod, then the domain of each pod
// group, then the zone of each spreading pod. Each step only narrows a pod's kinds, and the packing
// chooses among the remaining ones.
func (d *demand) group(pods []*cluster.Pod) {
	d.spreads = newSpreads(d.world, pods, isTrial)
	pods = slices.SortedStableFunc(slices.Values(pods), func(a, b *cluster.Pod) int {
		return cmp.Compare(turnOf(a.Class), turnOf(b.Class))
	})
	d.order = pods
	// Evaluate all pods before choosing any zone, since choosing counts unplaced pods.
	takes, taken := d.takers(), make([][]int, len(pods))
	for i, p := range pods {
		why := ""
		if taken[i], why = takes(p); why != "" {
			d.helpless = append(d.helpless, Waiting{p.Namespace(), p.Name(), why})
		}
	}

	d.kept = map[types.UID]*v1.Node{}
	knownFree, anywhere := map[string]*free{}, slices.Clone(taken)
	d.free = map[types.UID]*free{}
	if d.steady {
		for i := range taken {
			taken[i] = slices.DeleteFunc(slices.Clone(taken[i]), func(k int) bool { return isSpot(d.kinds[k].labels) })
		}
	}
	// Confine groups before zones are chosen: a group must be in one domain, even at the expense of
	// an even spread.
	d.confine(taken)
	zones := &zones{d: d, alike: map[likeness]int{}, given: map[string]string{}}
	// Choose zones in the order of the pods' turns; each choice counts the earlier ones.
	for i, p := range pods {
		kinds := taken[i]
		if len(kinds) == 0 || d.kept[p.UID()] != nil {
			continue
		}
		size, apart := d.sizeOf(p), apartOf(p.Class)
		own := apart
		// Later rounds have few pods, which the engine rejected at the places chosen by the
		// packing, so keeping them apart costs little.
		if d.cautious {
			own = append(own, d.spreads.apartOf(p.Class)...)
		}
		d.free[p.UID()] = d.freed(knownFree, size, anywhere[i], apart)
		d.items = append(d.items, &item{
			pods: []*cluster.Pod{p}, size: size, kinds: zones.choose(p, d.heaviest(kinds)), apart: own,
		})
	}

	d.items = merged(d.items)
	d.problem = d.numbers(d.items)
}

// merged combines the items of pods that are equivalent for the packing. Fewer items make the
// packing's program smaller. Items keep the order of their first pod.
func merged(items []*item) (list []*item) {
	known := map[string]*item{}
	for _, it := range items {
		key := fmt.Sprint(it.size, it.kinds, it.apart)
		if same := known[key]; same != nil {
			same.pods = append(same.pods, it.pods...)
			continue
		}
		known[key] = it
		list = append(list, it)
	}
	return list
}

// freed returns a pod's input to the bound, shared by equivalent pods: the bound's program has one
// item for each input, so there must be few inputs.
func (d *demand) freed(known map[string]*free, size []int64, kinds []int, apart []string) *free {
	key := fmt.Sprint(size, kinds, apart)
	f := known[key]
	if f == nil {
		f = &free{size: size, apart: apart}
		for i, of := range d.kindOf {
			if slices.Contains(kinds, of) && d.distinct[i] {
				f.bins = append(f.bins, i)
			}
		}
		known[key] = f
	}
	return f
}

// heaviest returns the kinds of the pools with the greatest weight. Karpenter uses these pools
// first. A NodePool without a weight has the weight 0.
func (d *demand) heaviest(kinds []int) []int {
	most := int32(-1)
	for _, k := range kinds {
		most = max(most, d.kinds[k].weight)
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k int) bool { return d.kinds[k].weight != most })
}

// numbers builds the packing's problem, without limits.
//
// If several offers are equivalent for pods, an item's bins contain only the cheapest of them. An
// offer limited in number, or of a limited spot market, does not represent any other offer.
func (d *demand) numbers(items []*item) *packing.Problem {
	p := &packing.Problem{}
	offersOfKind := make([][]int, len(d.kinds))
	same := map[string]bool{}
	for i, o := range d.offers {
		p.Bins = append(p.Bins, packing.Bin{Room: d.rooms[i], Price: o.Price, Most: o.Most})
		key := fmt.Sprint(d.kindOf[i], d.rooms[i], o.pool, o.Most > 0) // the cheaper offer is first
		if o.Most > 0 || d.spotLimited && isSpot(o.Node.Labels) || !same[key] {
			same[key] = true
			offersOfKind[d.kindOf[i]] = append(offersOfKind[d.kindOf[i]], i)
		}
	}
	groups := map[string]int{}
	for at, it := range items {
		one := packing.Item{Size: it.size, Count: len(it.pods)}
		// A kind has offers of several sizes: the cheapest offer of each size goes into the item's
		// bins.
		for _, k := range it.kinds {
			one.Bins = append(one.Bins, offersOfKind[k]...)
		}
		slices.Sort(one.Bins)
		p.Items = append(p.Items, one)
		for _, key := range it.apart {
			p.Separate(at, key, groups)
		}
	}
	return p
}
