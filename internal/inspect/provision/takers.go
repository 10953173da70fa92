// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// takers returns a function that determines the kinds of nodes suitable for a pod, according to the
// engine: plugins evaluate an empty node of each kind, temporarily in the cluster. The result is
// shared by the pods of a class and, apart from room, by pods that differ only in size.
//
// Needs other than room are evaluated once for all equivalent classes, with a pod without requests,
// and room is computed numerically. If no kind fits, or if a class is not simple, the engine
// evaluates the pod itself, and its message gives the reason.
func (d *demand) takers() func(p *cluster.Pod) (kinds []int, why string) {
	// Either kinds or why is set.
	type answer struct {
		kinds []int
		why   string
	}
	byClass, byNeeds := map[*cluster.PodClass]*answer{}, map[string]*answer{}
	return func(p *cluster.Pod) ([]int, string) {
		if a := byClass[p.Class]; a != nil {
			return a.kinds, a.why
		}
		if c := p.Class; c.Simple {
			counted := d.spreads.knows(c)
			needs := fmt.Sprint(c.Spec.SchedulerName, c.Static, c.Look)
			// If the counts do not cover all of the class's constraints, only pods with equal
			// constraints share the result.
			if !counted {
				needs += fmt.Sprint(c.Spec.TopologySpreadConstraints)
			}
			if byNeeds[needs] == nil {
				asked := &answer{}
				asked.kinds, asked.why = d.ask(d.small(p, counted))
				byNeeds[needs] = asked
			}

			// These kinds suit the pod apart from room: keep only the kinds that also have room.
			fit := d.fitting(p, byNeeds[needs].kinds)
			if counted {
				fit = d.allowed(c, fit)
			}
			if len(fit) > 0 {
				byClass[c] = &answer{kinds: fit}
				return fit, ""
			}
		}

		a := &answer{}
		a.kinds, a.why = d.ask(p)
		byClass[p.Class] = a
		return a.kinds, a.why
	}
}

// allowed returns the kinds for which a new node can take a pod of the class, according to the
// counts of its spread constraints. A zone without nodes counts as a domain, because nodes can be
// bought there.
func (d *demand) allowed(class *cluster.PodClass, kinds []int) []int {
	own := d.spreads.spreadingOf(class).own
	if len(own) == 0 {
		return kinds
	}

	for _, k := range kinds {
		for _, s := range own {
			if domain, has := d.kinds[k].labels[s.key]; has {
				s.add(domain)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k int) bool {
		return slices.ContainsFunc(own, func(s ownSpread) bool {
			domain, has := d.kinds[k].labels[s.key]
			return s.key != v1.LabelHostname && (!has || !s.allows(domain)) // a new host has no pods yet
		})
	})
}

// small returns a copy of the pod without requests, which suits the same nodes apart from room.
// softened turns its hard spread constraints into soft ones; they are not removed, because the
// profile's default constraints would then apply. The copy is in no queue and on no node.
func (d *demand) small(p *cluster.Pod, softened bool) *cluster.Pod {
	// A pod missing from the world is evaluated unchanged.
	f, ok := d.world.Find(p.Namespace(), p.Name())
	if !ok {
		return p
	}
	object := f.Object.DeepCopy()
	for _, list := range [][]v1.Container{object.Spec.InitContainers, object.Spec.Containers} {
		for i := range list {
			list[i].Resources = v1.ResourceRequirements{}
		}
	}
	object.Spec.Overhead, object.Spec.Resources = nil, nil
	if softened {
		for i := range object.Spec.TopologySpreadConstraints {
			object.Spec.TopologySpreadConstraints[i].WhenUnsatisfiable = v1.ScheduleAnyway
		}
	}
	return d.world.Cluster().Pending(object)
}

// fitting returns the kinds with room for the pod on a node. The largest offer of the kind decides;
// the packing determines whether the smaller ones have room.
func (d *demand) fitting(p *cluster.Pod, kinds []int) (list []int) {
	size := d.sizeOf(p)
	for _, k := range kinds {
		room := d.rooms[d.kinds[k].largest]
		if packing.Holds(room, size) {
			list = append(list, k)
		}
	}
	return list
}

// trialNode is the name prefix of nodes temporarily in the cluster for evaluation by plugins. They
// never get a pod.
const trialNode = "berth-offer-"

// isTrial reports whether a node exists only for a trial.
func isTrial(node string) bool { return strings.HasPrefix(node, trialNode) }

// ask evaluates the nodes of the kinds with the plugins of the pod's profile. If no kind is
// suitable, why lists the plugins' reasons, the most frequent first.
func (d *demand) ask(p *cluster.Pod) (kinds []int, why string) {
	// Berth does not place pods of other schedulers, whatever is bought.
	profile := d.world.Profile(p.Class.Spec.SchedulerName)
	if profile == nil {
		return nil, fmt.Sprintf("no profile serves the scheduler name %q", p.Class.Spec.SchedulerName)
	}

	reasons := map[string]int{}
	for k, rejection := range decide.NewPlain(d.world.Cluster(), profile).Rejections(p, d.trials) {
		if rejection == "" {
			kinds = append(kinds, k)
		} else {
			reasons[rejection]++
		}
	}

	if len(kinds) > 0 {
		return kinds, ""
	}
	list := slices.SortedFunc(maps.Keys(reasons),
		func(a, b string) int { return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b)) })
	return nil, "no node of the catalog takes it: " + strings.Join(list, "; ")
}

// suppose adds an empty node of each kind to the cluster, and returns a function to remove them.
// The nodes must be removed before the world changes, because a pending pod could be placed there.
func (d *demand) suppose() (over func()) {
	trial := d.world.Trial()
	mark := trial.Mark()
	for k, of := range d.kinds {
		node := d.offers[of.largest].Node.DeepCopy()
		node.Name = fmt.Sprint(trialNode, k)
		node.Labels = maps.Clone(node.Labels)
		metav1.SetMetaDataLabel(&node.ObjectMeta, v1.LabelHostname, node.Name)
		trial.Put(node)
		d.trials = append(d.trials, d.world.Cluster().Node(node.Name))
	}
	return func() { trial.Undo(mark) }
}

// apartOf returns keys for everything that allows only one pod of the class per node: each host
// port, and each required anti-affinity term by hostname that matches the class's own pods. The
// engine evaluates anti-affinity to pods of other classes.
func apartOf(class *cluster.PodClass) (keys []string) {
	for _, term := range class.RequiredAntiAffinity {
		if term.TopologyKey == v1.LabelHostname && term.Matches(class, nil) {
			keys = append(keys, fmt.Sprint(term.Namespaces, term.Selector.String()))
		}
	}
	if class.Ports != nil {
		for _, port := range class.Ports.List {
			keys = append(keys, fmt.Sprint(port))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// mostLooks is the maximum number of places examined for a pod, which takes the first place that
// its constraints allow. All places of an item are equivalent for the packing, so examining more
// places helps only if many domains are full.
const mostLooks = 256

// place is a node with room for a number of pods of an item. room counts pods of the item, since
// they all have the same size.
type place struct {
	node *v1.Node
	room int
}

// assign distributes the pods of each item among the nodes bought for them, and determines their
// order. Pods of an item are equivalent for the packing, but not for spread constraints. A pod
// without an allowed place gets no turn.
//
// d.order begins with the pods with hard spread constraints. Each of them takes the first place its
// constraints allow, and then counts for later pods. The engine tries a pod without a place on any
// node, after all pods with a place.
func (d *demand) assign(s *packing.Solution, nodes []*v1.Node) map[types.UID]simulate.Turn {
	counts := d.spreads
	// The counts include the tentative choices of zones. From here on only placed and assigned pods
	// count.
	counts.countAnew(d.world, isTrial)
	places := make([][]place, len(d.items))
	// Each new node is a domain without pods.
	for i, b := range s.Bins {
		counts.add(nodes[i].Labels)
		for _, part := range b.Items {
			places[part.Item] = append(places[part.Item], place{nodes[i], part.Count})
		}
	}

	itemOf := map[types.UID]int{}
	for i, it := range d.items {
		for _, p := range it.pods {
			itemOf[p.UID()] = i
		}
	}

	// Turns are numbered in the order of d.order, the engine's order of attempts.
	turns := make(map[types.UID]simulate.Turn, len(itemOf))
	for _, p := range d.order {
		// The pod belongs to a group and has room on an existing node.
		if node := d.kept[p.UID()]; node != nil {
			turns[p.UID()] = simulate.Turn{Node: node.Name, Number: len(turns)}
			counts.count(p.Class, node.Labels)
			continue
		}
		// A pod is in no item if no node of the catalog takes it.
		item, known := itemOf[p.UID()]
		if !known {
			continue
		}
		list := places[item]
		at := slices.IndexFunc(list[:min(len(list), mostLooks)], func(to place) bool { return counts.allow(p.Class, to.node.Labels) })
		if at < 0 {
			continue
		}

		to := &list[at]
		turns[p.UID()] = simulate.Turn{Node: to.node.Name, Number: len(turns)}
		counts.count(p.Class, to.node.Labels)
		if to.room--; to.room == 0 {
			// Remove a full place in constant time.
			list[at] = list[0]
			places[item] = list[1:]
		}
	}
	return turns
}

// Node is a node to be bought. Once the plan is made, it exists in the world under this name.
type Node struct {
	Name         string  `json:"name"`
	Pool         string  `json:"pool"`
	Type         string  `json:"type"`
	Zone         string  `json:"zone,omitempty"`
	CapacityType string  `json:"capacityType,omitempty"`
	Price        float64 `json:"pricePerHour"`
	// Pods lists the pods placed there, as namespace/name, without those of DaemonSets.
	Pods []string `json:"pods"`
	// CPU and Memory are the shares requested by its pods, in percent.
	CPU    float64 `json:"cpuPercent"`
	Memory float64 `json:"memoryPercent"`

	// offer is the index of the node's offer in Catalog.Offers.
	offer int
}

// isNew reports whether a node was bought by this plan.
func (m *maker) isNew(node string) bool { return m.named[node] }

// node creates a node of an offer and records it in the plan. It does not add the node to the
// world.
func (m *maker) node(offer int) *v1.Node {
	// Names count per pool: web-new-1, web-new-2 and so on.
	o := &m.c.Offers[offer]
	if m.number == nil {
		m.number = map[string]int{}
	}

	name := ""
	// Skip names of existing nodes, and of nodes that exist until the plan is carried out.
	for name == "" || m.w.Node(name) != nil || m.o.leaving[name] != nil {
		m.number[o.Pool]++
		name = fmt.Sprintf("%s-new-%d", strings.ToLower(o.Pool), m.number[o.Pool])
	}

	node := o.named(name, m.w)
	m.plan.Nodes = append(m.plan.Nodes, Node{
		Name: name, Pool: o.Pool, Type: o.Type, Zone: o.Zone, CapacityType: o.CapacityType, Price: o.Price, Pods: []string{}, offer: offer,
	})
	m.bought, m.named[name] = append(m.bought, offer), true
	return node
}

// add adds bought nodes to a world. Pending pods may take them first, like in a live cluster.
func (c *Catalog) add(w *simulate.World, nodes []Node) error {
	made := answer.Mapped(nodes, func(n Node) metav1.Object { return c.Offers[n.offer].named(n.Name, w) })
	_, err := w.Apply(manifest.Assemble("the plan", made))
	if err == nil {
		w.Settle()
	}
	return err
}

// named returns a node of the offer with this name, created at the world's current time.
func (o *Offer) named(name string, w *simulate.World) *v1.Node {
	node := o.Node.DeepCopy()
	node.Name = name
	node.CreationTimestamp = metav1.NewTime(w.Now())
	metav1.SetMetaDataLabel(&node.ObjectMeta, v1.LabelHostname, name)
	return node
}
