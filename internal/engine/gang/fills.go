// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// fills holds the requested and the total amounts of each scored resource, by domain. It is
// computed before members are placed.
type fills struct {
	*Request
	scored    []config.ResourceSpec // the resources, with their weights
	byDomain  map[string]*fill
	requested []float64 // requests of all members
}

// fill has an entry per scored resource.
type fill struct{ requested, all []float64 }

// newFills sums up the nodes of every domain.
func newFills(r *Request) fills {
	f := fills{Request: r, scored: scoredResources(r), byDomain: map[string]*fill{}}
	f.requested = f.sumRequests(r.Members)

	for n := range r.eachNode {
		domain, ok := r.domainOf(n)
		if !ok {
			continue
		}
		sum := f.byDomain[domain]
		if sum == nil {
			sum = &fill{make([]float64, len(f.scored)), make([]float64, len(f.scored))}
			f.byDomain[domain] = sum
		}
		for j := range f.scored {
			requested, all := fillOf(n, &r.Cluster.Rooms[n.Index], v1.ResourceName(f.scored[j].Name))
			sum.requested[j], sum.all[j] = sum.requested[j]+float64(requested), sum.all[j]+float64(all)
		}
	}

	return f
}

// scoredResources returns the resources used by the profile to score nodes; CPU and memory if there
// are none.
func scoredResources(r *Request) []config.ResourceSpec {
	if filter := r.roomFilter(); filter != nil {
		return filter.Scored()
	}
	return []config.ResourceSpec{{Name: string(v1.ResourceCPU), Weight: 1}, {Name: string(v1.ResourceMemory), Weight: 1}}
}

// fillOf returns the requested amount of a resource on a node, and the node's total amount.
func fillOf(n *cluster.Node, room *cluster.Room, name v1.ResourceName) (requested, all int64) {
	switch name {
	case v1.ResourceCPU:
		return room.NonZeroCPU, room.CPU
	case v1.ResourceMemory:
		return room.NonZeroMemory, room.Memory
	}
	return n.Requested.Amount(name), n.Size.Amount(name)
}

// sumRequests sums up the requests of members.
func (f *fills) sumRequests(members []*Member) []float64 {
	sum := make([]float64, len(f.scored))
	for _, m := range members {
		f.addRequests(sum, m.Waiting.Class, 1)
	}
	return sum
}

// addRequests adds the requests of a pod, multiplied by times.
func (f *fills) addRequests(sum []float64, class *cluster.PodClass, times float64) {
	for j := range f.scored {
		switch name := v1.ResourceName(f.scored[j].Name); name {
		case v1.ResourceCPU:
			sum[j] += times * float64(class.NonZeroCPU)
		case v1.ResourceMemory:
			sum[j] += times * float64(class.NonZeroMemory)
		default:
			sum[j] += times * float64(class.Requests.Amount(name))
		}
	}
}

// withAll returns the utilization of the domain with all members, in percent.
func (f *fills) withAll(domain string) float64 { return f.percentWith(domain, f.requested) }

// withPlan returns the utilization of the plan's domain, in percent. Like upstream, it includes the
// group and excludes all pods that may leave for it, even if the plan keeps them: the next group
// may evict these pods.
func (f *fills) withPlan(p *RoomPlan, nodes []*cluster.Node, mayLeave leaveRule) float64 {
	sum := make([]float64, len(f.scored))
	for i := range p.Places {
		f.addRequests(sum, p.Places[i].Member.Waiting.Class, 1)
	}
	for _, n := range nodes {
		for _, o := range n.Pods {
			if _, leaves := mayLeave(o); leaves {
				f.addRequests(sum, o.Class, -1)
			}
		}
	}
	return f.percentWith(p.domain, sum)
}

// percentWith returns the utilization of the domain with additional requests, in percent. A
// resource does not count if the domain has none of it, or if it is an extended resource that the
// group does not request.
func (f *fills) percentWith(domain string, more []float64) float64 {
	of := f.byDomain[domain]
	sum, weights := 0.0, 0.0
	for j, resource := range f.scored {
		if of.all[j] <= 0 || f.requested[j] == 0 && cluster.IsScalar(v1.ResourceName(resource.Name)) {
			continue
		}
		sum += float64(resource.Weight) * 100 * min(1, (of.requested[j]+more[j])/of.all[j])
		weights += float64(resource.Weight)
	}
	return sum / max(weights, 1)
}

// sortByFullest sorts the domains by their utilization with all members, the fullest first, then by
// name. It computes the utilization once per domain, since there may be thousands of domains.
func (f *fills) sortByFullest(domains []string) {
	full := make(map[string]float64, len(domains))
	for _, domain := range domains {
		full[domain] = f.withAll(domain)
	}
	slices.SortFunc(domains, func(x, y string) int { return cmp.Or(cmp.Compare(full[y], full[x]), cmp.Compare(x, y)) })
}
