// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// GroupSuggestion is a change that would place a pod group.
type GroupSuggestion struct {
	// Kind is AddNodes, LowerMinCount or RemoveTopologyConstraint. The last two need a new
	// PodGroup, because its spec is immutable, and new pods: a PodGroup stays until all pods naming
	// it are deleted.
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Nodes is the number of added nodes like Like.
	Nodes int    `json:"nodes,omitempty"`
	Like  string `json:"like,omitempty"`
	// MinCount is the new minCount.
	MinCount int `json:"minCount,omitempty"`
}

// groupSearch looks for changes that would place an unschedulable group. Like search, it suggests
// only changes that were tried; each trial decides the whole group with the change made, and then
// reverts the change.
type groupSearch struct {
	// now is the outcome of an attempt without changes, the starting point of the search.
	w   *simulate.World
	g   *groups.Group
	now *decision.GroupTrial
}

// Limits of the search: each trial decides the whole group.
const (
	mostModels = 4  // kinds of nodes tried, the most frequent ones
	mostAdded  = 64 // nodes added
)

// suggestChanges lists the changes, smallest first. The size of a change is the number of added
// nodes, or of pods dropped from minCount; at equal sizes, dropping pods precedes adding nodes.
// placed counts the pods already on nodes; a group with such pods keeps its minCount.
func (s *groupSearch) suggestChanges(placed int) (list []GroupSuggestion) {
	if n := s.mostAtOnce(placed); n > 0 {
		list = append(list, GroupSuggestion{Kind: "LowerMinCount", MinCount: n,
			Text: fmt.Sprintf("lower minCount from %d to %d, in a new PodGroup with new pods", s.g.MinCount(), n)})
	}

	if key := s.g.TopologyKey(); key != "" {
		other := s.g.Object.Spec.DeepCopy()
		other.SchedulingConstraints = nil
		if s.groupFits(nil, other) {
			list = append(list, GroupSuggestion{Kind: "RemoveTopologyConstraint",
				Text: fmt.Sprintf("remove the topology constraint (%s), in a new PodGroup with new pods", key)})
		}
	}

	if n, like := s.fewestNodes(); n > 0 {
		list = append(list, GroupSuggestion{Kind: "AddNodes", Nodes: n, Like: like,
			Text: fmt.Sprintf("add %s like %s", answer.Count(n, "node"), like)})
	}

	slices.SortStableFunc(list, func(a, b GroupSuggestion) int { return cmp.Compare(s.changeSize(a), s.changeSize(b)) })
	return list
}

// mostAtOnce returns the highest minCount below the gang's own at which the gang would be placed.
// It returns 0 if there is none, or if the gang keeps its minCount. If the pods differ, more pods
// may fit than in the attempt without changes, so it searches upwards from the number of pods that
// fit in that attempt.
func (s *groupSearch) mostAtOnce(placed int) int {
	if s.g.MinCount() == 0 || placed > 0 || s.now.Fit == 0 {
		return 0
	}
	enough := func(n int) bool {
		other := s.g.Object.Spec.DeepCopy()
		other.SchedulingPolicy.Gang.MinCount = int32(n)
		return s.groupFits(nil, other)
	}
	low, high := s.now.Fit, s.g.MinCount() // high does not fit
	if low >= high || !enough(low) {
		return 0
	}
	for next := low + 1; next < high; next = (low + high + 1) / 2 { // one more pod rarely fits, so try that first
		if enough(next) {
			low = next
		} else {
			high = next
		}
	}
	return low
}

// changeSize orders suggestions by the number of added nodes or the reduction of minCount.
func (s *groupSearch) changeSize(of GroupSuggestion) int {
	switch of.Kind {
	case "AddNodes":
		return of.Nodes
	case "LowerMinCount":
		return s.g.MinCount() - of.MinCount
	}
	return 1
}

// groupFits reports whether the group would be placed with more nodes and another spec (nil: its
// current spec). It returns false once the allowance is used up, so that the search ends soon.
func (s *groupSearch) groupFits(more []*v1.Node, spec *schedulingv1beta1.PodGroupSpec) bool {
	if s.w.Err() != nil {
		return false
	}
	t := s.w.TryGroupWith(s.g, more, spec)
	return t != nil && isPlaced(t)
}

// isPlaced reports whether the attempt places the group without preemption.
func isPlaced(t *decision.GroupTrial) bool {
	return !t.Incomplete && t.Message == "" && len(t.Victims) == 0
}

// fewestNodes returns the minimum number of nodes to add, and their model; 0 if adding nodes does
// not help. A less frequent kind of node replaces a more frequent one only if fewer nodes suffice.
func (s *groupSearch) fewestNodes() (fewest int, like string) {
	most := min(s.now.Tried, mostAdded)
	for _, model := range s.modelNodes() {
		if fit := s.fewestLike(model, most); fit > 0 {
			fewest, like, most = fit, model, fit-1
		}
	}
	return fewest, like
}

// fewestLike returns the minimum number of nodes like model to add, up to most; 0 if most is not
// enough. It doubles the number until it is enough, and then bisects: 64 nodes take a dozen trials.
// It assumes that additional nodes never hurt.
func (s *groupSearch) fewestLike(model string, most int) int {
	enough := func(n int) bool {
		var more []*v1.Node
		for i := range n {
			more = append(more, simulate.NodeLike(s.w.Node(model), fmt.Sprintf("%s-suggested-%d", model, i)))
		}
		return s.groupFits(more, nil)
	}
	low, high := 0, 1 // low nodes are too few
	for ; high < most && !enough(high); high *= 2 {
		low = high
	}
	if high = min(high, most); high <= low || high == most && !enough(high) {
		return 0
	}
	for high-low > 1 {
		if middle := (low + high) / 2; enough(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// modelNodes returns one node, the first by name, of each of the most frequent kinds. Nodes with
// the same size, labels and taints are of one kind.
func (s *groupSearch) modelNodes() (names []string) {
	count, first := map[cluster.Parts]int{}, map[cluster.Parts]string{}
	var kinds []cluster.Parts

	for _, n := range s.w.Cluster().SortedNodes() {
		k := cluster.Parts{Size: n.Size, Labels: n.Labels, Taints: n.Taints}
		if count[k]++; count[k] == 1 {
			kinds, first[k] = append(kinds, k), n.Name
		}
	}

	slices.SortStableFunc(kinds, func(a, b cluster.Parts) int { return cmp.Compare(count[b], count[a]) })
	for _, k := range kinds[:min(len(kinds), mostModels)] {
		names = append(names, first[k])
	}
	return names
}
