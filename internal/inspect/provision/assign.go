package provision

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/provision/packing"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// mostLooks is of how many places a pod takes the first that its constraints allow. All places of
// an item are as good to the packing, so looking further only helps where many domains are full.
const mostLooks = 256

// place is a node with room for so many pods of an item. room counts pods of the item, since they
// all have the same size.
type place struct {
	node *v1.Node
	room int
}

// assign says which of the pods of each item go to which of the nodes that were bought for them,
// and in which order. To the packing they are alike; to the constraints of pods they are not. What
// no place is allowed for has no turn.
//
// d.order has pods that spread first; each takes the first place that its constraints allow, and
// counts for those after it. A pod without a place is tried by the engine on any node, after all
// that have one.
func (d *demand) assign(s *packing.Solution, nodes []*v1.Node) map[types.UID]simulate.Turn {
	counts := d.spreads
	// Choosing zones has counted wishes. From here on only what is placed counts, and what is
	// assigned.
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
			itemOf[p.UID] = i
		}
	}

	// Turns are numbered in the order of d.order, in which the engine tries them.
	turns := make(map[types.UID]simulate.Turn, len(itemOf))
	for _, p := range d.order {
		// Its group has room on a node that there is already.
		if node := d.kept[p.UID]; node != nil {
			turns[p.UID] = simulate.Turn{Node: node.Name, Number: len(turns)}
			counts.count(p.Class, node.Labels)
			continue
		}
		// It is not in an item if no node of the catalog takes it.
		item, known := itemOf[p.UID]
		if !known {
			continue
		}
		list := places[item]
		at := slices.IndexFunc(list[:min(len(list), mostLooks)], func(to place) bool { return counts.allow(p.Class, to.node.Labels) })
		if at < 0 {
			continue
		}

		to := &list[at]
		turns[p.UID] = simulate.Turn{Node: to.node.Name, Number: len(turns)}
		counts.count(p.Class, to.node.Labels)
		if to.room--; to.room == 0 {
			// A place that is full is dropped, in constant time.
			list[at] = list[0]
			places[item] = list[1:]
		}
	}
	return turns
}
