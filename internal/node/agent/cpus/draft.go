package cpus

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Draft is the state as it becomes if a pod is admitted. It provides CPUs for that pod's admission.
type Draft struct {
	policy *Policy
	state  State
	// reusable are the CPUs of init containers that have ended when the next container starts.
	reusable cpuset.CPUSet
	// Pinned is how many containers were to have CPUs of their own, including one that got none.
	Pinned int
}

// Draft begins a pod's admission.
func (p *Policy) Draft(s State) *Draft { return &Draft{policy: p, state: s.clone()} }

// State returns the state with what was assigned.
func (d *Draft) State() State { return d.state }

// wants is how many CPUs of its own a container is to have.
func wants(pod *v1.Pod, c *v1.Container) int {
	if rules.QOS(pod) != v1.PodQOSGuaranteed || resource.IsPodLevelResourcesSet(pod) {
		return 0
	}
	cpu := c.Resources.Requests[v1.ResourceCPU]
	if cpu.MilliValue() != cpu.Value()*1000 {
		return 0
	}
	return int(cpu.Value())
}

// podWants is how many CPUs of their own a pod's containers have at a time, at most.
func podWants(pod *v1.Pod) int {
	sidecars, starting, running := 0, 0, 0
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if rules.IsSidecar(c) {
			sidecars += wants(pod, c)
		} else {
			starting = max(starting, sidecars+wants(pod, c))
		}
	}
	for i := range pod.Spec.Containers {
		running += wants(pod, &pod.Spec.Containers[i])
	}
	return max(starting, sidecars+running)
}

// Eligible reports whether one of a pod's containers is to have CPUs of its own.
func Eligible(pod *v1.Pod) bool { return podWants(pod) > 0 }

// available are the CPUs that can be given away.
func (d *Draft) available() cpuset.CPUSet { return d.state.Pool.Difference(d.policy.reserved) }

// Assign gives a container CPUs of its own if it is to have some. What it has been given before, it
// keeps: an agent that was killed may be admitting the pod again.
func (d *Draft) Assign(pod *v1.Pod, c *v1.Container, near topology.Hint) error {
	count := wants(pod, c)
	if count == 0 {
		return nil
	}
	if own := d.state.Own(pod.UID, c.Name); !own.IsEmpty() {
		d.reuse(pod, c, own)
		return nil
	}
	d.Pinned++
	if err := d.wholeCores(count); err != nil {
		return err
	}
	own, err := d.choose(count, near.Nodes)
	if err != nil {
		return err
	}
	d.state.Pool = d.state.Pool.Difference(own)
	if d.state.Given[pod.UID] == nil {
		d.state.Given[pod.UID] = map[string]cpuset.CPUSet{}
	}
	d.state.Given[pod.UID][c.Name] = own
	d.reuse(pod, c, own)
	return nil
}

// wholeCores refuses, where containers get whole cores only, what is no number of cores, and more
// than there are. Cores with a reserved CPU count as taken.
func (d *Draft) wholeCores(count int) error {
	if !d.policy.options.FullCores {
		return nil
	}
	threads := d.policy.threads
	if count%threads != 0 {
		return &topology.Refusal{Reason: "SMTAlignmentError", Message: fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", count, threads)}
	}
	if free := d.state.Pool.Difference(d.policy.reservedCores).Union(d.reusable).Size(); count > free {
		return &topology.Refusal{Reason: "SMTAlignmentError", Message: fmt.Sprintf(
			"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", free, count, threads)}
	}
	return nil
}

// choose picks CPUs, those on the nodes first; no nodes: anywhere.
func (d *Draft) choose(count int, near topology.Nodes) (cpuset.CPUSet, error) {
	free := d.available().Union(d.reusable)
	first := cpuset.New()
	if near != 0 {
		aligned := cpuset.New()
		for _, node := range near.List() {
			aligned = aligned.Union(d.policy.machine.Where(topology.CPU.NodeOf, node).Intersection(free))
		}
		var err error
		if first, err = d.policy.take(aligned, min(count, aligned.Size())); err != nil {
			return first, err
		}
	}
	rest, err := d.policy.take(free.Difference(first), count-first.Size())
	return first.Union(rest), err
}

// reuse records which CPUs the containers after this one can have, too: those of init containers
// that end before.
func (d *Draft) reuse(pod *v1.Pod, c *v1.Container, own cpuset.CPUSet) {
	for i := range pod.Spec.InitContainers {
		if init := &pod.Spec.InitContainers[i]; init.Name == c.Name && !rules.IsSidecar(init) {
			d.reusable = d.reusable.Union(own)
			return
		}
	}
	d.reusable = d.reusable.Difference(own)
}

// Hints are the NUMA nodes that a container's CPUs could come from.
func (d *Draft) Hints(pod *v1.Pod, c *v1.Container) topology.Hints {
	count := wants(pod, c)
	if count == 0 {
		return nil
	}
	if own := d.state.Own(pod.UID, c.Name); !own.IsEmpty() {
		return d.again(own, own.Size() == count, count)
	}
	return d.hints(d.available(), d.reusable, count)
}

// PodHints are those for all of the pod's containers together.
func (d *Draft) PodHints(pod *v1.Pod) topology.Hints {
	count := podWants(pod)
	if count == 0 {
		return nil
	}
	given := cpuset.New()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			own := d.state.Own(pod.UID, list[i].Name)
			if !own.IsEmpty() && own.Size() != wants(pod, &list[i]) {
				return d.again(own, false, count)
			}
			given = given.Union(own)
		}
	}
	if given.Size() == count {
		return d.again(given, true, count)
	}
	return d.hints(d.available(), d.reusable.Union(given), count)
}

// again are the hints for CPUs that were given before; none is possible if they are not as many as
// requested.
func (d *Draft) again(given cpuset.CPUSet, asMany bool, count int) topology.Hints {
	if !asMany {
		return topology.Hints{string(v1.ResourceCPU): {}}
	}
	return d.hints(given, cpuset.New(), count)
}

// hints returns the sets of nodes with enough CPUs, all of the reusable ones among them. Those are
// preferred that have as few nodes as an empty machine would need.
func (d *Draft) hints(available, reusable cpuset.CPUSet, count int) topology.Hints {
	m := d.policy.machine
	nodes := m.IDs(topology.CPU.NodeOf)
	all, free, used := perNode(m, m.All()), perNode(m, available), perNode(m, reusable)
	least := len(nodes)
	list := []topology.Hint{}
	for set := range topology.Subsets(nodes) {
		if all.in(set) >= count {
			least = min(least, set.Len())
		}
		if used.in(set) == reusable.Size() && used.in(set)+free.in(set) >= count {
			list = append(list, topology.Hint{Nodes: set})
		}
	}
	for i := range list {
		list[i].Preferred = list[i].Nodes.Len() == least
	}
	return topology.Hints{string(v1.ResourceCPU): list}
}

// counts are numbers of CPUs by NUMA node.
type counts map[int]int

func perNode(m *topology.Machine, cpus cpuset.CPUSet) counts {
	out := counts{}
	for _, cpu := range cpus.UnsortedList() {
		out[m.CPUs[cpu].Node]++
	}
	return out
}

func (c counts) in(set topology.Nodes) (sum int) {
	for _, node := range set.List() {
		sum += c[node]
	}
	return sum
}
