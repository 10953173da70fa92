package decide

import "slices"

// chooseFinely chooses among the nodes with the highest total by their fine scores; see
// plugins.Scoring.
func (r *ranking) chooseFinely(t *tie, feasible int) choice {
	nodes, total := r.finestNodes()
	node := nodes[t.draw(len(nodes))]
	if slices.Contains(nodes, t.preferred) {
		node = t.preferred
	}
	return chosen(node, total, feasible)
}

// finestNodes returns the best nodes, of which there is at least one, and their total.
func (r *ranking) finestNodes() (nodes []int32, total int64) {
	r.weighSpread(r.weighConstraints(nil))
	b := r.findBounds()
	nodes = r.space.asked[:0]
	if r.flat != nil {
		top := r.flat.highestOf()
		for i, height := range r.flat.numbers {
			if height == top.height {
				nodes = r.keepFiner(nodes, int32(i))
			}
		}
		r.space.asked = nodes
		return nodes, r.fixedScore(r.groups[r.live], &b) + int64(top.height)
	}

	best, total := r.bestGroups(&b)
	for _, g := range best {
		for _, node := range g.buckets[g.highestBucket()] {
			nodes = r.keepFiner(nodes, node)
		}
	}

	r.space.asked = nodes
	return nodes, total
}

// keepFiner adds a node to the finest ones, or starts over with it, or leaves it out.
func (r *ranking) keepFiner(nodes []int32, node int32) []int32 {
	switch {
	case len(nodes) == 0, r.fine[node] == r.fine[nodes[0]]:
		return append(nodes, node)
	case r.fine[node] > r.fine[nodes[0]]:
		return append(nodes[:0], node)
	}
	return nodes
}

// fineOf is a node's fine score, 0 where no plugin has one.
func (r *ranking) fineOf(node int32) int64 {
	if r.fine == nil {
		return 0
	}
	return r.fine[node]
}
