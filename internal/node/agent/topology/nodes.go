package topology

import (
	"iter"
	"math/bits"
)

// Nodes is a set of NUMA nodes by number, below 64. In a hint the empty set stands for any nodes.
type Nodes uint64

// NodesOf returns the set of these nodes.
func NodesOf(ids ...int) (out Nodes) {
	for _, id := range ids {
		out |= 1 << id
	}
	return out
}

// Has reports whether a node is in the set.
func (n Nodes) Has(id int) bool { return id >= 0 && id < 64 && n&(1<<id) != 0 }

// Len is the number of nodes in the set.
func (n Nodes) Len() int { return bits.OnesCount64(uint64(n)) }

// List returns the nodes in order.
func (n Nodes) List() (out []int) {
	for left := uint64(n); left != 0; left &= left - 1 {
		out = append(out, bits.TrailingZeros64(left))
	}
	return out
}

// Narrower reports whether n has fewer nodes than other or, with as many, lower ones.
func (n Nodes) Narrower(other Nodes) bool {
	if n.Len() != other.Len() {
		return n.Len() < other.Len()
	}
	return n < other
}

// Subsets yields all non-empty sets of these nodes, small ones first.
func Subsets(ids []int) iter.Seq[Nodes] {
	return func(yield func(Nodes) bool) {
		for size := 1; size <= len(ids); size++ {
			if !subsets(ids, size, 0, yield) {
				return
			}
		}
	}
}

// subsets yields those that add size of the ids to a set; false: no more are wanted.
func subsets(ids []int, size int, to Nodes, yield func(Nodes) bool) bool {
	if size == 0 {
		return yield(to)
	}
	for i := range ids {
		if !subsets(ids[i+1:], size-1, to|NodesOf(ids[i]), yield) {
			return false
		}
	}
	return true
}
