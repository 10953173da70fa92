// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

// gauging measures a world by the policy's gauges.
type gauging struct {
	// gauges are in order of comparison; hard is the first of them, shared by the goals that heal
	// hard constraints. The list does not change once the world is open.
	gauges []gauge
	hard   *ledger
}

// countAll counts the placed pods of the state. It finds all groups before it counts any pod,
// because a group found later would be recounted from the start.
func (m *gauging) countAll(pods []*pod) {
	for _, p := range pods {
		for _, g := range m.gauges {
			if l, ok := g.(*ledger); ok {
				l.concernOf(p)
			}
		}
	}
	for _, p := range pods {
		m.countPod(p, 1)
	}
}

// countPod updates the gauges for an added or removed pod. Terminating pods count nowhere.
func (m *gauging) countPod(p *pod, by int64) {
	if p.Terminating {
		return
	}
	for _, g := range m.gauges {
		g.countPod(p, p.Node, by)
	}
	// recountGroup uses counted, since p.Node changes during proofs.
	if p.counted = nil; by > 0 {
		p.counted = p.Node
	}
}
