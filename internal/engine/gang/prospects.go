package gang

import (
	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Prospect is a domain in which the groups below a composite may fit.
type Prospect struct {
	Domain string
	Full   float64     // how much of it is requested if all members are there, in percent
	least  domainBound // what it costs at least
}

// MayCostLess tells whether it may cost less than that some units leave.
func (p *Prospect) MayCostLess(than [][]*cluster.Pod) bool { return costOf(than).compare(&p.least) > 0 }

// ListProspects lists those of the domains of the topology key in which as many members as are
// needed may fit, judged by room alone: the fullest first. If pods may leave, those come before in
// which the least important ones have to. If there is none, it is the domain with most room, so
// that there is one to say why.
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
