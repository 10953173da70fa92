// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// KindGroup is the kind of a GroupExplanation.
const KindGroup = "PodGroupExplanation"

// GroupExplanation is the state of a pod group, and the outcome of an attempt to place it now.
type GroupExplanation struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	// State is Placed (every pod has a node), Schedulable (the group would be placed now), Pending,
	// or Gated (the group is not tried, because its PodGroup is missing or it has too few pods).
	State State `json:"state"`
	// Summary is the explanation in one sentence.
	Summary string `json:"summary"`
	// MinCount is the gang's minimum number of pods to place together; 0 for a basic group.
	// Topology is the key of the label that must have the same value on all nodes of the group.
	MinCount int    `json:"minCount,omitempty"`
	Topology string `json:"topology,omitempty"`
	// Scheduled is set if the group has been scheduled before, according to its condition.
	// Replacements of its pods are placed one by one.
	Scheduled bool `json:"scheduled"`
	// LastDecision is the decision recorded by the scheduler in the group's condition, if any.
	LastDecision *LastDecision `json:"lastDecision,omitempty"`
	// Now is the outcome of an attempt; nil if all pods of the group have nodes.
	Now *decision.GroupTrial `json:"now,omitempty"`
	// Leaving lists the terminating pods about to make room for the group. If set, or if the group
	// makes room by preemption, no change is needed, so Suggestions is empty.
	Leaving *Leaving `json:"leaving,omitempty"`
	// Suggestions are changes that would place the group, smallest first. Each of them has been
	// tried.
	Suggestions []GroupSuggestion `json:"suggestions,omitempty"`
	// Pods lists all members by name, each with its node, or the node it would get together with
	// the rest of the group.
	Pods []GroupPod `json:"pods"`
}

// GroupPod is a member with its current or prospective node.
type GroupPod struct {
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Waits is set if the member is not on the node yet.
	Waits   bool   `json:"waits,omitempty"`
	Message string `json:"message,omitempty"`
}

// OfGroup explains a pod group of the world. It leaves the world unchanged, except that it places
// pods from manifests if they precede the group in the queue. It ignores Options.Node and
// Options.Decided.
func OfGroup(w *simulate.World, o Options) (*GroupExplanation, error) {
	g := w.Group(o.Namespace, o.Name)
	if g == nil {
		return nil, fmt.Errorf("podgroup %s/%s: %w", o.Namespace, o.Name, ErrNoPod)
	}

	out := &GroupExplanation{
		APIVersion: simulate.APIVersion, Kind: KindGroup, Source: o.Source, Namespace: o.Namespace, Name: o.Name,
		MinCount: g.MinCount(), Topology: g.TopologyKey(), Scheduled: g.Scheduled(), Pods: []GroupPod{},
	}

	// The scheduler's last message may be older than the cluster's state.
	if c := g.Condition(); c != nil {
		out.LastDecision = &LastDecision{At: metav1.NewTime(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message}
	}
	out.Now = w.TryGroup(o.Namespace, o.Name)
	placed := 0

	// Waiting members are shown with the nodes they would get as a group: separately, each might
	// get a different node.
	for _, p := range w.MembersOf(g) {
		one := GroupPod{Name: p.Object.Name, Node: p.Object.Spec.NodeName, Waits: p.Object.Spec.NodeName == ""}
		if !one.Waits {
			placed++
		} else if out.Now != nil {
			// The attempt has a place for each tried member.
			if i := slices.IndexFunc(out.Now.Pods, func(t decision.GroupPlace) bool { return t.Name == one.Name }); i >= 0 {
				one.Node, one.Message = out.Now.Pods[i].Node, out.Now.Pods[i].Message
			} else {
				one.Message = cmp.Or(w.Gate(p.Pod), "it is not tried with the others")
			}
		}
		out.Pods = append(out.Pods, one)
	}

	out.State, out.Summary = groupState(out.Now, placed, len(out.Pods))
	if out.State == Pending && len(out.Now.Victims) == 0 {
		out.Summary, out.Leaving, out.Suggestions = (&groupSearch{w: w, g: g, now: out.Now}).adviseGroup(out.Summary, placed)
	}
	return out, w.Err()
}

// adviseGroup returns the terminating pods that make room for a pending group or, if they are not
// enough, the changes that would help. It extends the summary. At most one of leaving and
// suggestions is set.
func (s *groupSearch) adviseGroup(summary string, placed int) (says string, leaving *Leaving, suggestions []GroupSuggestion) {
	text := strings.TrimSuffix(summary, ".")
	if leaving = s.afterLeaving(s.w.MembersOf(s.g)); leaving != nil {
		return text + ". It " + leaving.Summary() + ". Nothing needs to be done.", leaving, nil
	}
	if suggestions = s.suggestChanges(placed); len(suggestions) > 0 {
		return text + ". Smallest change: " + suggestions[0].Text + ".", nil, suggestions
	}
	return summary, nil, nil
}

// printGroupSuggestions prints the changes that would place a group. They have no commands: nodes
// are added by other means, and a PodGroup is immutable.
func printGroupSuggestions(page *answer.Page, group string, list []GroupSuggestion) {
	if len(list) == 0 {
		return
	}
	page.Line("\nWith any one of these %s would be placed, the smallest change first:", group)
	for i, s := range list {
		page.Line("  %d. %s", i+1, s.Text)
	}
}

// groupState returns the state and summary of a group, given an attempt for it (nil: no pod to
// place), the number of its pods with a node, and the number of all its pods.
func groupState(t *decision.GroupTrial, placed, all int) (State, string) {
	switch {
	case t == nil && all == 0:
		return Gated, "The group has no pods."
	// The attempt includes no member, although some are unplaced, so each of them is gated
	// individually.
	case t == nil && placed < all:
		return Gated, fmt.Sprintf("%d of %d pods have a node; the others are held back by their own scheduling gates.", placed, all)
	case t == nil:
		return Placed, fmt.Sprintf("All %s have a node.", answer.Count(all, "pod"))
	case t.Incomplete:
		return Gated, "The group is not tried yet: " + t.Message + "."
	case len(t.Victims) > 0:
		return Pending, fmt.Sprintf("The group can make room by removing %s. As things are, %s",
			answer.Count(len(t.Victims), "pod"), t.Message)
	case t.Message != "":
		return Pending, "The group is pending: " + t.Message
	// A basic group, or a gang with more pods than needed, is placed as far as it fits.
	case t.Fit < t.Tried:
		return Schedulable, fmt.Sprintf("The group waits for its turn: %d of %d pods would be placed now.", t.Fit, t.Tried)
	}

	return Schedulable, fmt.Sprintf("The group waits for its turn: %s would be placed now.", answer.Count(t.Fit, "pod"))
}

// Names returns the group in the format of kubectl -o name, for answer.Named.
func (e *GroupExplanation) Names() []string { return []string{"podgroup/" + e.Name} }

// Write writes the explanation in one of answer.Formats or as a name, and as text in any other
// format.
func (e *GroupExplanation) Write(out io.Writer, format string) error {
	return answer.Write(out, format, e, e.writeTo)
}

// writeTo writes the explanation as text.
func (e *GroupExplanation) writeTo(page *answer.Page) {
	page.Heading("podgroup %s/%s: %s", e.Namespace, e.Name, e.State)
	page.Line("%s", e.Summary)
	if e.MinCount > 0 {
		page.Line("A gang: %d pods at once.", e.MinCount)
	}

	if e.Topology != "" {
		page.Line("All on nodes with one value of %s.", e.Topology)
	}
	above := ""
	answer.Section(page, "  ", []string{"POD", "NODE", "WHY"}, e.Pods, func(p GroupPod) []string {
		why := p.Message
		if p.Waits && p.Node != "" {
			why = "would go there, with the others"
		}
		row := []string{p.Name, cmp.Or(p.Node, "<none>"), why}
		// Members of a group usually wait for the same reason.
		if why == above && strings.Count(why, " ") > 3 {
			row[2] = "as above"
		}
		above = why
		return row
	})

	if e.Now != nil && len(e.Now.Victims) > 0 {
		page.Line("\nWould have to leave: %s.", answer.List(len(e.Now.Victims), func(i int) string {
			return e.Now.Victims[i].Namespace + "/" + e.Now.Victims[i].Name
		}))
	}

	if e.Now != nil && !e.Now.ExpectedStart.IsZero() {
		page.Line("\nIts nominated nodes are expected to have the capacity by %s, when pods there end.", formatTime(e.Now.ExpectedStart.Time))
	}

	printGroupSuggestions(page, "it", e.Suggestions)

	if d := e.LastDecision; d != nil {
		page.Line("\nThe scheduler wrote %s: %s", d.At.UTC().Format("2006-01-02 15:04:05Z"), cmp.Or(d.Message, d.Reason))
	}
	page.Line("\n%s.", e.Source)
}

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
	return low + 1 + sort.Search(high-low-1, func(i int) bool { return enough(low + 1 + i) })
}

// modelNodes returns one node, the first by name, of each of the most frequent kinds. Nodes with
// the same size, labels and taints are of one kind.
func (s *groupSearch) modelNodes() []string {
	count, first := map[cluster.Parts]int{}, map[cluster.Parts]string{}
	var kinds []cluster.Parts

	for _, n := range s.w.Cluster().SortedNodes() {
		k := cluster.Parts{Size: n.Size, Labels: n.Labels, Taints: n.Taints}
		if count[k]++; count[k] == 1 {
			kinds, first[k] = append(kinds, k), n.Name
		}
	}

	slices.SortStableFunc(kinds, func(a, b cluster.Parts) int { return cmp.Compare(count[b], count[a]) })
	return answer.Mapped(kinds[:min(len(kinds), mostModels)], func(k cluster.Parts) string { return first[k] })
}
