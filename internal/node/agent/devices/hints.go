package devices

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Hints are the NUMA nodes that a container's devices could come from, of those of the machine.
func (l *Ledger) Hints(pod *v1.Pod, c *v1.Container, machine []int) topology.Hints {
	out := topology.Hints{}
	for _, want := range l.Wants(c) {
		had := set{}
		if h := l.held[pod.UID][c.Name][want.Resource]; h != nil {
			had.add(h.devices)
		}
		out[want.Resource] = l.hints(want, had, l.reusable(pod, c.Name, want.Resource), machine)
	}
	return out
}

// PodHints are those for all of the pod's containers together.
func (l *Ledger) PodHints(pod *v1.Pod, machine []int) topology.Hints {
	out := topology.Hints{}
	for _, want := range l.wants(resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})) {
		had := set{}
		for _, holdings := range l.held[pod.UID] {
			if h := holdings[want.Resource]; h != nil {
				had.add(h.devices)
			}
		}
		out[want.Resource] = l.hints(want, had, nil, machine)
	}
	return out
}

// hints are the sets of nodes that have enough devices, those being preferred that have as few
// nodes as there can be. A holder of devices keeps them; devices that can be used again are used.
// Nil is no preference: the plugin does not say where any of its devices is.
func (l *Ledger) hints(want Want, had, reusable set, machine []int) []topology.Hint {
	var all map[string]Device
	if r := l.resources[want.Resource]; r != nil {
		all = r.devices
	}
	near, hosts, knows := map[string]topology.Nodes{}, topology.Nodes(0), false
	for id, d := range all {
		knows = knows || len(d.NUMA) > 0
		near[id] = d.near(machine)
		hosts |= near[id]
	}
	if !knows {
		return nil
	}
	available := had
	if len(had) > 0 {
		reusable = nil
	} else {
		available = l.available(want.Resource)
	}
	if len(had) > 0 && len(had) != want.Count || len(available)+len(reusable) < want.Count {
		return []topology.Hint{}
	}
	nodes := hosts.List()
	if len(nodes) == 0 {
		nodes = machine
	}
	hints, least := []topology.Hint{}, len(nodes)
	for these := range topology.Subsets(nodes) {
		if count(all, func(id string) bool { return near[id]&these != 0 }) >= want.Count {
			least = min(least, these.Len())
		}
		located := count(reusable, func(id string) bool { return len(all[id].NUMA) > 0 })
		matching := count(reusable, func(id string) bool { return near[id]&these != 0 })
		if matching == located && matching+count(available, func(id string) bool { return near[id]&these != 0 }) >= want.Count {
			hints = append(hints, topology.Hint{Nodes: these})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Len() == least
	}
	return hints
}

// near are the nodes of the machine that the device is close to.
func (d Device) near(machine []int) (out topology.Nodes) {
	for _, id := range d.NUMA {
		if slices.Contains(machine, int(id)) {
			out |= topology.NodesOf(int(id))
		}
	}
	return out
}

// at reports whether the device is close to one of these nodes.
func (d Device) at(nodes topology.Nodes) bool {
	return slices.ContainsFunc(d.NUMA, func(id int64) bool { return nodes.Has(int(id)) })
}

// count returns how many IDs satisfy a condition.
func count[V any](ids map[string]V, so func(id string) bool) (n int) {
	for id := range ids {
		if so(id) {
			n++
		}
	}
	return n
}
