package cpus

import (
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// takeAcross picks count of the free CPUs, which are at least as many: from one NUMA node if it has
// as many; otherwise evenly from as few as possible. What cannot be divided evenly is taken from
// those nodes for which the nodes keep the most even numbers of free CPUs. Where nothing fits, it
// packs.
func (p *Policy) takeAcross(free cpuset.CPUSet, count int) cpuset.CPUSet {
	s := spreading{Policy: p, free: map[int]int{}, count: count, group: 1}
	if p.options.FullCores {
		s.group = p.threads
	}
	if count == 0 || count%s.group != 0 {
		return p.pack(free, count, false)
	}
	k := newPacking(p.machine, free)
	s.nodes = k.nodes()
	for _, node := range s.nodes {
		s.free[node] = k.freeIn(topology.CPU.NodeOf, node).Size()
	}
	groups := (count-1)/s.group + 1
	all, nodes := len(p.machine.CPUs), len(p.machine.IDs(topology.CPU.NodeOf))
	ofNode := ((all-1)/s.group)/nodes + 1
	for n := (groups-1)/ofNode + 1; n <= min(groups, len(s.nodes)); n++ {
		if shares := s.best(n); shares != nil {
			taken := cpuset.New()
			for node, share := range shares {
				taken = taken.Union(p.pack(k.freeIn(topology.CPU.NodeOf, node), share, false))
			}
			return taken
		}
	}
	return p.pack(free, count, false)
}

// spreading is the search for NUMA nodes over which CPUs are spread, in groups of so many.
type spreading struct {
	*Policy
	nodes []int       // in the order in which they are packed
	free  map[int]int // CPUs, by node
	count int
	group int
}

// best returns how many CPUs to take from each of n nodes; nil: no n nodes have them.
func (s spreading) best(n int) (shares map[int]int) {
	least := math.MaxFloat64
	for _, chosen := range choices(s.nodes, n) {
		even := s.count / n / s.group * s.group
		base := map[int]int{}
		groups := 0
		for _, node := range chosen {
			base[node] = even
			groups += s.free[node] / s.group
		}
		if groups*s.group < s.count || slices.ContainsFunc(chosen, func(node int) bool { return s.free[node] < even }) {
			continue
		}
		if got, imbalance := s.rest(chosen, base, s.count-even*n); imbalance < least {
			shares, least = got, imbalance
		}
	}
	return shares
}

// rest adds to the shares what cannot be divided evenly, so that the free CPUs of all nodes are as
// even as possible. The imbalance is infinite if that cannot be.
func (s spreading) rest(chosen []int, base map[int]int, rest int) (best map[int]int, least float64) {
	if rest == 0 {
		return base, s.imbalance(base)
	}
	var able []int
	for _, node := range chosen {
		if s.free[node]-base[node] >= s.group {
			able = append(able, node)
		}
	}
	least = math.MaxFloat64
	for n := len(able); n >= 1; n-- {
		for _, some := range choices(able, n) {
			if shares := s.add(base, some, rest); shares != nil {
				if imbalance := s.imbalance(shares); imbalance < least {
					best, least = shares, imbalance
				}
			}
		}
	}
	return best, least
}

// add returns the shares with the rest distributed over some nodes in turn; nil: they have no room.
func (s spreading) add(base map[int]int, some []int, rest int) map[int]int {
	shares := map[int]int{}
	for node, share := range base {
		shares[node] = share
	}
	for rest > 0 {
		before := rest
		for _, node := range some {
			if rest > 0 && s.free[node]-shares[node] >= s.group {
				shares[node] += s.group
				rest -= s.group
			}
		}
		if rest == before {
			return nil
		}
	}
	return shares
}

// imbalance is the standard deviation of the CPUs that stay free on each node.
func (s spreading) imbalance(shares map[int]int) float64 {
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	var sum, squares float64
	for _, node := range s.nodes {
		sum += float64(s.free[node] - shares[node])
	}
	mean := round(sum / float64(len(s.nodes)))
	for _, node := range s.nodes {
		by := float64(s.free[node]-shares[node]) - mean
		squares += by * by
	}
	return round(math.Sqrt(squares / float64(len(s.nodes))))
}

// choices returns all ways to choose n of these, in their order.
func choices(from []int, n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for i := range from {
		for _, more := range choices(from[i+1:], n-1) {
			all = append(all, append([]int{from[i]}, more...))
		}
	}
	return all
}
