// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"math"
	"slices"
)

// fgd is the policy of the paper. The score of a placement is the decrease in the node's
// fragmentation, mapped to 0..100 by a sigmoid and truncated. Among equal scores, fgd selects the
// first node, and the first GPU on it.
type fgd struct {
	nodes   []freeNode
	typical []Shape
	often   []float64 // share of each typical task among all tasks
	cache   map[Shape][]fgdScore
}

// freeNode is a node with its free capacity.
type freeNode struct {
	Node
	free    []int64 // free amount of each GPU
	changes int     // number of placements on the node so far
	amount  float64 // amount of fragmentation
}

func newFreeNode(n Node) *freeNode {
	return &freeNode{Node: n, free: slices.Repeat([]int64{Milli}, int(n.GPUs))}
}

// fgdScore is the cached score of a node, valid while the node's number of changes is the same.
type fgdScore struct {
	changes, score, gpu int // score is -1 if the task does not fit; gpu is the GPU for a share
}

func newFGD(t *Trace, m *Mix) *fgd {
	f := &fgd{cache: map[Shape][]fgdScore{}}
	shapes, counts := m.countShapes()
	for i := range shapes {
		f.typical = append(f.typical, shapes[i])
		f.often = append(f.often, float64(counts[shapes[i]])/float64(len(m.Tasks)))
	}
	for _, n := range t.Nodes {
		node := newFreeNode(n)
		node.amount = f.fragmentationOf(node)
		f.nodes = append(f.nodes, *node)
	}
	return f
}

func (n *freeNode) hasRoomFor(s *Shape) bool {
	if s.CPU > n.CPU || s.Memory > n.Memory || s.GPUs > 0 && !s.allowsModel(n.Model) {
		return false
	}
	var fit int64
	for _, free := range n.free {
		if free >= s.GPUMilli {
			fit++
		}
	}
	return fit >= s.GPUs
}

// fragmentationOf returns the expected free GPU capacity that a typical task cannot use, in GPUs.
func (f *fgd) fragmentationOf(n *freeNode) (sum float64) {
	for i := range f.typical {
		s := &f.typical[i]
		useful := s.GPUs > 0 && n.hasRoomFor(s)
		var lost int64
		for _, free := range n.free {
			if !useful || free < s.GPUMilli {
				lost += free
			}
		}
		sum += f.often[i] * float64(lost) / Milli
	}
	return sum
}

// afterTask returns a copy of the node with the task on it. A share is placed on the given GPU.
func (n *freeNode) afterTask(s *Shape, gpu int) freeNode {
	other := *n
	other.free = slices.Clone(n.free)
	other.CPU -= s.CPU
	other.Memory -= s.Memory
	other.changes++
	if s.GPUMilli < Milli && s.GPUs > 0 {
		other.free[gpu] -= s.GPUMilli
		return other
	}
	for i, left := 0, s.GPUs; left > 0; i++ {
		if other.free[i] == Milli {
			other.free[i] = 0
			left--
		}
	}
	return other
}

func (f *fgd) scoreNode(n *freeNode, s *Shape) fgdScore {
	best := fgdScore{n.changes, -1, 0}
	if !n.hasRoomFor(s) {
		return best
	}

	for gpu := range max(1, len(n.free)) {
		share := s.GPUs > 0 && s.GPUMilli < Milli
		if share && n.free[gpu] < s.GPUMilli {
			continue
		}
		after := n.afterTask(s, gpu)
		less := n.amount - f.fragmentationOf(&after)
		if score := int(100 / (1 + math.Exp(-less))); score > best.score {
			best.score, best.gpu = score, gpu
		}
		if !share {
			break
		}
	}

	return best
}

// placeTask implements player.
func (f *fgd) placeTask(t *Task) (node string, gpus []share, err error) {
	known := f.cache[t.Shape]
	if known == nil {
		known = make([]fgdScore, len(f.nodes))
		for i := range known {
			known[i].changes = -1
		}
		f.cache[t.Shape] = known
	}

	best := -1
	for i := range f.nodes {
		if known[i].changes != f.nodes[i].changes {
			known[i] = f.scoreNode(&f.nodes[i], &t.Shape)
		}
		if known[i].score >= 0 && (best < 0 || known[i].score > known[best].score) {
			best = i
		}
	}

	if best < 0 {
		return "", nil, nil
	}
	before := f.nodes[best].free
	after := f.nodes[best].afterTask(&t.Shape, known[best].gpu)
	after.amount = f.fragmentationOf(&after)
	f.nodes[best] = after
	for i := range before {
		if taken := before[i] - after.free[i]; taken > 0 {
			gpus = append(gpus, share{i, taken})
		}
	}

	return after.Name, gpus, nil
}
