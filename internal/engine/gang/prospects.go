// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Prospect is a domain where the groups below a composite may fit.
type Prospect struct {
	Domain string
	Full   float64     // requested percentage of the domain if all members are there
	least  domainBound // lower bound of the cost
}

// MayCostLess reports whether the domain may be cheaper than evicting some units.
func (p *Prospect) MayCostLess(than [][]*cluster.Pod) bool { return costOf(than).compare(&p.least) > 0 }

// ListProspects lists the domains of the topology key where the needed number of members may fit,
// judged only by room, the fullest first. If leave is set, domains where less important pods must
// leave come first. If there is no such domain, the result is the domain with the most room, which
// serves to explain the failure.
func (a *Attempt) ListProspects(domains []string, leave bool) (list []Prospect) {
	d, mayLeave := a.domains, leaveRule(nil)
	if leave {
		mayLeave = a.rooms.victimRule()
	}
	d.fills = newFills(a.Request)
	d.fills.sortByFullest(domains)

	promising := d.listPromising(domains, mayLeave)
	if len(promising) == 0 {
		promising = []domainBound{{domain: d.findRoomiest(domains)}}
	}
	for _, b := range promising {
		list = append(list, Prospect{b.domain, d.fills.withAll(b.domain), b})
	}
	return list
}
