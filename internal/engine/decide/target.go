// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// tryTarget decides a pod that names the only possible node, like the pods of DaemonSets, by
// judging only that node. Pods with rules about other pods, and pods selected by such rules, take
// the general path.
func (d *Decider) tryTarget(p *cluster.Pod) (decision Decision, done bool) {
	class := p.Class
	if !class.Simple || len(class.RequiredAffinity)+len(class.RequiredAntiAffinity) > 0 || class.TermError != nil {
		return Decision{}, false
	}

	sk := d.planner.skeletonFor(p)
	if sk == nil || !sk.selects || slices.ContainsFunc(sk.ask, func(plugin any) bool { return appliesTo(plugin, d.c, p) }) {
		return Decision{}, false
	}

	if sk.hard != nil {
		if hard, err := sk.hard.Hard(d.c, p); err != nil || len(hard) > 0 {
			return Decision{}, false
		}
	}

	if d.ix.mayBeRepelled(class) {
		return Decision{}, false
	}
	n := d.c.Node(class.Target)
	if n == nil {
		return Decision{}, true
	}
	if len(n.Nominated) > 0 {
		return Decision{}, false
	}

	for _, judges := range [2][]namedJudge{sk.early, sk.late} {
		for i := range judges {
			if rejection := judges[i].judge(n); rejection != nil {
				return Decision{}, rejection.Err == nil
			}
		}
	}

	room := sk.room
	if class.Requests.MilliCPU != room.cpu || class.Requests.Memory != room.memory {
		room = room.forClass(class)
	}

	if !room.fits(&d.c.Rooms[n.Index]) {
		return Decision{}, true
	}
	return Decision{Node: n, Feasible: 1}, true
}
