package cpus

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// State is who may run on which CPUs. The pool and what was given to pods do not overlap; init
// containers of a pod may have CPUs in common with its other containers.
type State struct {
	// Pool is shared by all containers without CPUs of their own. It contains the reserved CPUs,
	// unless those are kept from pods altogether.
	Pool cpuset.CPUSet
	// Given are CPUs of containers of their own, by pod and name.
	Given map[types.UID]map[string]cpuset.CPUSet
}

// Own returns the CPUs that a container has of its own; empty: none.
func (s State) Own(pod types.UID, container string) cpuset.CPUSet { return s.Given[pod][container] }

// Of returns all CPUs that a pod's containers have of their own.
func (s State) Of(pod types.UID) cpuset.CPUSet {
	return union(s.Given[pod])
}

// All returns all CPUs that containers have of their own.
func (s State) All() cpuset.CPUSet {
	all := cpuset.New()
	for _, containers := range s.Given {
		all = all.Union(union(containers))
	}
	return all
}

func union(containers map[string]cpuset.CPUSet) cpuset.CPUSet {
	all := cpuset.New()
	for _, cpus := range containers {
		all = all.Union(cpus)
	}
	return all
}

// clone is a copy that shares nothing that changes.
func (s State) clone() State {
	given := make(map[types.UID]map[string]cpuset.CPUSet, len(s.Given))
	for pod, containers := range s.Given {
		given[pod] = maps.Clone(containers)
	}
	return State{Pool: s.Pool, Given: given}
}

// Release returns the state without a pod: its CPUs are the pool's again.
func (s State) Release(pod types.UID) State {
	out := s.clone()
	out.Pool = out.Pool.Union(s.Of(pod))
	delete(out.Given, pod)
	return out
}

// Begin checks a state that was read from a checkpoint against the machine, and returns the state
// to go on with. An empty one becomes that of a machine without pods. The messages are the
// kubelet's.
func (p *Policy) Begin(s State) (State, error) {
	all := p.machine.All()
	if p.options.StrictReservation {
		all = all.Difference(p.reserved)
	}
	if s.Pool.IsEmpty() && len(s.Given) == 0 {
		return State{Pool: all, Given: s.Given}.clone(), nil
	}
	if shared := p.reserved.Intersection(s.Pool); p.options.StrictReservation && !shared.IsEmpty() {
		return s, fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", shared, s.Pool)
	} else if !p.options.StrictReservation && !shared.Equals(p.reserved) {
		return s, fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", p.reserved, s.Pool)
	}
	for pod, containers := range s.Given {
		for name, cpus := range containers {
			if !s.Pool.Intersection(cpus).IsEmpty() {
				return s, fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", pod, name, cpus, s.Pool)
			}
		}
	}
	if known := s.Pool.Union(s.All()); !known.Equals(all) {
		return s, fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", all, known)
	}
	return s.clone(), nil
}

// Count returns how many CPUs can still be given away, and how many were, by NUMA node.
func (p *Policy) Count(s State) (free int, given map[int]int) {
	given = perNode(p.machine, s.All())
	for _, node := range p.machine.IDs(topology.CPU.NodeOf) {
		given[node] += 0
	}
	return s.Pool.Difference(p.reserved).Size(), given
}

// For returns the CPUs that a container is to run on. A pool that is empty, which takes a strict
// reservation, leaves it the reserved ones: those of other containers it must not have.
func (p *Policy) For(s State, pod types.UID, container string) cpuset.CPUSet {
	if own := s.Own(pod, container); !own.IsEmpty() {
		return own
	}
	if s.Pool.IsEmpty() {
		return p.reserved
	}
	return s.Pool
}
