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

// demand is what is pending, and what can be bought for it, as numbers.
//
// To the packing there are only items, bins and numbers. This is where pods become that: offers
// that pods can tell apart are of different kinds, the engine says which kinds take a pod, and pods
// with the same size and kinds become one item.
//
//	200 pods of 3 Deployments, of two sizes, one of them bound to zone a   -> 3 items
//	40 instance types in 3 zones                                           -> 3 kinds, 120 bins
type demand struct {
	world *simulate.World
	// kinds are the offers that pods can tell apart by anything but their size, an offer of each
	// with the most room.
	kinds  []*kind
	kindOf []int // by offer
	offers []Offer
	// rooms and sizes are by resource, in the order of names: CPU, memory, pods, then what else
	// pods request.
	rooms   [][]int64 // by offer: what is left for pods beside those of DaemonSets
	names   []v1.ResourceName
	items   []*item
	problem *packing.Problem
	// helpless are the pods that no offer can take, and why.
	helpless []Waiting
	// trials are by kind, and are in the cluster only while read is at work.
	trials   []*cluster.Node // one of each kind, in the cluster for a moment
	free     map[types.UID]*free
	spreads  *spreads
	cautious bool           // pods that spread over nodes are kept apart by the packing, too
	order    []*cluster.Pod // the pods in the order in which they are to be tried
	distinct []bool         // by offer: no cheaper one is the same to pods
	// kept are the nodes that have room for pods of groups, and limit tells a problem how many bins
	// there are beside those bought already and some more.
	kept  map[types.UID]*v1.Node
	limit func(p *packing.Problem, also []int)
	// steady is set if no spot is to be bought.
	steady bool
}

// largest is the offer that stands for all of them when the engine is asked: what takes a pod at
// all but for its size is the same for all. daemons is what DaemonSets request on it.
type kind struct {
	labels  map[string]string // those that pods can tell
	largest int
	weight  int32
	daemons cluster.Resources
}

// item is a number of pods that are alike to the packing. size is by resource, kinds are indexes in
// demand.kinds, sorted or not, but the same for alike pods.
//
// Pods are in the order of their turns, which assign relies on: the first of them are placed first.
type item struct {
	pods  []*cluster.Pod
	size  []int64
	kinds []int
	apart []string // keys of the groups of which a node holds few
}

// free is what a pod is to the bound: its size and all offers into which it may go. It leaves out
// everything that a plan chooses beforehand (a zone, a pool's weight), since a bound must hold for
// all plans. bins are indexes of offers.
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

// told returns the keys of the labels that pods, and the DaemonSets of the world, can tell nodes
// apart by.
//
// The fewer labels count, the fewer kinds the engine is asked about: a catalog has thousands of
// offers, and pods often tell them apart by zone and architecture alone. The host name does not
// count, since each new node has its own.
//
//	a pod with nodeSelector {arch: arm64} and a spread over zones   -> arch, zone
func told(w *simulate.World, pods []*cluster.Pod) map[string]bool {
	keys := map[string]bool{v1.LabelTopologyZone: true}
	seen := map[*cluster.Spec]bool{}
	for _, p := range pods {
		if g := w.GroupOf(p); g != nil && g.TopologyKey() != "" {
			keys[g.TopologyKey()] = true
		}
		if spec := p.Class.Spec; !seen[spec] {
			seen[spec] = true
			tell(keys, spec.NodeSelector, spec.Affinity())
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
		tell(keys, set.Spec.Template.Spec.NodeSelector, set.Spec.Template.Spec.Affinity)
	}
	delete(keys, v1.LabelHostname)
	return keys
}

// tell adds the keys that a node selector and required node affinity look at. Preferred affinity
// keeps no pod off a node.
func tell(keys map[string]bool, selector map[string]string, a *v1.Affinity) {
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

// sort sorts the offers into kinds. Offers are of one kind if they agree in all labels that count,
// in taints, and in the weight of their pool.
func (d *demand) sort(c *Catalog, keys map[string]bool) {
	of := map[string]int{}
	d.kindOf = make([]int, len(c.Offers))
	for i, o := range c.Offers {
		var b strings.Builder
		labels := map[string]string{}
		for key, value := range o.Node.Labels {
			// Volumes may look at topology labels that no pod names.
			if keys[key] || strings.Contains(key, "topology") {
				labels[key] = value
			}
		}

		for _, key := range slices.Sorted(maps.Keys(labels)) {
			b.WriteString(key + "=" + labels[key] + " ")
		}
		// Templates belong to no pool, and have the weight 0.
		weight := int32(0)
		if o.pool >= 0 {
			weight = c.Pools[o.pool].Weight
		}

		b.WriteString(strconv.Itoa(int(weight)))
		if len(o.Node.Spec.Taints) > 0 {
			fmt.Fprint(&b, o.Node.Spec.Taints)
		}
		// Kinds are numbered in the order of offers, and so in that of prices.
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

// measure lists the resources that count, and what room the offers have. An offer's room is what it
// has for pods beside those of DaemonSets, which come with each node.
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
	// DaemonSets choose nodes by labels and taints, which all offers of a kind share; so one of
	// them is asked.
	for _, k := range d.kinds {
		k.daemons = d.world.DaemonRequests(d.offers[k.largest].Node)
	}
	for i, o := range d.offers {
		room, daemons := cluster.NewResources(o.Node.Status.Allocatable), d.kinds[d.kindOf[i]].daemons
		list := make([]int64, len(d.names))
		for r, name := range d.names {
			// A node that is too small for its DaemonSets has no room; it is not below zero.
			list[r] = max(room.Of(name)-daemons.Of(name), 0)
		}
		d.rooms = append(d.rooms, list)
	}
	// Offers that are the same to pods differ in price alone. Only the cheapest matters to the
	// bound, which knows no limits.
	same := map[string]bool{}
	for i := range d.offers {
		key := strconv.AppendInt(nil, int64(d.kindOf[i]), 10)
		for _, room := range d.rooms[i] {
			key = strconv.AppendInt(append(key, ' '), room, 10)
		}
		d.distinct = append(d.distinct, !same[string(key)]) // the cheaper is first
		same[string(key)] = true
	}
}

// sizeOf is what a pod takes, in the order of names. Its pod slot is one of the resources.
func (d *demand) sizeOf(p *cluster.Pod) []int64 {
	list := make([]int64, len(d.names))
	for r, name := range d.names {
		if list[r] = p.Class.Requests.Of(name); name == v1.ResourcePods {
			list[r] = 1
		}
	}
	return list
}

// group makes items of the pods.
//
// The steps build on each other: who may go where at all, then which domain a pod group gets, then
// which zone a pod that spreads gets. Each only narrows the kinds of a pod, and what is left is
// what the packing may choose from.
func (d *demand) group(pods []*cluster.Pod) {
	d.spreads = newSpreads(d.world, pods, isTrial)
	pods = slices.SortedStableFunc(slices.Values(pods), func(a, b *cluster.Pod) int {
		return cmp.Compare(turnOf(a.Class), turnOf(b.Class))
	})
	d.order = pods
	// All pods are asked about before any zone is chosen, since choosing counts pods that are not
	// placed.
	takes, taken := d.takers(), make([][]int, len(pods)) // before what is chosen here counts
	for i, p := range pods {
		why := ""
		if taken[i], why = takes(p); why != "" {
			d.helpless = append(d.helpless, Waiting{p.Namespace(), p.Name, why})
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
	// Groups come before zones: they must be in one domain, whatever else would be even.
	d.confine(taken)
	zones := newZones(d)
	// Pods choose zones in the order of their turns, each with those before it counted.
	for i, p := range pods {
		kinds := taken[i]
		if len(kinds) == 0 || d.kept[p.UID] != nil {
			continue
		}
		size, apart := d.sizeOf(p), apartOf(p.Class)
		own := apart
		// In later rounds there are few pods, and the engine has refused what the packing thought
		// possible: to keep them apart costs little.
		if d.cautious {
			own = append(own, d.spreads.apartOf(p.Class)...)
		}
		d.free[p.UID] = d.freed(knownFree, size, anywhere[i], apart)
		d.items = append(d.items, &item{
			pods: []*cluster.Pod{p}, size: size, kinds: zones.choose(p, d.heaviest(kinds)), apart: own,
		})
	}

	d.items = merged(d.items)
	d.problem = d.numbers(d.items)
}

// merged puts pods that are alike to the packing into one item. The fewer items, the smaller the
// packing's program. Items keep the order of their first pod.
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

// freed returns what a pod is to the bound. Pods alike share it. The bound's program has an item
// for each, so there must be few.
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

// heaviest are those of the kinds that are of the heaviest pools among them: as Karpenter does, the
// others are for when these are used up. A NodePool without a weight has 0.
func (d *demand) heaviest(kinds []int) []int {
	most := int32(-1)
	for _, k := range kinds {
		most = max(most, d.kinds[k].weight)
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k int) bool { return d.kinds[k].weight != most })
}

// numbers makes the problem that the packing solves, but for limits.
//
// Offers that are the same to pods are left out of an item's bins, but for the cheapest; one of
// which there are few does not stand for others.
func (d *demand) numbers(items []*item) *packing.Problem {
	p := &packing.Problem{}
	offersOfKind := make([][]int, len(d.kinds))
	same := map[string]bool{}
	for i, o := range d.offers {
		p.Bins = append(p.Bins, packing.Bin{Room: d.rooms[i], Price: o.Price, Most: o.Most})
		key := fmt.Sprint(d.kindOf[i], d.rooms[i], o.pool, o.Most > 0) // the cheaper is first
		if o.Most > 0 || !same[key] {
			same[key] = true
			offersOfKind[d.kindOf[i]] = append(offersOfKind[d.kindOf[i]], i)
		}
	}
	groups := map[string]int{}
	for at, it := range items {
		one := packing.Item{Size: it.size, Count: len(it.pods)}
		// A kind is an offer for each size that it has: its cheapest offer of each size goes into
		// the item's bins.
		for _, k := range it.kinds {
			one.Bins = append(one.Bins, offersOfKind[k]...)
		}
		slices.Sort(one.Bins)
		p.Items = append(p.Items, one)
		for _, key := range it.apart {
			g, known := groups[key]
			if !known {
				g = len(p.Apart)
				groups[key] = g
				p.Apart = append(p.Apart, packing.Apart{Most: 1})
			}
			p.Apart[g].Items = append(p.Apart[g].Items, at)
		}
	}
	return p
}
