package topology

// merge returns the nodes that suit all resources best, and whether the policy admits them.
func (a Alignment) merge(m *Machine, all [][]Hint) (near Hint, admitted bool) {
	every := NodesOf(m.Nodes...)
	if a.Policy == SingleNode {
		all = onOneNode(all)
	}
	best := Hint{Nodes: every}
	found, aim := false, widestNeed(all)
	combinations(all, Hint{every, true}, 0, func(h Hint) {
		if h.Nodes != 0 && (!found || a.better(m, h, best, aim)) {
			best, found = h, true
		}
	})
	if a.Policy == SingleNode && best.Nodes == every {
		best.Nodes = 0
	}
	return best, best.Preferred || a.Policy == BestEffort
}

// onOneNode keeps the preferred hints of one node, and those without a preference.
func onOneNode(all [][]Hint) [][]Hint {
	out := make([][]Hint, len(all))
	for i, list := range all {
		for _, h := range list {
			if h.Preferred && h.Nodes.Len() <= 1 {
				out[i] = append(out[i], h)
			}
		}
	}
	return out
}

// combinations calls f with the merger of one hint from each list, for all choices. A merger is
// preferred if all of its hints are, and name the same nodes; first are those named so far.
func combinations(all [][]Hint, so Hint, first Nodes, f func(Hint)) {
	if len(all) == 0 {
		f(so)
		return
	}
	for _, h := range all[0] {
		merged, named := Hint{so.Nodes, so.Preferred && h.Preferred}, first
		if h.Nodes != 0 {
			merged.Nodes &= h.Nodes
			if named == 0 {
				named = h.Nodes
			}
			merged.Preferred = merged.Preferred && h.Nodes == named
		}
		combinations(all[1:], merged, named, f)
	}
}

// widestNeed is how many nodes the most demanding resource needs at least. Without a preferred
// choice, the nodes are as many as that if possible.
func widestNeed(all [][]Hint) (most int) {
	for _, list := range all {
		least := 0
		for _, h := range list {
			if n := h.Nodes.Len(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		most = max(most, least)
	}
	return most
}

// better reports whether h is to replace the best so far.
func (a Alignment) better(m *Machine, h, best Hint, aim int) bool {
	if h.Preferred || best.Preferred {
		return h.Preferred && (!best.Preferred || a.fitter(m, h.Nodes, best.Nodes))
	}
	switch is, was := h.Nodes.Len(), best.Nodes.Len(); {
	case was > aim || is == was:
		return a.fitter(m, h.Nodes, best.Nodes)
	case was == aim || is > aim:
		return false
	default: // both may be too few: more are nearer to the aim
		return is > was
	}
}

// fitter reports whether one set of nodes is a better choice than another, of hints that are alike
// in everything else.
func (a Alignment) fitter(m *Machine, one, other Nodes) bool {
	if a.Closest && a.Policy != SingleNode && one.Len() == other.Len() {
		if x, y := m.spread(one), m.spread(other); x != y {
			return x < y
		}
	}
	return one.Narrower(other)
}

// spread is the mean distance between the nodes of a set.
func (m *Machine) spread(nodes Nodes) (mean float64) {
	for _, from := range nodes.List() {
		for to, distance := range m.Distances[from] {
			if to < len(m.Nodes) && nodes.Has(m.Nodes[to]) {
				mean += float64(distance)
			}
		}
	}
	return mean / float64(nodes.Len()*nodes.Len())
}
