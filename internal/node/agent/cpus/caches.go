package cpus

import (
	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// caches takes last-level caches as a whole or, of one cache alone, what is still wanted. If no
// cache has as much, nothing of a part of one is taken.
func (k *packing) caches() {
	for _, cache := range k.sortedCaches() {
		k.whole(topology.CPU.CacheOf, k.sortedCaches())
		if k.want == 0 {
			return
		}
		if within := k.withinCache(cache); within.Size() == k.want {
			k.take(within)
			return
		}
	}
}

// sortedCaches returns the caches with free CPUs: one NUMA node after the other.
func (k *packing) sortedCaches() (ids []int) {
	for _, node := range k.nodes() {
		ids = append(ids, k.sorted(topology.CPU.CacheOf, k.freeIn(topology.CPU.NodeOf, node))...)
	}
	return ids
}

// withinCache returns the free CPUs on the first cores of a cache: on as many cores as are needed
// for what is wanted. Of an odd number the last CPU is left.
func (k *packing) withinCache(cache int) cpuset.CPUSet {
	threads := k.machine.Threads()
	needed := (k.want + threads - 1) / threads
	on := map[int]bool{}
	for _, cpu := range k.freeIn(topology.CPU.CacheOf, cache).UnsortedList() {
		on[k.machine.CPUs[cpu].Core] = true
	}
	cores := cpuset.New()
	for core := range on {
		cores = cores.Union(cpuset.New(core))
	}
	first := cores.List()
	first = first[:min(len(first), needed)]
	free := cpuset.New()
	for _, core := range first {
		free = free.Union(k.freeIn(topology.CPU.CoreOf, core))
	}
	if list := free.List(); threads > 1 && k.want%2 != 0 && len(list) > k.want {
		return cpuset.New(list[:len(list)-1]...)
	}
	return free
}
