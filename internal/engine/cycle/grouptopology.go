package cycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// domainResult is a group's placement in one domain.
type domainResult struct {
	domain string
	places []place
	said   []*decide.Failure // why members found no node, in their order
	full   float64           // how much of the domain is requested with the group there, in percent; see with
	total  float64           // the domain's score; see placeInDomain
}

// place is a member and the decision where it goes.
type place struct {
	*member
	found decide.Decision
}

// placeInDomain tries the domains of the group's topology key that may be better than the best so
// far, as long as its effort lasts, and leaves the members counted in the best one. The score is
// upstream's: how full the domain would be, so that the tightest wins, plus how many pods of the
// group would be there, each out of 100.
func (a *groupAttempt) placeInDomain(key string) error {
	domains, err := a.domainsOf(key)
	if err != nil {
		return err
	}
	a.domains = max(1, len(domains))
	if len(domains) == 0 {
		a.noDomain = "no feasible placements found: no node has the label " + key
		none := &decide.Failure{Nodes: a.cluster.Len(), Rejection: &plugins.Rejection{Reasons: []string{a.noDomain}}}
		for _, m := range a.members {
			m.failure = none
		}
		return nil
	}
	placedBefore, _ := a.podGroups.count(a.group)
	a.scored = a.scoredResources()
	a.fills = a.domainFills(key)
	a.sortByFullest(domains)
	list := a.promising(key, domains, nil)
	if len(list) == 0 {
		list = []domainBound{{domain: a.roomiest(key, domains)}} // for the reasons
	}
	var fitting []domainResult
	most := -1
	var closest []*decide.Failure
	for b := range a.inTurn(list) {
		if len(fitting) > 0 && a.noneBetter(fitting, b.domain) {
			continue
		}
		a.confine(key, b.domain)
		if err := a.place(); err != nil {
			return err
		}
		if len(a.placed) > most { // the reasons are those in the domain that came closest
			most, a.closest = len(a.placed), b.domain
			closest = a.failures()
		}
		if len(a.placed) >= a.need {
			fitting = append(fitting, a.resultIn(b.domain))
		}
		a.undo(0)
	}
	if len(fitting) == 0 {
		a.sayAgain(closest)
		return nil
	}
	pods := 0
	for i := range fitting {
		pods = max(pods, placedBefore+len(fitting[i].places))
	}
	for i := range fitting {
		fitting[i].total = fitting[i].full + 100*float64(placedBefore+len(fitting[i].places))/float64(pods)
	}
	best := slices.MaxFunc(fitting, func(x, y domainResult) int {
		return cmp.Or(cmp.Compare(x.total, y.total), cmp.Compare(y.domain, x.domain))
	})
	a.closest = best.domain
	a.confine(key, best.domain)
	a.sayAgain(best.said)
	for _, p := range best.places {
		if err := a.count(p.member, p.found); err != nil {
			return err
		}
	}
	return nil
}

// failures returns why members found no node, in their order; sayAgain restores that.
func (a *groupAttempt) failures() (said []*decide.Failure) {
	for _, m := range a.members {
		said = append(said, m.failure)
	}
	return said
}

func (a *groupAttempt) sayAgain(said []*decide.Failure) {
	for i, m := range a.members {
		m.failure = said[i]
	}
}

// domainsOf lists the values of the key that nodes have. If members that count have nodes already,
// it is only the value of those nodes.
func (a *groupAttempt) domainsOf(key string) ([]string, error) {
	pinned, bare := map[string]bool{}, []string(nil)
	for uid := range a.group.Counted {
		p := a.cluster.Pod(uid)
		if p == nil || p.Node == nil {
			continue
		}
		if value, ok := labelOf(p.Node, key); ok {
			pinned[value] = true
		} else {
			bare = append(bare, p.Node.Name)
		}
	}
	switch {
	case len(bare) > 0: // always the same one: the members are in no order
		return nil, fmt.Errorf("a pod of the group is on node %s, which has no label %s", slices.Min(bare), key)
	case len(pinned) > 1:
		return nil, fmt.Errorf("pods of the group are in more than one domain of %s: %v", key, slices.Sorted(maps.Keys(pinned)))
	case len(pinned) == 1:
		return slices.Sorted(maps.Keys(pinned)), nil
	}
	all := map[string]bool{}
	for _, n := range a.cluster.Nodes {
		if n == nil {
			continue
		}
		if value, ok := labelOf(n, key); ok {
			all[value] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

func labelOf(n *cluster.Node, key string) (value string, ok bool) {
	if key == "kubernetes.io/hostname" {
		return n.Hostname, n.HasHostname
	}
	value, ok = n.Labels.Map[key]
	return value, ok
}

// confine limits decisions about members to one domain, as if each pod selected its nodes.
func (a *groupAttempt) confine(key, domain string) {
	a.effort += costOfDomain
	confined := map[*cluster.PodClass]*cluster.PodClass{} // members of one class make one class there
	for _, m := range a.members {
		class := confined[m.item.Class]
		if class == nil {
			pod := confinedTo(m.Pod, key, domain)
			class = a.nominations.contender(a.cluster.Pending(pod), pod).Class
			confined[m.item.Class] = class
		}
		asked := *m.Waiting
		asked.Class = class
		m.asked, m.failure = &asked, nil
	}
}

// confinedTo returns the pod as if it selected the nodes of a domain.
func confinedTo(of *v1.Pod, key, domain string) *v1.Pod {
	pod := *of
	pod.Spec.NodeSelector = maps.Clone(pod.Spec.NodeSelector)
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	own, selects := pod.Spec.NodeSelector[key]
	pod.Spec.NodeSelector[key] = domain
	if selects && own != domain { // no node has both
		pod.Spec.NodeSelector[key] = ""
	}
	return &pod
}

// nameDomains has the failure of a confined member say of the nodes elsewhere that they are: it is
// not the pod that does not select them.
func (a *groupAttempt) nameDomains(m *member) {
	nodes := m.failure.Reasons[plugins.AffinityMismatch]
	if a.domains == 0 || nodes == 0 {
		return
	}
	reason := "node(s) in other domains of " + a.group.TopologyKey()
	if spec := m.item.Class.Spec; len(spec.NodeSelector) > 0 || spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		reason = plugins.AffinityMismatch + " or in other domains of " + a.group.TopologyKey()
	}
	delete(m.failure.Reasons, plugins.AffinityMismatch)
	m.failure.Reasons[reason] += nodes
}

// resultIn returns the placement that was found in the domain.
func (a *groupAttempt) resultIn(domain string) domainResult {
	r := domainResult{domain: domain, said: a.failures(), full: a.fullest(domain)}
	if len(a.placed) < len(a.members) {
		r.full = a.with(a.fills[domain], a.requestedBy(a.placed))
	}
	for _, m := range a.placed {
		r.places = append(r.places, place{m, m.found})
	}
	return r
}

// fill is how much of the nodes of a domain is requested, and how much there is, of each resource
// by which the profile scores nodes.
type fill struct{ requested, all []float64 }

// scoredResources are those resources, with their weights; CPU and memory if it scores by none.
func (a *groupAttempt) scoredResources() []config.ResourceSpec {
	if i := slices.IndexFunc(a.profile.Filters, filtersRoom); i >= 0 {
		return a.profile.Filters[i].(plugins.RoomFilter).Scored()
	}
	return []config.ResourceSpec{{Name: string(v1.ResourceCPU), Weight: 1}, {Name: string(v1.ResourceMemory), Weight: 1}}
}

// domainFills sums up the nodes of every domain.
func (a *groupAttempt) domainFills(key string) map[string]*fill {
	fills := map[string]*fill{}
	for i, n := range a.cluster.Nodes {
		if n == nil {
			continue
		}
		value, ok := labelOf(n, key)
		if !ok {
			continue
		}
		f, room := fills[value], &a.cluster.Rooms[i]
		if f == nil {
			f = &fill{make([]float64, len(a.scored)), make([]float64, len(a.scored))}
			fills[value] = f
		}
		for j := range a.scored {
			var requested, all int64
			switch name := v1.ResourceName(a.scored[j].Name); name {
			case v1.ResourceCPU:
				requested, all = room.NonZeroCPU, room.CPU
			case v1.ResourceMemory:
				requested, all = room.NonZeroMemory, room.Memory
			case v1.ResourceEphemeralStorage:
				requested, all = n.Requested.EphemeralStorage, n.Size.EphemeralStorage
			default:
				requested, all = n.Requested.Scalars[name], n.Size.Scalars[name]
			}
			f.requested[j], f.all[j] = f.requested[j]+float64(requested), f.all[j]+float64(all)
		}
	}

	return fills
}

// with is how full the domain is if so much more of each resource is requested, in percent.
// Resources that the group does not request, and that only some nodes have, do not count.
func (a *groupAttempt) with(f *fill, more []float64) float64 {
	sum, weights := 0.0, 0.0
	for j, resource := range a.scored {
		if f.all[j] <= 0 || a.requested[j] == 0 && cluster.IsScalar(v1.ResourceName(resource.Name)) {
			continue
		}
		sum += float64(resource.Weight) * 100 * min(1, (f.requested[j]+more[j])/f.all[j])
		weights += float64(resource.Weight)
	}
	return sum / max(weights, 1)
}

// requestedBy sums up what members request.
func (a *groupAttempt) requestedBy(members []*member) []float64 {
	sum := make([]float64, len(a.scored))
	for _, m := range members {
		class := m.item.Class
		for j := range a.scored {
			switch name := v1.ResourceName(a.scored[j].Name); name {
			case v1.ResourceCPU:
				sum[j] += float64(class.NonZeroCPU)
			case v1.ResourceMemory:
				sum[j] += float64(class.NonZeroMemory)
			case v1.ResourceEphemeralStorage:
				sum[j] += float64(class.Requests.EphemeralStorage)
			default:
				sum[j] += float64(class.Requests.Scalars[name])
			}
		}
	}

	return sum
}

// fullest is how full the domain is if all members find a node there.
func (a *groupAttempt) fullest(domain string) float64 { return a.with(a.fills[domain], a.requested) }

// sortByFullest puts the domains first that would be fullest with all members, of equal ones the
// first by name. There may be thousands of domains, and as many members.
func (a *groupAttempt) sortByFullest(domains []string) {
	a.requested = a.requestedBy(a.members)
	type filled struct {
		domain string
		full   float64
	}
	list := make([]filled, len(domains))
	for i, domain := range domains {
		list[i] = filled{domain, a.fullest(domain)}
	}
	slices.SortFunc(list, func(x, y filled) int { return cmp.Or(cmp.Compare(y.full, x.full), cmp.Compare(x.domain, y.domain)) })
	for i := range list {
		domains[i] = list[i].domain
	}
}

// noneBetter tells whether the domain cannot be better than one in which all members found a node.
// Of equally good domains the first by name wins.
func (a *groupAttempt) noneBetter(fitting []domainResult, domain string) bool {
	most := a.fullest(domain)
	return slices.ContainsFunc(fitting, func(r domainResult) bool {
		return len(r.places) == len(a.members) && (r.full > most || r.full == most && r.domain < domain)
	})
}
