package cpus

import (
	"cmp"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// packing picks CPUs so that they touch as few parts of the machine as possible: whole sockets and
// NUMA nodes, the larger of the two first, then whole cores, then single CPUs. Among parts of a
// kind those with the fewest free CPUs come first, then lower numbers: what is broken already is
// used up before something whole is broken.
type packing struct {
	machine *topology.Machine
	free    cpuset.CPUSet
	taken   cpuset.CPUSet
	want    int // more CPUs
	// outer and inner are the sockets and the NUMA nodes, whichever is larger first.
	outer, inner part
	// nodesAround: the outer parts are the NUMA nodes.
	nodesAround bool
}

// part is a kind of part that the machine consists of, as a property of CPUs.
type part func(topology.CPU) int

func newPacking(m *topology.Machine, free cpuset.CPUSet) *packing {
	k := &packing{machine: m, free: free, outer: topology.CPU.SocketOf, inner: topology.CPU.NodeOf}
	if k.nodesAround = len(m.IDs(topology.CPU.SocketOf)) >= len(m.IDs(topology.CPU.NodeOf)); k.nodesAround {
		k.outer, k.inner = k.inner, k.outer
	}
	return k
}

// pack picks count of the free CPUs, which are at least as many.
func (p *Policy) pack(free cpuset.CPUSet, count int, nearCache bool) cpuset.CPUSet {
	k := newPacking(p.machine, free)
	k.want = count
	k.whole(k.outer, k.sorted(k.outer, free))
	k.whole(k.inner, k.inners())
	if nearCache {
		k.caches()
	}
	k.whole(topology.CPU.CoreOf, k.cores())
	for _, core := range k.cores() {
		for _, cpu := range k.freeIn(topology.CPU.CoreOf, core).List() {
			if k.want > 0 {
				k.take(cpuset.New(cpu))
			}
		}
	}
	return k.taken
}

func (k *packing) take(cpus cpuset.CPUSet) {
	k.taken, k.free = k.taken.Union(cpus), k.free.Difference(cpus)
	k.want -= cpus.Size()
}

// freeIn returns the free CPUs of one part.
func (k *packing) freeIn(of part, id int) cpuset.CPUSet {
	return k.machine.Where(of, id).Intersection(k.free)
}

// sorted returns the parts that these CPUs are in, those with the fewest free CPUs first.
func (k *packing) sorted(of part, among cpuset.CPUSet) (ids []int) {
	count := map[int]int{}
	for _, cpu := range among.UnsortedList() {
		count[of(k.machine.CPUs[cpu])] = 0
	}
	for id := range count {
		count[id] = k.freeIn(of, id).Size()
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(a, b)) })
	return ids
}

// inners returns the inner parts with free CPUs: one outer part after the other.
func (k *packing) inners() (ids []int) {
	for _, outer := range k.sorted(k.outer, k.free) {
		for _, inner := range k.sorted(k.inner, k.freeIn(k.outer, outer)) {
			if !slices.Contains(ids, inner) {
				ids = append(ids, inner)
			}
		}
	}
	return ids
}

// nodes returns the NUMA nodes with free CPUs, in the order in which they are packed.
func (k *packing) nodes() []int {
	if k.nodesAround {
		return k.sorted(k.outer, k.free)
	}
	return k.inners()
}

// cores returns the cores with free CPUs: one inner part after the other.
func (k *packing) cores() (ids []int) {
	for _, inner := range k.inners() {
		ids = append(ids, k.sorted(topology.CPU.CoreOf, k.freeIn(k.inner, inner))...)
	}
	return ids
}

// whole takes those of the parts that are free as a whole and not too large.
func (k *packing) whole(of part, ids []int) {
	for _, id := range ids {
		all := k.machine.Where(of, id)
		if all.Size() <= k.want && all.IsSubsetOf(k.free) {
			k.take(all)
		}
	}
}
