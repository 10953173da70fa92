package memory

import (
	"errors"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Draft is the state as it becomes if a pod is admitted. It provides memory for that pod's
// admission.
type Draft struct {
	state State
	nodes []int
	// reusable is what init containers have that have ended when the next container starts, by
	// nodes and resource.
	reusable map[topology.Nodes]map[v1.ResourceName]uint64
}

// Draft begins a pod's admission.
func (p *Policy) Draft(s State) *Draft {
	d := &Draft{state: s.clone(), reusable: map[topology.Nodes]map[v1.ResourceName]uint64{}}
	d.nodes = slices.Sorted(maps.Keys(d.state.Machine))
	return d
}

// State returns the state with what was assigned.
func (d *Draft) State() State { return d.state }

// amounts are what is requested, by resource.
type amounts map[v1.ResourceName]uint64

// Eligible reports whether memory is assigned to a pod's containers.
func Eligible(pod *v1.Pod) bool {
	return rules.QOS(pod) == v1.PodQOSGuaranteed && !resource.IsPodLevelResourcesSet(pod)
}

// wants is what a container requests.
func wants(c *v1.Container) amounts {
	out := amounts{}
	for name, amount := range c.Resources.Requests {
		if managed(name) {
			out[name] = uint64(amount.Value())
		}
	}
	return out
}

// podWants is what a pod's containers request at a time, at most, of what its main containers
// request.
func podWants(pod *v1.Pod) amounts {
	starting, sidecars, running := amounts{}, amounts{}, amounts{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		for name, amount := range wants(c) {
			if rules.IsSidecar(c) {
				sidecars[name] += amount
			} else {
				starting[name] = max(starting[name], sidecars[name]+amount)
			}
		}
	}
	for i := range pod.Spec.Containers {
		for name, amount := range wants(&pod.Spec.Containers[i]) {
			running[name] += amount
		}
	}
	for name := range running {
		running[name] = max(running[name]+sidecars[name], starting[name])
	}
	return running
}

// Hints are the NUMA nodes that a container's memory could come from.
func (d *Draft) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	if !Eligible(pod) {
		return nil
	}
	if given := d.state.Given[pod.UID][c.Name]; given != nil {
		return again(given, wants(c))
	}
	return d.hints(wants(c))
}

// PodHints are those for all of the pod's containers together.
func (d *Draft) PodHints(pod *v1.Pod) topology.Hints {
	want := podWants(pod)
	if !Eligible(pod) || len(want) == 0 {
		return nil
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if given := d.state.Given[pod.UID][list[i].Name]; given != nil {
				return again(given, want)
			}
		}
	}
	return d.hints(want)
}

// again are the hints for what was given before; no preference if that is not what is requested.
func again(given []Block, want amounts) topology.Hints {
	if len(given) != len(want) {
		return nil
	}
	out := topology.Hints{}
	for _, block := range given {
		if size, wanted := want[block.Type]; !wanted || size != block.Size {
			return nil
		}
		out[string(block.Type)] = append(out[string(block.Type)], topology.Hint{Nodes: topology.NodesOf(block.NUMAAffinity...), Preferred: true})
	}
	return out
}

// hints returns the sets of nodes that have what is requested, the same for each resource; none:
// nothing for any. Those are preferred that have as few nodes as an empty machine would need.
func (d *Draft) hints(want amounts) topology.Hints {
	var list []topology.Hint
	least := len(d.nodes)
	for set := range topology.Subsets(d.nodes) {
		if !d.has(set, want, allocatable, false) {
			continue
		}
		least = min(least, set.Len())
		if d.fits(set) && d.has(set, want, free, true) {
			list = append(list, topology.Hint{Nodes: set})
		}
	}
	out := topology.Hints{}
	if len(list) == 0 {
		return out
	}
	for i := range list {
		list[i].Preferred = list[i].Nodes.Len() == least
	}
	for name := range want {
		out[string(name)] = list
	}
	return out
}

// has reports whether nodes together have what is requested, with what can be used again or
// without.
func (d *Draft) has(set topology.Nodes, want amounts, of func(*Table) uint64, reuse bool) bool {
	for name, size := range want {
		sum := d.state.Machine.sum(set.List(), name, of)
		if reuse {
			sum += d.reusable[set][name]
		}
		if sum < size {
			return false
		}
	}
	return true
}

// fits reports whether nodes can be used together: a node is used alone or in one group.
func (d *Draft) fits(set topology.Nodes) bool {
	if set.Len() == 1 {
		return len(d.state.Machine[set.List()[0]].Cells) == 1
	}
	return !d.violates(set)
}

// violates reports whether one of several nodes is used alone, or in another group.
func (d *Draft) violates(set topology.Nodes) bool {
	for _, id := range set.List() {
		node := d.state.Machine[id]
		if set.Len() > 1 && node.NumberOfAssignments > 0 && (len(node.Cells) == 1 || topology.NodesOf(node.Cells...) != set) {
			return true
		}
	}
	return false
}

// best is the first choice of some hints.
func best(hints []topology.Hint) (out topology.Hint) {
	for _, h := range hints {
		if out.Nodes == 0 || h.Preferred && !out.Preferred || h.Preferred == out.Preferred && h.Nodes.Narrower(out.Nodes) {
			out = h
		}
	}
	return out
}

// Assign gives a container what it requests. What it has been given before, it keeps: an agent that
// was killed may be admitting the pod again. The messages are the kubelet's.
func (d *Draft) Assign(pod *v1.Pod, c *v1.Container, near topology.Hint) error {
	if !Eligible(pod) {
		return nil
	}
	if given := d.state.Given[pod.UID][c.Name]; given != nil {
		d.reuse(pod, c, given)
		return nil
	}
	want := wants(c)
	chosen, err := d.choose(want, near)
	if err != nil {
		return err
	}
	blocks := []Block{}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		block := Block{NUMAAffinity: chosen.List(), Type: name, Size: want[name]}
		d.state.Machine.take(block, d.reusable[chosen][name])
		blocks = append(blocks, block)
	}
	d.reuse(pod, c, blocks)
	if d.state.Given[pod.UID] == nil {
		d.state.Given[pod.UID] = map[string][]Block{}
	}
	d.state.Given[pod.UID][c.Name] = blocks
	d.handOn(pod, c, blocks)
	return nil
}

// choose returns the nodes for what is requested: those of the hint, with others if they have too
// little.
func (d *Draft) choose(want amounts, near topology.Hint) (topology.Nodes, error) {
	all := d.hints(want)[string(v1.ResourceMemory)]
	chosen := near
	if chosen.Nodes == 0 {
		if len(all) == 0 {
			return 0, errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
		if chosen = best(all); !chosen.Preferred && near.Preferred {
			return 0, errors.New("[memorymanager] failed to find the default preferred hint")
		}
	}
	if !d.has(chosen.Nodes, want, free, false) {
		wider := slices.DeleteFunc(slices.Clone(all), func(h topology.Hint) bool { return h.Nodes&chosen.Nodes != chosen.Nodes })
		if len(wider) == 0 {
			return 0, errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		}
		before := chosen.Preferred
		if chosen = best(wider); !chosen.Preferred && before {
			return 0, errors.New("[memorymanager] failed to find the extended preferred hint")
		}
	}
	if d.violates(chosen.Nodes) {
		return 0, errors.New("[memorymanager] preferred hint violates NUMA node allocation")
	}
	return chosen.Nodes, nil
}

// reuse records what the containers after this one can have, too: what init containers had that end
// before.
func (d *Draft) reuse(pod *v1.Pod, c *v1.Container, blocks []Block) {
	ends := slices.ContainsFunc(pod.Spec.InitContainers, func(init v1.Container) bool { return init.Name == c.Name && !rules.IsSidecar(&init) })
	for _, block := range blocks {
		on := topology.NodesOf(block.NUMAAffinity...)
		if d.reusable[on] == nil {
			d.reusable[on] = amounts{}
		}
		had := d.reusable[on][block.Type]
		if ends {
			d.reusable[on][block.Type] = max(had, block.Size)
		} else {
			d.reusable[on][block.Type] = had - min(had, block.Size)
		}
	}
}

// handOn takes what a container has from the blocks of init containers before it, so that all
// blocks add up to what the pod has.
func (d *Draft) handOn(pod *v1.Pod, c *v1.Container, blocks []Block) {
	for _, block := range blocks {
		left := block.Size
		for i := range pod.Spec.InitContainers {
			init := &pod.Spec.InitContainers[i]
			if init.Name == c.Name {
				break
			}
			if rules.IsSidecar(init) {
				continue
			}
			had := d.state.Given[pod.UID][init.Name]
			for j := range had {
				if had[j].Type == block.Type && topology.NodesOf(had[j].NUMAAffinity...) == topology.NodesOf(block.NUMAAffinity...) {
					part := min(left, had[j].Size)
					had[j].Size, left = had[j].Size-part, left-part
				}
			}
		}
	}
}
