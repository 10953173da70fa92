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

// GroupSuggestion is a change with which a pod group would be placed.
type GroupSuggestion struct {
	// Kind is AddNodes, LowerMinCount or RemoveTopologyConstraint. The last two need a new
	// PodGroup, since the spec of one cannot be changed, and new pods: a PodGroup stays until the
	// pods that name it are gone.
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Nodes is how many nodes like Like are added.
	Nodes int    `json:"nodes,omitempty"`
	Like  string `json:"like,omitempty"`
	// MinCount is the new minCount.
	MinCount int `json:"minCount,omitempty"`
}

// groupSearch looks for changes with which a group that fits nowhere would be placed.
// Like search, it suggests nothing that was not tried; each trial decides the whole
// group, with the change made and taken back.
type groupSearch struct {
	// now is the outcome of an attempt without any change: where the search begins.
	w   *simulate.World
	g   *groups.Group
	now *decision.GroupTrial
}

// How far the search goes: each trial decides the whole group.
const (
	mostModels = 4  // kinds of nodes that are tried, the most frequent ones
	mostAdded  = 64 // nodes
)

// suggestChanges lists the changes, the smallest first: fewer pods or nodes before more,
// pods before nodes. A group of which pods have nodes already, which placed counts, keeps
// its minCount.
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

// mostAtOnce returns the highest minCount below the gang's own with which it would be
// placed; 0 if there is none, or if it keeps its own. Where pods differ, more of them may
// fit than the first order finds, so it searches upwards from what fits now.
func (s *groupSearch) mostAtOnce(placed int) int {
	if s.g.MinCount() == 0 || placed > 0 || s.now.Fit == 0 {
		return 0
	}
	enough := func(n int) bool {
		other := s.g.Object.Spec.DeepCopy()
		other.SchedulingPolicy.Gang.MinCount = int32(n)
		return s.groupFits(nil, other)
	}
	low, high := s.now.Fit, s.g.MinCount() // high is too many
	if low >= high || !enough(low) {
		return 0
	}
	for next := low + 1; next < high; next = (low + high + 1) / 2 { // one more is seldom enough
		if enough(next) {
			low = next
		} else {
			high = next
		}
	}
	return low
}

// changeSize orders suggestions: how many nodes are added, or by how much minCount is
// lowered.
func (s *groupSearch) changeSize(of GroupSuggestion) int {
	switch of.Kind {
	case "AddNodes":
		return of.Nodes
	case "LowerMinCount":
		return s.g.MinCount() - of.MinCount
	}
	return 1
}

// groupFits reports whether the group would be placed with more nodes and another spec
// (nil: its own). After an allowance has ended it is false, so that the search ends soon.
func (s *groupSearch) groupFits(more []*v1.Node, spec *schedulingv1beta1.PodGroupSpec) bool {
	if s.w.Err() != nil {
		return false
	}
	t := s.w.TryGroupWith(s.g, more, spec)
	return t != nil && isPlaced(t)
}

// isPlaced reports whether the attempt places the group, without preemption.
func isPlaced(t *decision.GroupTrial) bool {
	return !t.Incomplete && t.Message == "" && len(t.Victims) == 0
}

// fewestNodes returns how many nodes have to be added at least, and which they are like;
// 0 if that does not help. A kind of node is taken over one that is more frequent only if
// fewer of it are enough.
func (s *groupSearch) fewestNodes() (fewest int, like string) {
	most := min(s.now.Tried, mostAdded)
	for _, model := range s.modelNodes() {
		fit := s.fewestLike(model, most)
		if fit > 0 {
			fewest, like, most = fit, model, fit-1
		}
	}
	return fewest, like
}

// fewestLike returns how many nodes like one have to be added at least, up to most; 0 if
// that is not enough. It doubles the number until it is enough, and then halves the
// interval: 64 nodes take a dozen trials. More nodes are taken never to hurt.
func (s *groupSearch) fewestLike(model string, most int) int {
	enough := func(n int) bool {
		var more []*v1.Node
		for i := range n {
			more = append(more, simulate.NodeLike(s.w.Node(model), fmt.Sprintf("%s-suggested-%d", model, i)))
		}
		return s.groupFits(more, nil)
	}
	low, high := 0, 1 // low is too few
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

// modelNodes are nodes of the most frequent kinds, the first of each by name. Nodes are
// of one kind if they have the same size, labels and taints.
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
