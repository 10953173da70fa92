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

// band is the pending pods of a pod group that have to be in one domain: one rack, for instance.
// key is the topology key of the group's constraint. Pods that are not pending are not in it.
type band struct {
	group *groups.Group
	key   string
	fixed string // the domain of those that have a node
	pods  []int  // positions in demand.order
}

// bands lists the groups with a topology constraint. They are in the order in which their first
// pods are tried.
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
				// Pods of the group that run bind the others to their domain.
				b.fixed = n.Get(b.key)
			}
		}
	}
	return list
}

// confine leaves to the pods of each group the kinds of nodes of one domain: of those that take all
// of them, the one where that costs least. Room that nodes of the domain have is used first.
//
// taken has, by pod in order, the kinds that take it, and is changed. Groups are housed one after
// the other: the first to come gets the cheapest domain, also if a later one would have needed it
// more. Where no domain takes a whole group, its pods are helpless, since some of them alone would
// not be scheduled.
func (d *demand) confine(taken [][]int) {
	spent := make([]int, len(d.offers)) // by offer: what groups before need of those of which there are few
	for _, b := range d.bands() {
		var best *housing
		for _, domain := range d.domainsOf(b, taken) {
			// Of domains that cost the same, the first by name is taken.
			if h := d.house(b, domain, taken, spent); h != nil && (best == nil || h.cost < best.cost-tiny) {
				best = h
			}
		}

		if best == nil {
			why := fmt.Sprintf("no domain of %s takes all %d pods of PodGroup %q, whatever is bought",
				b.key, len(b.pods), b.group.Name.Name)
			for _, i := range b.pods {
				if len(taken[i]) > 0 {
					d.helpless = append(d.helpless, Waiting{d.order[i].Namespace(), d.order[i].Name, why})
				}
				taken[i] = nil
			}
			continue
		}
		for at, i := range b.pods {
			taken[i] = best.kinds[at]
			if node := best.nodes[at]; node != nil {
				d.kept[d.order[i].UID] = node.Object()
			}
		}
		// The nodes are not bought yet, but those that are few must be left for this group.
		for _, bin := range best.bins {
			spent[bin.Bin]++
		}
	}
}

// tiny is a difference between prices that is none. Prices are sums of floating-point numbers.
const tiny = 1e-9

// domainsOf lists the domains in which the pods of a group may be, sorted: of nodes that can be
// bought, and of those that there are. If pods of the group run already, there is only theirs.
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

// housing is where the pods of a group would be in a domain.
//
// It is a trial: nothing is taken until confine chooses it.
type housing struct {
	kinds [][]int         // by pod of the band: the kinds for those that need a new node
	nodes []*cluster.Node // by pod: the node that has room
	bins  []packing.Bought
	cost  float64
}

// house finds room for all pods of a group in a domain, or returns nil. spent are the offers that
// groups before have used up, in numbers by offer.
func (d *demand) house(b *band, domain string, taken [][]int, spent []int) *housing {
	// Existing nodes are filled first: what they take costs nothing.
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
		// One pod without a place rules the domain out for all of them.
		if len(h.kinds[at]) == 0 {
			return nil
		}
		// What is left needs new nodes, for which a packing of little effort (24 rounds) says the
		// price. The plan packs all items again together.
		items = append(items, &item{pods: []*cluster.Pod{p}, size: size, kinds: h.kinds[at], apart: apartOf(p.Class)})
	}
	if len(items) == 0 {
		return h
	}

	problem := d.numbers(merged(items))
	d.limit(problem, spent)
	solution := packing.Solve(problem, packing.Options{Rounds: 24})
	// Limits of the pools do not allow all of them.
	if slices.Max(solution.Left) > 0 {
		return nil
	}
	h.bins, h.cost = solution.Bins, solution.Cost
	return h
}

// room is what a node has left. free is by resource, in the order of demand.names, and shrinks as
// pods are meant to go there.
type room struct {
	node *cluster.Node
	free []int64
}

// roomsIn lists the nodes of a domain, but for those that are there for a trial. Their room is as
// of now; a housing takes it only for itself, so two groups may count on the same room. The engine
// corrects that.
func (d *demand) roomsIn(key, domain string) (list []*room) {
	for _, n := range d.world.Cluster().Nodes {
		if n == nil || isTrial(n.Name) || n.Get(key) != domain {
			continue
		}
		r := &room{node: n, free: make([]int64, len(d.names))}
		for i, name := range d.names {
			r.free[i] = n.Size.Of(name) - n.Requested.Of(name)
			if name == v1.ResourcePods {
				r.free[i] = n.Size.Of(name) - int64(len(n.Pods))
			}
		}
		list = append(list, r)
	}
	return list
}

// roomFor takes the room of a pod from the first node that has it, and where no plugin rejects the
// pod; nil if there is none. Pods that repel each other on a node are not put on existing ones:
// what those hold is not known here. rejected keeps what plugins say, by class.
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
		// One evaluation says it of all nodes, for all pods of the class.
		why = decide.NewPlain(d.world.Cluster(), profile).Rejections(p, nodes)
		rejected[p.Class] = why
	}

	for i, r := range rooms {
		if why[i] == "" && holds(r.free, size) {
			for k := range size {
				r.free[k] -= size[k]
			}
			return r.node
		}
	}
	return nil
}
